"""The guard: how often it alarms inside the box, how soon outside, and how long a check takes.

    python benchmarks/guard.py

On each of three systems, of which one is a stateful simulator of Gymnasium, a short run of Deep-RoK is trained. Its
policy is deployed on simulated systems, with the noise that a guard assumes when none is given, and its posterior says
how uncertain Q is. A deployment has so many steps as the task says, in as many episodes as they take. Inside the box,
half of the systems are corners of it. Outside, one parameter is beyond the end of its range by a share of the range's
width, and the others are in the middle. Times are those of the processor, so that what else runs on the machine does
not count, and Python's garbage collector passes over what was there before the first check. Writes `guard.json`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import deeprok
from deeprok.environments.base import Environment, in_jax
from deeprok.environments.host import HostEnvironment, model_of
from deeprok.environments.rollout import begin_episodes, rollout
from deeprok.evaluation.guard.noise import with_noise

FALSE_ALARM = 0.01
DISTANCES = (0.1, 0.25, 0.5, 1.0, 2.0)


class Task(NamedTuple):
    """An environment, the box that a policy is for, and the parameter by which systems leave it."""

    env: str
    box: dict[str, tuple[float, float]]
    leaves: str
    episodes: int  # of the training
    steps: int  # of a deployment
    step_time: float  # seconds


CART_POLE = {"pole_length": (0.4, 0.7), "cart_mass": (1.0, 2.0)}
TASKS = (
    Task("cartpole", CART_POLE, "pole_length", 150, 200, 0.02),
    Task("swing_up", {"torque": (1.5, 2.5), "length": (0.8, 1.2)}, "torque", 40, 200, 0.05),
    Task("CartPole-v1", CART_POLE, "pole_length", 60, 50, 0.02),
)


class Steps(NamedTuple):
    """The steps of a deployment."""

    obs: np.ndarray  # [T, D]
    action: np.ndarray  # [T]
    next_obs: np.ndarray  # [T, D]
    first: np.ndarray  # [T] bool, whether an episode begins


def trained(task: Task) -> deeprok.Run:
    """A short run with a small network."""
    small: dict[str, Any] = {"episodes": task.episodes, "hidden": (16,), "horizon": 200}
    with tempfile.TemporaryDirectory() as folder:
        run: deeprok.Run = deeprok.train(
            deeprok.make_config("deep_rok", "tuned", env=task.env, box=task.box, **small), Path(folder) / "run", jobs=1
        )
    return run


def simulate(
    task: Task, run: deeprok.Run, guard: deeprok.Guard, systems: list[dict[str, float]], seed: int
) -> Iterator[Steps]:
    """A deployment on each system, with the noise that the guard assumes."""
    noisy = with_noise(run.env, guard.noise)
    if isinstance(noisy, HostEnvironment):
        yield from _simulate_host(task, run, noisy, systems, seed)
    else:
        yield from _simulate_in_jax(task, run, in_jax(noisy, "this"), systems, seed)


def _simulate_in_jax(
    task: Task, run: deeprok.Run, noisy: Environment, systems: list[dict[str, float]], seed: int
) -> Iterator[Steps]:
    episodes, weights = task.steps // 8, jnp.asarray(run.weights)  # no episode is shorter

    @jax.jit
    def play(models: Any, key: jax.Array) -> Any:
        start_key, step_key = jax.random.split(key)
        params, start = begin_episodes(noisy, models, start_key)
        return rollout(
            noisy,
            lambda t, obs: (noisy.actions.choose(run.network.apply(weights, obs)), None),
            params,
            start,
            noisy.horizon,
            lambda t: jax.random.split(jax.random.fold_in(step_key, t), episodes),
            lambda step: (step.obs, step.action, step.next_obs, step.alive),
        )[1]

    for i, system in enumerate(systems):
        models = {name: jnp.full(episodes, value, float) for name, value in system.items()}
        obs, action, next_obs, alive = map(np.asarray, play(models, jax.random.key(seed + i)))
        e, t = np.argwhere(alive.T)[: task.steps].T  # episode and step
        yield Steps(obs[t, e], action[t, e], next_obs[t, e], t == 0)


def _simulate_host(
    task: Task, run: deeprok.Run, noisy: HostEnvironment, systems: list[dict[str, float]], seed: int
) -> Iterator[Steps]:
    simulator = noisy.make()
    for i, system in enumerate(systems):
        rows: list[tuple[Any, ...]] = []
        episode = 0
        while len(rows) < task.steps:
            obs = simulator.reset(1000 * (seed + i) + episode, model_of(noisy, system))
            episode += 1
            for t in range(min(noisy.horizon, task.steps - len(rows))):
                action = run.act(obs)
                outcome = simulator.step(action)
                rows.append((obs, action, outcome.obs, t == 0))
                obs = outcome.obs
                if outcome.terminated:
                    break
        yield Steps(*(np.array(column) for column in zip(*rows, strict=True)))


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
    begin = time.process_time()
    run = trained(task)
    guard = run.guard(FALSE_ALARM)
    gc.collect()
    gc.freeze()
    played = simulate(task, run, guard, inside(task, deployments, 0), 0)
    found = [deploy(guard, steps) for steps in played]
    alarms = sum(bool(one.by) for one in found)
    beyond = {}
    for k, distance in enumerate(DISTANCES):
        played = simulate(task, run, guard, [outside(task, distance)] * each, 10_000 * (k + 1))
        there = [deploy(guard, steps) for steps in played]
        soon = sorted(one.steps for one in there if one.by)
        beyond[str(distance)] = {
            "alarms": len(soon),
            "by_parameters": sum(one.by == "parameters" for one in there),
            "median": float(np.median(soon)) if soon else None,
            "last": soon[-1] if soon else None,
        }
    times = 1e6 * np.concatenate([one.times for one in found])
    gc.unfreeze()
    steps = sum(one.steps for one in found)
    hours = steps * task.step_time / 3600
    return {
        "env": task.env,
        "episodes": task.episodes,
        "step_time": task.step_time,
        "steps_each": task.steps,
        "box": task.box,
        "leaves": task.leaves,
        "noise": {"process": guard.noise.process, "sensor": guard.noise.sensor},
        "deployments": len(found),
        "steps": steps,
        "hours": hours,
        "alarms": alarms,
        "alarms_per_hour": alarms / hours,
        # One-sided, by Poisson's distribution.
        "at_most_per_hour": float(stats.chi2.ppf(0.95, 2 * (alarms + 1)) / 2 / hours),
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
        "core_seconds": time.process_time() - begin,
    }


def tables(stored: dict[str, Any]) -> str:
    """The results as two tables in Markdown."""
    inside = [
        "| environment | box | deployments in it | steps, of | hours | false alarms | an hour (95 % bound) |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    outside = [
        f"| steps to the alarm | {' | '.join(f'{100 * float(d):g} % outside' for d in DISTANCES)} |",
        "|---|" + "---:|" * len(DISTANCES),
    ]
    for env, row in stored["rows"].items():
        ranges = ", ".join(f"`{name}={low:g}:{high:g}`" for name, (low, high) in row["box"].items())
        inside.append(
            f"| `{env}` | {ranges} | {row['deployments']} | {row['steps']}, {row['step_time']:g} s "
            f"| {row['hours']:.2f} | {row['alarms']} "
            f"| {row['alarms_per_hour']:.2g} (at most {row['at_most_per_hour']:.2g}) |"
        )
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
            print(json.dumps(rows[task.env], indent=1), flush=True)
            ordered = {task.env: rows[task.env] for task in TASKS if task.env in rows}
            path.write_text(json.dumps({"false_alarm": FALSE_ALARM, "rows": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
