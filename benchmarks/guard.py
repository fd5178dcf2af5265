"""The guard: how often it alarms inside the box, how soon outside, and how long a check takes.

    python benchmarks/guard.py

In each of two environments a simple policy is deployed on simulated systems, with the noise that a guard assumes when
none is given. The size of the observation stands in for the standard deviation of Q, so that both sources of evidence
are at work without an agent to train. A deployment has 400 steps, in as many episodes as they take. Inside the box,
half of the systems are corners of it. Outside, one parameter is beyond the end of its range by a share of the range's
width, and the others are in the middle. Times are those of the processor, so that what else runs on the machine does
not count. Writes `guard.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import deeprok
from deeprok.environments.base import Environment, in_jax
from deeprok.environments.rollout import begin_episodes, rollout
from deeprok.evaluation.guard import make_guard
from deeprok.evaluation.guard.noise import with_noise

STEPS = 400
FALSE_ALARM = 0.01
DISTANCES = (0.1, 0.25, 0.5, 1.0, 2.0)


class Task(NamedTuple):
    """An environment, the box that a policy is for, and the parameter by which systems leave it."""

    env: str
    box: dict[str, tuple[float, float]]
    leaves: str
    greedy: Callable[[jax.Array], jax.Array]  # obs [E, D] -> actions [E]


TASKS = (
    Task(
        "cartpole",
        {"pole_length": (0.4, 0.7), "cart_mass": (1.0, 2.0)},
        "pole_length",
        lambda obs: (obs @ jnp.array([0.0217, 0.0464, 1.0, 0.1881], obs.dtype) > 0).astype(jnp.int32),
    ),
    Task(  # which swings ever higher
        "swing_up",
        {"torque": (1.5, 2.5), "length": (0.8, 1.2)},
        "torque",
        lambda obs: jnp.where(obs[:, 2] > 0, 2, 0),
    ),
)


class Steps(NamedTuple):
    """The steps of a deployment."""

    obs: np.ndarray  # [T, D]
    action: np.ndarray  # [T]
    next_obs: np.ndarray  # [T, D]
    first: np.ndarray  # [T] bool, whether an episode begins


def guarded(task: Task) -> tuple[Environment, deeprok.Guard]:
    """The environment of a task, and a guard for its policy."""
    settings = deeprok.make_config("deep_rok", env=task.env, box=task.box)
    env = in_jax(settings.make_env(), "this benchmark")

    @jax.jit
    def values(obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = jnp.linalg.norm(obs / jnp.array(env.observation_scale, obs.dtype), axis=1)
        return (jnp.repeat(size[:, None], len(env.actions), axis=1),) * 2

    return env, make_guard(settings, env, task.greedy, values, FALSE_ALARM, None, None, None)


def simulate(
    task: Task, env: Environment, guard: deeprok.Guard, systems: list[dict[str, float]], seed: int
) -> Iterator[Steps]:
    """A deployment on each system, with the noise that the guard assumes."""
    noisy, episodes = with_noise(env, guard.noise), 20  # of each system; most need a few

    @jax.jit
    def play(models: Any, key: jax.Array) -> Any:
        start_key, step_key = jax.random.split(key)
        params, start = begin_episodes(noisy, models, start_key)
        return rollout(
            noisy,
            lambda t, obs: (task.greedy(obs), None),
            params,
            start,
            noisy.horizon,
            lambda t: jax.random.split(jax.random.fold_in(step_key, t), episodes),
            lambda step: (step.obs, step.action, step.next_obs, step.alive),
        )[1]

    for i, system in enumerate(systems):
        models = {name: jnp.full(episodes, value, float) for name, value in system.items()}
        obs, action, next_obs, alive = map(np.asarray, play(models, jax.random.key(seed + i)))
        e, t = np.argwhere(alive.T)[:STEPS].T  # episode and step
        yield Steps(obs[t, e], action[t, e], next_obs[t, e], t == 0)


class Deployment(NamedTuple):
    """What a guard said."""

    steps: int  # until the alarm, or all
    by: str  # what raised it, parameters or uncertainty; empty without an alarm
    times: list[float]  # seconds of each check


def deploy(guard: deeprok.Guard, steps: Steps) -> Deployment:
    """Lets a guard watch a deployment until it alarms."""
    guard.reset(forget=True)
    times = []
    for obs, action, next_obs, first in zip(*steps, strict=True):
        if first:
            guard.reset()
        begin = time.process_time()
        said = guard.check(obs, action, next_obs)
        times.append(time.process_time() - begin)
        if said.alarm:
            by = "parameters" if said.parameters >= said.threshold else "uncertainty"
            return Deployment(len(times), by, times)
    return Deployment(len(times), "", times)


def inside(task: Task, count: int, seed: int) -> list[dict[str, float]]:
    """Systems of the box, of which the first half are corners."""
    corners = [dict(zip(task.box, ends, strict=True)) for ends in itertools.product(*task.box.values())]
    draws = np.random.default_rng(seed)
    return [
        corners[i % len(corners)] if i < count // 2 else {name: draws.uniform(*ends) for name, ends in task.box.items()}
        for i in range(count)
    ]


def outside(task: Task, distance: float) -> dict[str, float]:
    """A system beyond the upper end of a range by so many of its widths."""
    system = {name: (low + high) / 2 for name, (low, high) in task.box.items()}
    low, high = task.box[task.leaves]
    return system | {task.leaves: high + distance * (high - low)}


def measure(task: Task, deployments: int, each: int) -> dict[str, Any]:
    """What is measured in an environment.

    Args:
      task: the environment and its box.
      deployments: how many inside the box.
      each: how many at each distance outside.
    """
    env, guard = guarded(task)
    played = simulate(task, env, guard, inside(task, deployments, 0), 0)
    found = [deploy(guard, steps) for steps in played]
    alarms = sum(bool(one.by) for one in found)
    beyond = {}
    for k, distance in enumerate(DISTANCES):
        played = simulate(task, env, guard, [outside(task, distance)] * each, 10_000 * (k + 1))
        there = [deploy(guard, steps) for steps in played]
        soon = sorted(one.steps for one in there if one.by)
        beyond[str(distance)] = {
            "alarms": len(soon),
            "by_parameters": sum(one.by == "parameters" for one in there),
            "median": float(np.median(soon)) if soon else None,
            "last": soon[-1] if soon else None,
        }
    times = 1e6 * np.concatenate([one.times for one in found])
    return {
        "env": task.env,
        "box": task.box,
        "leaves": task.leaves,
        "noise": {"process": guard.noise.process, "sensor": guard.noise.sensor},
        "deployments": len(found),
        "steps": sum(one.steps for one in found),
        "alarms": alarms,
        "alarms_by_uncertainty": sum(one.by == "uncertainty" for one in found),
        # One-sided: how many alarms would not be surprising at the stated rate.
        "p": float(stats.binomtest(alarms, len(found), FALSE_ALARM, alternative="greater").pvalue),
        "each": each,
        "outside": beyond,
        "microseconds": {
            "median": float(np.median(times)),
            "p99": float(np.quantile(times, 0.99)),
            "max": float(times.max()),
        },
    }


def tables(stored: dict[str, Any]) -> str:
    """The results as two tables in Markdown."""
    inside = ["| environment | box | deployments in it | steps | false alarms |", "|---|---|---:|---:|---:|"]
    outside = [
        f"| steps to the alarm | {' | '.join(f'{100 * float(d):g} % outside' for d in DISTANCES)} |",
        "|---|" + "---:|" * len(DISTANCES),
    ]
    for env, row in stored["rows"].items():
        ranges = ", ".join(f"`{name}={low:g}:{high:g}`" for name, (low, high) in row["box"].items())
        inside.append(f"| `{env}` | {ranges} | {row['deployments']} | {row['steps']} | {row['alarms']} |")
        cells = []
        for distance in DISTANCES:
            found = row["outside"][str(distance)]
            rare = "" if found["alarms"] == row["each"] else f", in {found['alarms']} of {row['each']}"
            cells.append(f"{found['median']:g}{rare}" if found["alarms"] else f"none in {row['each']}")
        outside.append(f"| `{env}`, `{row['leaves']}` | {' | '.join(cells)} |")
    return "\n".join([*inside, "", *outside])


def main() -> None:
    """Measures, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=[task.env for task in TASKS], help="environments; the others stay")
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--each", type=int, default=20)
    options = parser.parse_args()
    path = Path(__file__).with_suffix(".json")
    stored = json.loads(path.read_text()) if path.exists() else {}
    rows = stored.get("rows", {})
    for task in TASKS:
        if task.env in options.envs:
            rows[task.env] = measure(task, options.deployments, options.each)
            print(json.dumps(rows[task.env], indent=1))
    written = {"false_alarm": FALSE_ALARM, "steps": STEPS, "rows": rows}
    path.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
