"""A sweep on a thousand workers that fail, simulated: what is lost, and how much of it.

    python benchmarks/failing_workers.py

It follows what `deeprok sweep --executor ray` does. A trial saves a checkpoint every half minute. A task whose worker
or node dies is tried again, up to three times; after that the trial counts as failed until the same command is given
again. Where nodes see the sweep's folder, a trial goes on from its last checkpoint, elsewhere it begins anew. If the
driver dies, all tasks end with it, and the command is given again. No training runs here, and time is simulated.

Rates of failures were measured by others:

- nodes of 8 devices in a data centre: 419 unexpected interruptions in 54 days of 2,048 such nodes (A. Grattafiori et
  al., "The Llama 3 Herd of Models", 2024, section 3.3.4).
- preemptible nodes: these live for 24 hours at most (Google Cloud's documentation); here for a uniform share of them.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeprok.sweeps.on_ray import RETRIES
from deeprok.training.loop import CHECKPOINT_SECONDS

HOUR = 3600.0

#: `rng -> [] seconds` that something lives for.
Life = Callable[[np.random.Generator], float]


def exponential(mean: float) -> Life:
    """Failures that come at any time."""
    return lambda rng: float(rng.exponential(mean))


def uniform(longest: float) -> Life:
    """A life that ends at any time before its longest."""
    return lambda rng: float(rng.uniform(0.0, longest))


def forever(rng: np.random.Generator) -> float:
    """Nothing fails."""
    return math.inf


class Cluster(NamedTuple):
    """Where a sweep runs; times are in seconds.

    Attributes:
      nodes: machines.
      workers: tasks that each has room for.
      node_life: how long a node lives.
      driver_life: how long the driver lives.
      replaced_after: until there is another node in the place of a dead one.
      restarted_after: until somebody gives the command again.
      shared: whether nodes see the sweep's folder.
    """

    nodes: int = 125
    workers: int = 8
    node_life: Life = forever
    driver_life: Life = forever
    replaced_after: float = 600.0
    restarted_after: float = 600.0
    shared: bool = True


class Sweep(NamedTuple):
    """What is trained; times are in seconds.

    Attributes:
      trials: how many.
      work: training of each trial, without interruption.
      start_up: of a process, before it trains.
    """

    trials: int = 10_000
    work: float = HOUR
    start_up: float = 15.0


class Outcome(NamedTuple):
    """How a sweep went.

    Attributes:
      hours: from the first command to the last trial's end.
      finished: trials that came to their end.
      trained: hours of training that count: of each trial its work, once.
      lost: worker hours that were trained and then lost.
      node_deaths: how many nodes died.
      driver_deaths: how often the command had to be given again because the driver died.
      given_up: trials that died more often than a task is tried again, so that the command was given again for them.
    """

    hours: float
    finished: int
    trained: float
    lost: float
    node_deaths: int
    driver_deaths: int
    given_up: int


class _Task(NamedTuple):
    trial: int
    began: float  # training, after the start-up
    saved: float  # work that its checkpoint holds
    ends: float


def simulate(sweep: Sweep, cluster: Cluster, rng: np.random.Generator) -> Outcome:
    """Runs a sweep to its end, giving the same command again as long as trials are missing."""
    waiting = list(range(sweep.trials))[::-1]
    saved, tries = np.zeros(sweep.trials), np.zeros(sweep.trials, int)
    given_up: list[int] = []
    running: list[dict[int, _Task]] = [{} for _ in range(cluster.nodes)]
    alive = [True] * cluster.nodes
    life = [0] * cluster.nodes  # which node it is in its place, so that events of those before it are known as old
    events: list[tuple[float, int, str, int, int]] = []
    count = finished = node_deaths = driver_deaths = retold = 0
    lost = now = 0.0
    driver = True
    tasks = 0

    def at(time: float, kind: str, node: int = 0, number: int = 0) -> None:
        nonlocal count
        if time < math.inf:
            count += 1
            heapq.heappush(events, (time, count, kind, node, number))

    def fill(node: int) -> None:
        nonlocal tasks
        while driver and alive[node] and waiting and len(running[node]) < cluster.workers:
            trial, tasks = waiting.pop(), tasks + 1
            began = now + sweep.start_up
            ends = began + sweep.work - saved[trial]
            running[node][tasks] = _Task(trial, began, saved[trial], ends)
            at(ends, "end", node, tasks)

    def stop(task: _Task) -> None:
        """What remains of a trial whose process died."""
        nonlocal lost
        done = max(0.0, now - task.began)
        kept = CHECKPOINT_SECONDS * (done // CHECKPOINT_SECONDS) if cluster.shared else 0.0
        lost += done - kept
        saved[task.trial] = task.saved + kept

    def empty(node: int) -> list[int]:
        tasks = list(running[node].values())
        for task in tasks:
            stop(task)
        running[node].clear()
        return [task.trial for task in tasks]

    for node in range(cluster.nodes):
        at(cluster.node_life(rng), "death", node, life[node])
        fill(node)
    at(cluster.driver_life(rng), "driver")
    while finished < sweep.trials:
        now, _, kind, node, number = heapq.heappop(events)
        if kind == "end" and number in running[node]:
            del running[node][number]
            finished += 1
            fill(node)
        elif kind == "death" and number == life[node]:
            alive[node], node_deaths = False, node_deaths + 1
            life[node] += 1
            for trial in empty(node):
                tries[trial] += 1
                (given_up if tries[trial] > RETRIES else waiting).append(trial)
            at(now + cluster.replaced_after, "node", node)
        elif kind == "node":
            alive[node] = True
            at(now + cluster.node_life(rng), "death", node, life[node])
            fill(node)
        elif kind == "driver":
            driver, driver_deaths = False, driver_deaths + 1
            for each in range(cluster.nodes):
                waiting.extend(empty(each))
            at(now + cluster.restarted_after, "command")
        elif kind == "command":
            driver, tries[:] = True, 0
            waiting.extend(given_up)
            given_up.clear()
            at(now + cluster.driver_life(rng), "driver")
            for each in range(cluster.nodes):
                fill(each)
        if driver and not waiting and given_up and not any(running):
            # The command has ended, and told of the trials that failed.
            retold += len(given_up)
            driver = False
            events = [event for event in events if event[2] != "driver"]
            heapq.heapify(events)
            at(now + cluster.restarted_after, "command")
        # A trial that waits takes the first free place.
        for each in range(cluster.nodes) if waiting and driver else ():
            if alive[each] and len(running[each]) < cluster.workers:
                fill(each)
    trained = sweep.trials * sweep.work
    return Outcome(now / HOUR, finished, trained / HOUR, lost / HOUR, node_deaths, driver_deaths, retold)


#: Node of a data centre: 2,048 of them were interrupted 419 times in 54 days.
DATA_CENTRE = exponential(2048 * 54 * 24 * HOUR / 419)
PREEMPTIBLE = uniform(24 * HOUR)
#: The machine of the driver is one of those of a data centre.
CASES: dict[str, Cluster] = {
    "nothing fails": Cluster(),
    "data centre": Cluster(node_life=DATA_CENTRE, driver_life=DATA_CENTRE),
    "data centre, no shared folder": Cluster(node_life=DATA_CENTRE, driver_life=DATA_CENTRE, shared=False),
    "preemptible nodes": Cluster(node_life=PREEMPTIBLE, driver_life=DATA_CENTRE),
    "preemptible nodes, no shared folder": Cluster(node_life=PREEMPTIBLE, driver_life=DATA_CENTRE, shared=False),
    "preemptible nodes, the driver too": Cluster(node_life=PREEMPTIBLE, driver_life=PREEMPTIBLE),
}


def measure(sweep: Sweep, seeds: int) -> dict[str, Any]:
    """Every case with several seeds: the mean of each number, and the least and largest."""
    rows: dict[str, Any] = {}
    for name, cluster in CASES.items():
        found = [simulate(sweep, cluster, np.random.default_rng(seed)) for seed in range(seeds)]
        rows[name] = {
            field: {"mean": float(np.mean(its)), "least": float(min(its)), "largest": float(max(its))}
            for field, its in zip(Outcome._fields, zip(*found, strict=True), strict=True)
        }
    return {
        "seeds": seeds,
        "sweep": sweep._asdict(),
        "workers": CASES["nothing fails"].nodes * Cluster().workers,
        "rows": rows,
    }


def table(found: dict[str, Any]) -> str:
    """The table of the page."""
    rows = found["rows"]
    lines = [
        "| what fails | hours | lost, of what was trained | nodes that died | command given again | trials finished |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        again = row["driver_deaths"]["mean"]
        share = 100 * row["lost"]["mean"] / row["trained"]["mean"]
        most = 100 * row["lost"]["largest"] / row["trained"]["mean"]
        lines.append(
            f"| {name} | {row['hours']['mean']:.1f} ({row['hours']['least']:.1f} – {row['hours']['largest']:.1f}) "
            f"| {share:.2f} % (at most {most:.2f} %) | {row['node_deaths']['mean']:.0f} | {again:.1f} "
            f"| {row['finished']['least']:,.0f} of {found['sweep']['trials']:,} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="simulations of each case (default: 20)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    found = measure(Sweep(), options.seeds)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
