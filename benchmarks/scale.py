"""How sweeps scale: measured on the cores of this machine, and a model of larger ones.

    python benchmarks/scale.py

takes about twenty minutes on two cores and needs the extra `ray`. Seconds are those of the clock on the wall, so
nothing else should run. It writes `scale.json` and prints the tables of `docs/scale.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Seeds that are trained one after another, and vmapped in two processes.
SEEDS = 16
#: Trials of the sweep, of about a minute each.
TRIALS = 6
#: Seeds that share a program, for the time of a step.
TOGETHER = (1, 2, 4, 8, 16, 32)
#: Processes that post to the driver's actor at once.
POSTING = 2
#: Posts of a task each second: it looks at its worker process twice as often as once a second.
POSTS = 2.0

#: One process that trains seed after seed; the compiled program stays in its cache.
_ONE_BY_ONE = """
import sys, deeprok
config = deeprok.make_config("rtd_dqn")
for seed in range(int(sys.argv[2])):
    deeprok.train(config, seeds=[seed], out=f"{sys.argv[1]}/{seed}", jobs=1)
"""

_SWEEP = """
algorithm = "deep_rok"
[settings]
observation_noise = [{levels}]
"""


class Used(NamedTuple):
    """What a command took."""

    seconds: float  # on the wall
    processor: float  # seconds of all its processes
    memory: float  # MB, of its largest process


def used(words: Sequence[str], folder: Path) -> Used:
    """Runs a command with a cache of compiled programs in the folder."""
    environment = {**os.environ, "DEEPROK_CACHE": str(folder / "cache")}
    code = (
        "import json, resource, subprocess, sys, time\n"
        "began = time.monotonic()\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)\n"
        "seconds, its = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "processor = its.ru_utime + its.ru_stime\n"
        "print(json.dumps([done.returncode, done.stderr[-500:], seconds, processor, its.ru_maxrss]))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True
    )
    status, errors, seconds, processor, kilobytes = json.loads(told.stdout)
    if status:
        raise SystemExit(f"{' '.join(words)}: {errors.strip()}")
    return Used(seconds, processor, kilobytes / 1024)


def deeprok(*words: str) -> list[str]:
    """A command of the library."""
    return [sys.executable, "-m", "deeprok", *words]


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What is timed, each with a new folder for its runs."""
    levels = ", ".join(f"{3e-5 * (1 + i / 100):.3g}" for i in range(TRIALS))  # settings that take equally long
    (folder / "sweep.toml").write_text(_SWEEP.format(levels=levels))
    sweep = ["sweep", str(folder / "sweep.toml")]

    def out() -> str:
        return tempfile.mkdtemp(dir=folder) + "/out"

    yield f"{SEEDS} seeds, one after another", [sys.executable, "-c", _ONE_BY_ONE, out(), str(SEEDS)]
    yield f"{SEEDS} seeds, vmapped on two cores", deeprok("train", "rtd_dqn", "--seeds", str(SEEDS), "--out", out())
    yield "sweep, one core", deeprok(*sweep, "--jobs", "1", "--out", out())
    yield "sweep, two cores", deeprok(*sweep, "--jobs", "2", "--out", out())
    yield "sweep, two cores, Ray", deeprok(*sweep, "--executor", "ray", "--jobs", "2", "--out", out())


def step_times(rounds: int) -> dict[str, float]:
    """Microseconds of a step of all seeds that share a program, by how many they are."""
    from contenders import training

    endless: dict[str, Any] = dict(preset="default", steps=10_000_000, replay_size=150_000)
    measures = {seeds: training("rtd_dqn", seeds, chunks=1, **endless) for seeds in TOGETHER}
    found: dict[int, list[float]] = {seeds: [] for seeds in TOGETHER}
    for _ in range(rounds):
        for seeds, measure in measures.items():
            found[seeds].append(1e6 * seeds * measure())
    return {str(seeds): min(times) for seeds, times in found.items()}


def posts_per_second(seconds: float = 5.0) -> float:
    """How many posts of tasks the actor on the driver's node answers, from several processes at once."""
    import ray

    from deeprok.sweeps.on_ray import _Mailbox, forking

    line = ("seed-0", {"steps": 2000, "episodes": 20, "returns": [100.0] * 20, "seconds": 0.1, "loss": 0.1})

    def post(mailbox: Any, seconds: float) -> int:
        count, ends = 0, time.monotonic() + seconds
        while time.monotonic() < ends:
            ray.get(mailbox.post.remote([line]))
            count += 1
        return count

    with forking():
        ray.init(num_cpus=POSTING, include_dashboard=False, log_to_driver=False)
    try:
        mailbox = ray.remote(_Mailbox).options(num_cpus=0).remote()
        task = ray.remote(post)
        ray.get([task.remote(mailbox, 0.2) for _ in range(POSTING)])  # processes start
        return float(sum(ray.get([task.remote(mailbox, seconds) for _ in range(POSTING)])) / seconds)
    finally:
        ray.shutdown()


def driver_seconds(folder: Path) -> float:
    """What the driver does for one trial: files are packed, sent through Ray's store, and unpacked."""
    import ray

    from deeprok.sweeps.on_ray import forking
    from deeprok.sweeps.parcels import CHANGED, NEEDED, pack, unpack

    trial = next(path.parent for path in folder.rglob("checkpoint.safetensors") if "deep_rok" in str(path))
    with forking():
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        taken = []
        for i in range(10):
            began = time.monotonic()
            ray.get(ray.put(pack(trial.parent, [trial.name], NEEDED)))
            unpack(ray.get(ray.put(pack(trial.parent, [trial.name], CHANGED))), folder / f"unpacked-{i}")
            taken.append(time.monotonic() - began)
        return statistics.median(taken)
    finally:
        ray.shutdown()


def kernels() -> float:
    """Operations of a compiled environment step, updates included, that each would be a kernel of an accelerator."""
    import jax
    import jax.numpy as jnp

    from deeprok.runs.settings import make_config
    from deeprok.training.scan import make_program

    config = make_config("rtd_dqn")
    program = make_program(config)
    states = jax.jit(jax.vmap(program.init))(jax.vmap(jax.random.key)(jnp.arange(2)))
    text = program.advance.func.lower(*program.advance.args, states, 0).compile().as_text()  # type: ignore[attr-defined]
    return largest_loop(text) / config.learner.train_every


def largest_loop(text: str) -> int:
    """How many fusions and products the largest loop body of a compiled program has."""
    counts: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        if line and not line.startswith((" ", "}")):
            name = line.removeprefix("ENTRY ").split(" ", 1)[0].lstrip("%")
            counts[name] = 0
        elif re.search(r"= \S+ (fusion|dot|custom-call)\(", line):
            counts[name] += 1
    return max(counts[body] for body in re.findall(r"body=%?([\w.\-]+)", text))


class Model(NamedTuple):
    """What the measurements say of larger machines.

    Attributes:
      efficiency: share of the workers' time in which trials are trained, with workers enough of their own.
      workers: how many one driver can serve: the smaller of the next two.
      by_posts: how many the actor for lines of metrics can hear.
      by_files: how many the driver can give files to, without a shared folder.
      seeds: how many seeds together take as long on an accelerator as on one core, at the least and the largest time
        of a kernel.
    """

    efficiency: float
    workers: int
    by_posts: int
    by_files: int
    seeds: tuple[int, int]


#: Seconds that an accelerator takes for a kernel of a small network: an assumption, not a measurement.
KERNEL = (2e-6, 1e-5)


def model(found: dict[str, Any]) -> Model:
    """The model, from what was measured."""
    trial, start = found["trial_seconds"], found["start_seconds"]
    by_posts, by_files = int(found["posts_per_second"] / POSTS), int((trial + start) / found["driver_seconds"])
    times = {int(seeds): micros * 1e-6 for seeds, micros in found["step_micros"].items()}
    largest = max(times)
    each = times[largest] / largest  # of one more seed on a core
    least, most = (max(1, round(found["kernels"] * kernel / each)) for kernel in KERNEL)
    return Model(trial / (trial + start), min(by_posts, by_files), by_posts, by_files, (least, most))


def measure(rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything that is measured."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "seeds": SEEDS, "trials": TRIALS, "rounds": rounds}
    taken: dict[str, list[Used]] = {}
    with tempfile.TemporaryDirectory() as whole:
        for number in range(rounds):
            folder = Path(whole) / str(number)
            folder.mkdir()
            for name, words in commands(folder):
                say(f"round {number + 1} of {rounds}: {name}")
                taken.setdefault(name, []).append(used(words, folder))
                if name == "sweep, one core":
                    found["trial_seconds"] = training_seconds(folder)
        say("what the driver does")
        found["driver_seconds"] = driver_seconds(Path(whole) / "0")
    say("posts to the driver's actor")
    found["posts_per_second"] = posts_per_second()
    say("time of a step")
    found["step_micros"] = step_times(5)
    found["kernels"] = kernels()
    found["commands"] = {
        name: {field: min(getattr(its, field) for its in each) for field in Used._fields}
        for name, each in taken.items()
    }
    alone = found["commands"]["sweep, one core"]["seconds"]
    found["start_seconds"] = max(0.0, alone / TRIALS - found["trial_seconds"])
    found["ratios"] = {
        "16 seeds": _ratio(taken, f"{SEEDS} seeds, vmapped on two cores", f"{SEEDS} seeds, one after another"),
        "two cores": _ratio(taken, "sweep, one core", "sweep, two cores"),
        "ray": _ratio(taken, "sweep, two cores, Ray", "sweep, two cores"),
    }
    return found


def _ratio(taken: dict[str, list[Used]], one: str, other: str) -> float:
    """The ratio of two commands' seconds, by the fastest round of each."""
    return min(its.seconds for its in taken[one]) / min(its.seconds for its in taken[other])


def training_seconds(folder: Path) -> float:
    """Seconds that the trials of a sweep trained for, on average: the sum over chunks, as their metrics say."""
    runs = [path for path in folder.rglob("metrics.jsonl") if "deep_rok" in str(path)]
    return statistics.mean(sum(json.loads(line)["seconds"] for line in path.open()) for path in runs)


def table(found: dict[str, Any]) -> str:
    """The tables of the page."""
    lines = ["| command | seconds | processor seconds | largest process, MB |", "| --- | ---: | ---: | ---: |"]
    for name, its in found["commands"].items():
        lines.append(f"| {name} | {its['seconds']:.0f} | {its['processor']:.0f} | {its['memory']:.0f} |")
    ratios = found["ratios"]
    lines += ["", "| ratio of seconds | measured | bar |", "| --- | ---: | ---: |"]
    lines.append(f"| {SEEDS} seeds on two cores, over one after another | {ratios['16 seeds']:.2f} | ≤ 0.6 |")
    lines.append(f"| a sweep on one core, over two | {ratios['two cores']:.2f} | |")
    lines.append(f"| a sweep on Ray, over processes | {ratios['ray']:.2f} | ≤ 1.15 |")
    said = model(found)
    posts, files = f"{found['posts_per_second']:.0f} a second", f"{1000 * found['driver_seconds']:.0f} ms a trial"
    lines += ["", "| of the model | |", "| --- | ---: |"]
    lines.append(f"| training, of a worker's time | {100 * said.efficiency:.0f} % |")
    lines.append(f"| workers whose posts the driver's actor can hear ({posts}) | {said.by_posts:,} |")
    lines.append(f"| workers that the driver can send files to ({files}) | {said.by_files:,} |")
    lines.append(f"| kernels of an environment step on an accelerator | {found['kernels']:.0f} |")
    lines.append(f"| seeds together that take as long there as on one core | {said.seeds[0]} to {said.seeds[1]} |")
    lines += ["", "| seeds in one program | µs for a step of all | µs for each |", "| ---: | ---: | ---: |"]
    lines += [f"| {n} | {micros:.0f} | {micros / int(n):.0f} |" for n, micros in found["step_micros"].items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often each command is timed (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    found = measure(options.rounds, lambda what: print(what, file=sys.stderr, flush=True))
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
