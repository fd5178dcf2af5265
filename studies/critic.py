"""The critic of a policy gradient: linear features, a network by Adam, or a network by the extended Kalman filter.

The last is the idea of KOVA (S. Di-Castro Shashua and S. Mannor, "Kalman meets Bellman: improving policy evaluation
through value tracking", 2020, arXiv:2002.07171). All else is equal: models, episodes, the policy's own updates.
"""

from __future__ import annotations

import json
import statistics as plain_statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from deeprok.agents.clock import Clock
from deeprok.agents.learner import PlaysTrajectories
from deeprok.agents.policy.critic import explained_variance
from deeprok.agents.policy.gradient import make_critic
from deeprok.agents.policy.steps import returns_to_go
from deeprok.environments.base import in_jax
from deeprok.environments.rollout import play_trajectories
from deeprok.evaluation.grid import evaluate
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training.loop import templates
from deeprok.training.scan import make_program
from studies import critic_page
from studies.engine import Done, Found, Options, Run, Session, Study, numbers_file, prepare, runs_of, train, write_json
from studies.exam import Exam
from studies.measured import scores
from studies.plan import TUNING_SEEDS, Comparison, Row
from studies.screening import EPSILONS, case_of, cells_episodes
from studies.statistics import episodes_to

ALGORITHM = "pg"
CRITICS = ("linear", "adam", "kalman")
#: What differs from the preset `tuned` on each environment, whatever the critic. With tuned's discount of 0.99 a car
#: that never moves loses less than one that leaves the road.
ENVS: dict[str, dict[str, Any]] = {
    "cartpole": {"episodes": 1800},
    "swing_up": {"episodes": 6000},
    "road": {"episodes": 4800, "discount": 0.999, "entropy": 0.1},
}
#: Return on the held-out models of the box that a run is to reach.
REACHED = {"cartpole": 190.0, "swing_up": 30.0, "road": -0.5}
#: The one setting of each critic that is tuned, and as many values for each.
TRIALS: dict[str, tuple[str, tuple[float, ...]]] = {
    "adam": ("critic_rate", (3e-4, 1e-3, 3e-3)),
    "kalman": ("critic_noise", (0.03, 0.1, 0.3)),
}
_FIRST_SEED = 1  # seed 0 of swing_up was looked at when the critics' other numbers were chosen
_FRESH_SEED = 2000  # of the trajectories that a finished critic is examined on
_TIMED = 10  # iterations

# How long parts of the work take, in seconds on one core. Only their ratios count, for the time left.
_TRAINING = {"linear": 10.0, "adam": 14.0, "kalman": 22.0}
_EXAM = 2.0
_TIMING = 60.0


def changes_of(env: str, critic: str, value: float | None = None) -> dict[str, Any]:
    """Settings of a row that differ from the preset; `value` is that of the critic's tuned setting."""
    own = {} if value is None else {TRIALS[critic][0]: value}
    return {"env": env, **ENVS[env], **({} if critic == "linear" else {"critic": critic}), **own}


def comparison(name: str, env: str, critic: str, value: float | None, seeds: Sequence[int]) -> Comparison:
    """Runs of one critic on one environment."""
    label = f"{env}/{critic}" + ("" if value is None else f"-{value:g}")
    return Comparison(name, [Row(label, ALGORITHM, "tuned", changes_of(env, critic, value))], seeds, Exam(0))


def inset(axes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Models further inside than those of a grid: three values of each parameter, a sixth of a range from its ends."""
    ends = {name: (float(np.min(values)), float(np.max(values))) for name, values in axes.items()}
    return {name: low + (high - low) * np.array([1, 3, 5]) / 6 for name, (low, high) in ends.items()}


# --- what is measured of a run ------------------------------------------------------------------------------


def critic_measures(config: Config) -> Callable[[Any, jax.Array], dict[str, jax.Array]]:
    """A function of a learner's state and a key: how good its critic is on fresh trajectories of its policy.

    `explained` is the share of the variance of the returns that V explains, `deviation` the mean standard deviation of
    V, of a critic that has one.
    """
    task, learner = config.task(), config.make_learner()
    critic = make_critic(config.learner, task.env.observation_scale)
    plays = learner.plays
    assert isinstance(plays, PlaysTrajectories)

    def measures(agent: Any, key: jax.Array) -> dict[str, jax.Array]:
        models_key, adapt_key, play_key, some_key = jax.random.split(key, 4)
        state, drawn = plays.models(agent, jnp.stack([models_key, adapt_key]), jnp.int32(0))
        models = {name: jnp.tile(values, plays.trajectories // len(values)) for name, values in drawn.items()}
        clock = Clock(jnp.int32(0), 1.0)

        def act(noise: Any, obs: jax.Array) -> Any:
            return learner.act(state, noise, obs, clock)

        played = play_trajectories(in_jax(task.env, "the study"), act, models, play_key, learner.draw)
        share = jnp.where(played.alive, 1.0, 0.0) / jnp.sum(played.alive)
        x = critic.inputs(played.obs)
        goal = returns_to_go(played.reward, task.discount)
        found = {"explained": explained_variance(critic.value(state.baseline, x), goal, share)}
        if critic.deviation:
            found["deviation"] = critic.deviation(state.baseline, x, share, some_key)
        return found

    return jax.jit(measures)


def examined(its: Sequence[Run], env: str, episodes: int) -> dict[str, dict[str, Any]]:
    """What is reported of trained runs of one row: seed -> the scores at each ε, the critic's measures, the pace."""
    folders = [str(run.folder) for run in its]
    by_seed: dict[str, dict[str, Any]] = {str(run.seed): {"scores": {}} for run in its}
    for epsilon in EPSILONS:
        result = evaluate(folders, case_of(env).axes, episodes, epsilon, keep="last")
        for one in result.per_seed:
            by_seed[str(one.seed)]["scores"][f"{epsilon:g}"] = scores(one.mean_return, one.success)
    config = its[0].row.config(its[0].seed)
    template, measures = templates(make_program(config))[0].agent, critic_measures(config)
    for run in its:
        agent = checkpoint.load(run.folder / runs.CHECKPOINT, "run.agent", template)
        of_critic = measures(agent, jax.random.key(_FRESH_SEED + run.seed))
        trials = [line for line in runs.read_metrics(run.folder) if "trial_return" in line]
        curve = ([line["episodes"] for line in trials], [line["trial_return"] for line in trials])
        by_seed[str(run.seed)] |= {name: float(number) for name, number in of_critic.items()}
        by_seed[str(run.seed)]["reached"] = episodes_to(REACHED[env], *curve)
    return by_seed


def tried(its: Sequence[Run], env: str, episodes: int) -> dict[str, float]:
    """The score that a setting is chosen by: seed -> mean return over models further inside the box."""
    axes = inset(case_of(env).axes)
    result = evaluate([str(run.folder) for run in its], axes, episodes, EPSILONS[0], keep="last")
    return {str(one.seed): one.overall.mean_return for one in result.per_seed}


def seconds(env: str, iterations: int = _TIMED) -> dict[str, float]:
    """Seconds of an iteration with each critic: the median of some, in turns, so that all share the machine's moods."""
    programs, states, times = {}, {}, {critic: list[float]() for critic in CRITICS}
    for critic in CRITICS:
        program = make_program(make_config(ALGORITHM, "tuned", **changes_of(env, critic)))
        first = jax.tree.map(lambda leaf: leaf[None], program.init(jax.random.key(0)))
        programs[critic] = program
        states[critic] = jax.block_until_ready(program.advance(first, 0)[0])
    for index in range(1, iterations + 1):
        for critic, program in programs.items():
            begin = time.perf_counter()
            states[critic] = jax.block_until_ready(program.advance(states[critic], index)[0])
            times[critic].append(time.perf_counter() - begin)
    return {critic: plain_statistics.median(its) for critic, its in times.items()}


# --- the study ------------------------------------------------------------------------------------------


def best_value(trials: Mapping[str, Mapping[str, Any]], seeds: int) -> float | None:
    """The value of a setting with the best mean score, of those with which no seed diverged; None if there is none."""
    means = {
        float(value): float(np.mean(list(its["seeds"].values())))
        for value, its in trials.items()
        if len(its["seeds"]) == seeds
    }
    return max(means, key=means.__getitem__) if means else None


def measure(options: Options, path: Path, done: Done, envs: Sequence[str] = tuple(ENVS)) -> Found:
    """Tunes, trains and examines what is missing, and stores each row as soon as it is finished.

    Args:
      options: seeds, episodes, folder and processes.
      path: the JSON file; what it holds, of the same settings, is not done again.
      done: called with what is being done and how much of the work it was.
      envs: environments.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    episodes = cells_episodes(options.episodes)
    same = stored.get("episodes") == episodes
    found: Found = {
        "format": 1,
        "command": f"deeprok reproduce --study critic --seeds {options.seeds}",
        "episodes": episodes,
        "epsilons": list(EPSILONS),
        "environments": {env: {**ENVS[env], "reached": REACHED[env]} for env in envs},
        "seconds": {env: stored["seconds"][env] for env in envs if env in stored.get("seconds", {})},
        # What was measured before stays, also if this call is interrupted before it comes to that row.
        "tuning": {env: stored.get("tuning", {}).get(env, {}) if same else {} for env in envs},
        "rows": {env: stored.get("rows", {}).get(env, {}) if same else {} for env in envs},
    }
    for env in envs:
        for critic in CRITICS:
            value = None
            if critic in TRIALS:
                trials = found["tuning"][env].setdefault(critic, {})
                for tested in TRIALS[critic][1]:
                    its = comparison("critic-tuning", env, critic, tested, TUNING_SEEDS)
                    trials[f"{tested:g}"] = _measured(options, trials.get(f"{tested:g}"), its, episodes, tried, done)
                    write_json(path, found)
                value = best_value(trials, len(TUNING_SEEDS))
            its = comparison("critic", env, critic, value, range(_FIRST_SEED, _FIRST_SEED + options.seeds))
            row = _measured(options, found["rows"][env].get(critic), its, episodes, examined, done)
            found["rows"][env][critic] = row | {"value": value}
            write_json(path, found)
        if env not in found["seconds"]:
            found["seconds"][env] = seconds(env)
        done(f"{env}: seconds", _TIMING)
        write_json(path, found)
    return found


def _measured(
    options: Options, before: Mapping[str, Any] | None, its: Comparison, episodes: int, examine: Any, done: Done
) -> dict[str, Any]:
    """A row with what was measured before of the same settings, and what was missing."""
    row = its.rows[0]
    env, critic = row.changes["env"], row.changes.get("critic", "linear")
    settings, what = row.config(0).digest(), f"{its.name}: {row.name}"
    kept = before if before and before["settings"] == settings else {"seeds": {}, "diverged": []}
    found: dict[str, Any] = {
        "settings": settings,
        "seeds": dict(kept["seeds"]),
        "diverged": list(kept["diverged"]),
    }
    missing = [run for run in runs_of(options.out, its) if str(run.seed) not in found["seeds"]]
    done(what, (len(its.seeds) - len(missing)) * (_TRAINING[critic] + _EXAM))
    if missing:
        prepare(options.out, missing)
        train(what, missing, options, _silent, Console(stderr=True))
        done(what, len(missing) * _TRAINING[critic])
        finished = [run for run in missing if run.finished]
        found["seeds"] |= examine(finished, env, episodes) if finished else {}
        found["diverged"] = sorted({*found["diverged"], *(r.seed for r in missing)} - {r.seed for r in finished})
        done(what, len(missing) * _EXAM)
    return found


def _silent(what: str, work: float) -> None:
    """The bar counts rows, not chunks."""


def _collect(session: Session) -> Found:
    return measure(session.options, numbers_file(STUDY, session.options.out / "report"), session.done)


def _work(options: Options) -> float:
    trials = {critic: len(values) * len(TUNING_SEEDS) for critic, (_, values) in TRIALS.items()}
    of_env = sum((options.seeds + trials.get(critic, 0)) * (_TRAINING[critic] + _EXAM) for critic in CRITICS)
    return len(ENVS) * (of_env + _TIMING)


STUDY = Study(
    "critic",
    "critics of policy gradients: linear, Adam's or the filter's",
    compare=lambda _: [],
    collect=_collect,
    page=critic_page.page,
    figures=critic_page.figures,
    tables=critic_page.short_tables,
    more_work=_work,
)
