"""Shows that the committed results are of the present settings, though `config.json` had another format then.

Each row of the results names its settings by a hash of `config.json`. Those that were trained when that file had format
3 name them by two hashes: `settings_3`, as it was written then, and `settings`, of the present format. Here the present
settings of each row are written in format 3 again; if the hash is the stored one, the settings are equal, and nothing
needs to be trained again.

    python -m studies.carried_over          checks every row
    python -m studies.carried_over --write  and writes the hash of the present format beside it
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deeprok.core.errors import DeeprokError
from deeprok.core.fields import written
from deeprok.runs.format3 import DROPPED
from deeprok.runs.settings import Config
from studies import paper, plan
from studies.engine import write_json
from studies.plan import Comparison

DOCS = Path(__file__).parent.parent / "docs"

#: The order of the fields in format 3, and what they were where an algorithm did not read them.
_FIELDS: dict[str, Any] = {
    **dict(algorithm="", preset="", seed=0, episodes=0, world="", integrator="euler", failing_reward=0.0, horizon=0),
    **dict(nominal="", box="", models=0, draw="", fixed_models="", acting=""),
    **dict(robust_set="minimum", robust_level=0.4, confidence="fixed", level_start=1.0, level_steps=30_000),
    **dict(discount=0.0, double=False, hidden=(), activation="", input_scale=(), estimator={}, prior="", precision=""),
    **dict(batch_size=10, replay_size=150_000, warm_up=100, train_every=1, target_period=1000),
    **dict(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=10_000, explore="epsilon", explore_scale=1.0),
    **dict(chunk_steps=2000, snapshot_every=0, trial_every=0, trial_models=0, trial_epsilon=0.0),
}
#: The same of the preset `tuned` of Q-learning.
_TUNED = {"robust_set": "cvar", "robust_level": 0.15, "target_period": 2000}

#: Policy gradients had all of their settings in the estimator's place, in this order.
_POLICY = (
    *("inner", "trajectories", "learning_rate", "clip", "epochs", "minibatches", "entropy", "kl_bound", "gae_lambda"),
    *("trajectory_set", "trajectory_level", "level_iterations", "weigh", "adversary", "source_spread", "target"),
    *("adapt_every", "target_trajectories", "particles", "target_noise"),
)
#: Where all trajectories count alike they were those of a set that holds nothing but the uniform distribution.
_ALIKE = {"trajectory_set": "cvar", "trajectory_level": 1.0, "weigh": "trajectories"}


def format3_hashes(config: Config) -> set[str]:
    """The hashes that these settings may have had in format 3: of inputs that are not scaled, it had two spellings."""
    flat = {**config.flat(), "world": config.env, "seed": 0}
    own = flat
    if config.row.learner == "policy_gradient":
        waiting = {"paper": 100, "tuned": 10}[config.preset]
        own = {**_ALIKE, "level_iterations": waiting, **flat}
        inner = {name: own[name] for name in _POLICY}
        unread = _FIELDS
    else:
        inner = written(config.estimator)
        if config.row.estimator == "kalman":
            inner |= DROPPED
        unread = {**_FIELDS, **(_TUNED if config.preset == "tuned" else {})}
    fields = {name: flat.get(name, value) for name, value in unread.items()} | {"estimator": inner}
    scale = flat["input_scale"]
    spellings = [scale, ()] if set(scale) == {1.0} else [scale]
    texts = [json.dumps({"format": 3, **fields, "input_scale": one}, indent=2) + "\n" for one in spellings]
    return {hashlib.sha256(text.encode()).hexdigest()[:12] for text in texts}


def stored_rows() -> Iterator[tuple[Path, Comparison, Any]]:
    """The files of results, the comparisons in each, and the table of each in the file."""
    results, filters, systems = (DOCS / name / f"{name}.json" for name in ("results", "kalman", "table1"))
    found = {path: json.loads(path.read_text()) for path in (results, filters, systems)}
    tables = {"tuned": found[results]["agents"], **found[results]["studies"]}
    for comparison in paper.comparisons(seeds=20, preset="tuned", full=True, episodes=500):
        yield results, comparison, (found[results], tables[comparison.name])
    kalman = [make(20, 500) for make in (plan.structures, plan.exploration, plan.confidence, plan.warm_start)]
    for comparison in (*kalman, plan.nominal_filter(20, 500), plan.structure_tuning(500)):
        yield filters, comparison, (found[filters], found[filters]["tables"][comparison.name])
    for comparison in (plan.beliefs(10, 500), plan.policies(10, 500), plan.belief_tuning(500)):
        yield systems, comparison, (found[systems], found[systems]["tables"][comparison.name])


def check(write: bool) -> int:
    """Checks every row, writes the present hashes if told to, and returns the number of rows."""
    rows = 0
    for path, group in itertools.groupby(stored_rows(), key=lambda each: each[0]):
        content: Any = None
        for _, comparison, (whole, table) in group:
            content = whole
            for row in comparison.rows:
                config, stored = row.config(0), table[row.name]
                trained = stored.get("settings_3", stored["settings"])
                if trained not in format3_hashes(config) and stored["settings"] != config.digest():
                    raise DeeprokError(f"{path}: {comparison.name}, {row.name} was trained with other settings")
                rows += 1
                if write and trained in format3_hashes(config):
                    stored |= {"settings": config.digest(), "settings_3": trained}
        if write:
            write_json(path, content)
    return rows


if __name__ == "__main__":
    print(f"{check('--write' in sys.argv[1:])} rows: the settings are those that they were trained with")
