"""Deep exploration: bsuite's deep sea, with one-hot observations and a random action map for every seed.

A run is solved when less than 90 % of its episodes so far were bad, as in bsuite's figures: when the treasure was found
in more than a tenth of them. What happens afterwards does not matter, so that seeds are trained side by side until all
of them have solved it or the budget is used up. An agent whose seeds all fail at a depth is not taken deeper.

I. Osband et al., "Behaviour suite for reinforcement learning", ICLR, 2020, arXiv:1908.03568.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core import cache
from deeprok.environments.deep_sea import deep_sea, exchanged_actions
from deeprok.runs.settings import Config, make_config
from deeprok.training.scan import Driver, make_driver
from studies import deep_sea_page
from studies.engine import Done, Found, Options, Session, Study, numbers_file, write_json

DEPTHS = (10, 15, 20, 25, 30, 40, 50)
#: Episodes of a run, at most.
EPISODES = 3000
#: Settings are chosen at the least depth, with other seeds and maps than those that are reported.
TUNING_EPISODES = 2000
TUNING_SEEDS = (1000, 1001, 1002)

#: The share of episodes with the treasure above which a run is solved.
SOLVED = 0.1

#: What all agents have in common.
_SHARED: dict[str, Any] = {
    "env": "deep_sea",
    "observation": "one_hot",
    "action_map": "random",
    "acting": "nominal",
    "discount": 0.99,
    "hidden": (20,),
    "batch_size": 32,
    "replay_size": 10_000,
    "warm_up": 100,
    "train_every": 2,
    "target_period": 40,
    "snapshot_every": 0,
    "models": 1,
}
#: What each agent has for itself.
AGENTS: dict[str, dict[str, Any]] = {
    "dqn": {"epsilon_start": 1.0, "epsilon_end": 0.02},
    "ekf_dqn": {"explore": "thompson", "covariance": "diagonal", "process_noise": 0.0, "batch_size": 16},
    "boot_dqn": {"members": 10, "learning_rate": 1e-3},
}
#: Trials of each agent, equally many.
TRIALS: dict[str, list[dict[str, Any]]] = {
    "dqn": [{"epsilon_fraction": f, "learning_rate": rate} for f in (0.25, 1.0) for rate in (1e-3, 3e-3)],
    "ekf_dqn": [{"prior_covariance": p, "observation_noise": r} for p in (0.1, 0.3) for r in (0.0003, 0.001)],
    "boot_dqn": [{"prior_scale": scale, "mask": mask} for scale in (3.0, 10.0) for mask in (0.5, 1.0)],
}
#: The filter's prior covariance is the scale of its weights. Gradients want inputs of mean square one, which a single 1
#: among N² entries has if it is multiplied by N.
_SCALED = ("dqn", "boot_dqn")

# How long an episode of one seed takes, in seconds on one core at depth 10; it grows with the third power of the depth.
# Only ratios count, for the time left.
_WORK = {"dqn": 0.0005, "ekf_dqn": 0.001, "boot_dqn": 0.002}


def make(agent: str, depth: int, episodes: int, changes: Mapping[str, Any]) -> Config:
    """The settings of an agent; seeds have other seeds and action maps."""
    scale = {"input_scale": (float(depth),)} if agent in _SCALED else {}
    # Twenty episodes a chunk, after each of which it is seen who has solved it.
    own = {"horizon": depth, "episodes": episodes, "chunk_steps": 20 * depth, **AGENTS[agent], **scale, **changes}
    return make_config(agent, "tuned", **{**_SHARED, **own})


def solved_after(found: np.ndarray) -> int | None:
    """The first episode after which the treasure was found in more than a tenth of all; None if there is none.

    Args:
      found: [E] bool, whether each episode found it.
    """
    reached = np.flatnonzero(np.cumsum(found) > SOLVED * np.arange(1, len(found) + 1))
    return int(reached[0]) + 1 if len(reached) else None


def dive(config: Config, seeds: Sequence[int], advance: Callable[[float], None]) -> dict[str, dict[str, Any]]:
    """Trains seeds side by side, each with an action map of its own.

    Args:
      config: the settings.
      seeds: the seeds, of the runs and of their maps.
      advance: called with the share of the work done since its last call.

    Returns:
      Of each seed: when it first found the treasure, when it had solved it, and whether its weights are still numbers.
    """
    depth, part = config.environment.horizon, config.parts.learner

    def driver(exchanged: jax.Array) -> Driver:
        env = deep_sea(depth, "one_hot", "random", exchanged=exchanged)
        task = config.task()._replace(env=env)
        return make_driver(task, part.make(task))

    options = {"xla_cpu_multi_thread_eigen": False}  # as every training
    init = jax.jit(jax.vmap(lambda exchanged, key: driver(exchanged).init(key)))
    chunk = jax.jit(
        jax.vmap(lambda exchanged, run, index: driver(exchanged).chunk(run, index), (0, 0, None)),
        donate_argnums=1,
        compiler_options=options,
    )
    maps = jnp.asarray(np.stack([exchanged_actions(depth, seed) for seed in seeds]))
    states = init(maps, jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32)))
    returns: list[list[float]] = [[] for _ in seeds]
    chunks = -(-config.episodes * depth // config.learner.chunk_steps)
    reached: list[int | None] = [None for _ in seeds]
    for index in range(chunks):
        states, log = chunk(maps, states, index)
        ended, earned = np.asarray(log.ended), np.asarray(log.earned)
        for its, over, what in zip(returns, ended, earned, strict=True):
            its.extend(what[over])
        reached = [solved_after(np.array(its) > 0.5) for its in returns]
        advance(1.0 / chunks)
        if None not in reached:
            advance(1.0 - (index + 1) / chunks)
            break
    mean = config.make_learner().view.mean
    finite = np.isfinite(np.asarray(jax.vmap(mean)(states.agent.belief))).all(axis=1)
    wins = [np.flatnonzero(np.array(its) > 0.5) for its in returns]
    return {
        str(seed): {"first": int(when[0]) + 1 if len(when) else None, "solved": after, "diverged": not sound}
        for seed, when, after, sound in zip(seeds, wins, reached, finite.tolist(), strict=True)
    }


def merit(trial: Mapping[str, Any], episodes: int) -> float:
    """The mean number of episodes that seeds took, where one that has not solved it counts as twice the budget."""
    return float(np.mean([its["solved"] or 2 * episodes for its in trial["seeds"].values()]))


def measure(options: Options, path: Path, done: Done, depths: Sequence[int] = DEPTHS) -> Found:
    """Trains what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds and folder.
      path: the JSON file; seeds that it holds, of the same settings, are not trained again.
      done: called with what is being done and how much of the work it was.
      depths: the depths, of which the first is that of the trials.
    """
    cache.enable_if_asked()
    stored = json.loads(path.read_text()) if path.exists() else {}
    known = {its["settings"]: its["seeds"] for its in _rows_of(stored)}
    found: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study deep_sea --seeds {options.seeds}",
        "episodes": EPISODES,
        "tuning": {"depth": depths[0], "episodes": TUNING_EPISODES, "trials": {agent: [] for agent in AGENTS}},
        "shared": _SHARED,
        "agents": AGENTS,
        "chosen": {},
        "rows": {agent: {} for agent in AGENTS},
    }

    def row(what: str, agent: str, depth: int, episodes: int, changes: Mapping[str, Any], seeds: Sequence[int]) -> Any:
        config = make(agent, depth, episodes, changes)
        its: dict[str, Any] = {
            "settings": config.digest(),
            "changes": dict(changes),
            "seeds": dict(known.get(config.digest(), {})),
        }
        missing = [seed for seed in seeds if str(seed) not in its["seeds"]]
        work = _work_of(agent, depth, episodes)
        done(what, work * (len(seeds) - len(missing)))
        if missing:
            its["seeds"] |= dive(config, missing, lambda share: done(what, share * work * len(missing)))
        return its

    for agent, trials in TRIALS.items():
        for changes in trials:
            its = row(f"trials: {agent}", agent, depths[0], TUNING_EPISODES, changes, TUNING_SEEDS)
            found["tuning"]["trials"][agent].append(its)
            write_json(path, found | {"kept": _others(stored, found)})
        best = min(found["tuning"]["trials"][agent], key=lambda trial: merit(trial, TUNING_EPISODES))
        found["chosen"][agent] = best["changes"]
    able = set(AGENTS)
    for depth in depths:
        for agent in AGENTS:
            if agent not in able:
                done(f"depth {depth}: {agent}", options.seeds * _work_of(agent, depth, EPISODES))
                continue
            its = row(f"depth {depth}: {agent}", agent, depth, EPISODES, found["chosen"][agent], range(options.seeds))
            found["rows"][agent][str(depth)] = its
            write_json(path, found | {"kept": _others(stored, found)})
            if not any(one["solved"] for one in its["seeds"].values()):
                able.remove(agent)
    return found


def _rows_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every row that was measured."""
    trials = [its for trials in found.get("tuning", {}).get("trials", {}).values() for its in trials]
    rows = [its for depths in found.get("rows", {}).values() for its in depths.values()]
    return [*trials, *rows, *found.get("kept", [])]


def _others(stored: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows measured before that this call has not come to yet, so that none is lost if it is interrupted."""
    here = {its["settings"] for its in _rows_of(found)}
    return [its for its in _rows_of(stored) if its["settings"] not in here]


def _work_of(agent: str, depth: int, episodes: int) -> float:
    return _WORK[agent] * (depth / 10) ** 3 * episodes


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    trials = sum(
        len(TRIALS[agent]) * len(TUNING_SEEDS) * _work_of(agent, DEPTHS[0], TUNING_EPISODES) for agent in AGENTS
    )
    return trials + options.seeds * sum(_work_of(agent, depth, EPISODES) for agent in AGENTS for depth in DEPTHS)


STUDY = Study(
    "deep_sea",
    "deep exploration: bsuite's deep sea, by its depth",
    compare=lambda _: [],
    collect=_collect,
    page=deep_sea_page.page,
    figures=deep_sea_page.figures,
    tables=deep_sea_page.short_tables,
    more_work=_work,
)
