"""How sweeps scale: measured on the cores of this machine, and a model of larger ones.

    python benchmarks/scale.py

takes about twenty minutes on two cores and needs the extra `ray`. Seconds are those of the clock on the wall, so
nothing else should run. It writes `scale.json`, and the part of `docs/scale.md` that is made of it.

    python benchmarks/scale.py --quick

sees in a few minutes whether all of it works, with sizes too small to say anything.
"""

from __future__ import annotations

import argparse
import json
import math
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

ROOT = Path(__file__).parents[1]

#: Cores of a node of the model.
CORES = 8
#: Processes that post to the driver's actor at once.
POSTING = 2
#: Posts of a task each second: it looks at its worker process twice as often as once a second.
POSTS = 2.0

#: One process that trains seed after seed; the compiled program stays in its cache.
_ONE_BY_ONE = """
import sys, deeprok
config = deeprok.make_config("rtd_dqn", steps=int(sys.argv[3]))
for seed in range(int(sys.argv[2])):
    deeprok.train(config, seeds=[seed], out=f"{sys.argv[1]}/{seed}", jobs=1)
"""

_SWEEP = """
algorithm = "deep_rok"
[settings]
observation_noise = [{levels}]
steps = {steps}
"""


class Sizes(NamedTuple):
    """How much is measured."""

    seeds: int = 16  # that are trained one after another, and vmapped in two processes
    trials: int = 6  # of the sweep, of about a minute each
    steps: int = 150_000  # of each seed: those of the preset
    trial_steps: int = 300_000  # of each trial
    together: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # seeds that share a program, for the time of a step
    repeats: int = 5  # of that time
    posting: float = 5.0  # seconds


QUICK = Sizes(seeds=2, trials=2, steps=4000, trial_steps=4000, together=(1, 2), repeats=1, posting=0.5)


class Used(NamedTuple):
    """What a command took."""

    seconds: float  # on the wall
    processor: float  # seconds of all its processes
    memory: float  # MB, of its largest process


def used(words: Sequence[str], folder: Path) -> Used:
    """Runs a command with an empty cache of compiled programs."""
    environment = {**os.environ, "DEEPROK_CACHE": tempfile.mkdtemp(dir=folder)}
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


#: What is timed: the names of the commands.
ONE_BY_ONE, VMAPPED = "seeds, one after another", "seeds, vmapped on two cores"
ONE_CORE, TWO_CORES, ON_RAY = "sweep, one core", "sweep, two cores", "sweep, two cores, Ray"


def commands(folder: Path, sizes: Sizes) -> Iterator[tuple[str, list[str]]]:
    """What is timed, each with a new folder for its runs."""
    levels = ", ".join(f"{3e-5 * (1 + i / 100):.3g}" for i in range(sizes.trials))  # settings that take equally long
    (folder / "sweep.toml").write_text(_SWEEP.format(levels=levels, steps=sizes.trial_steps))
    seeds, steps = str(sizes.seeds), str(sizes.steps)
    sweep = ["sweep", str(folder / "sweep.toml")]

    def out() -> str:
        return tempfile.mkdtemp(dir=folder) + "/out"

    yield ONE_BY_ONE, [sys.executable, "-c", _ONE_BY_ONE, out(), seeds, steps]
    yield VMAPPED, deeprok("train", "rtd_dqn", "--seeds", seeds, "--steps", steps, "--jobs", "2", "--out", out())
    yield ONE_CORE, deeprok(*sweep, "--jobs", "1", "--out", out())
    yield TWO_CORES, deeprok(*sweep, "--jobs", "2", "--out", out())
    yield ON_RAY, deeprok(*sweep, "--executor", "ray", "--jobs", "2", "--out", out())


def step_times(sizes: Sizes) -> dict[str, float]:
    """Microseconds of a step of all seeds that share a program, by how many they are."""
    from contenders import training

    endless: dict[str, Any] = dict(preset="default", steps=10_000_000, replay_size=150_000)
    measures = {seeds: training("rtd_dqn", seeds, chunks=1, **endless) for seeds in sizes.together}
    found: dict[int, list[float]] = {seeds: [] for seeds in sizes.together}
    for _ in range(sizes.repeats):
        for seeds, measure in measures.items():
            found[seeds].append(1e6 * seeds * measure())
    return {str(seeds): min(times) for seeds, times in found.items()}


def posts_per_second(seconds: float) -> float:
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
      worker: seconds that a worker takes for a trial, beside another on the same machine, start included.
      waiting: seconds that a sweep on Ray takes longer than one of processes, which is once.
      by_posts: how many workers the driver's actor for lines of metrics can hear.
      by_files: to how many the driver can give files, without a shared folder.
      seeds: how many seeds together take as long on an accelerator as on one core, at the least and the largest time
        of a kernel.
    """

    worker: float
    waiting: float
    by_posts: int
    by_files: int
    seeds: tuple[int, int]

    @property
    def workers(self) -> int:
        """How many workers one driver can serve."""
        return min(self.by_posts, self.by_files)

    def hours(self, trials: int, workers: int) -> float:
        """How long a sweep takes: its trials come in waves, of as many workers as the driver can serve."""
        waves = math.ceil(trials / min(workers, self.workers))
        return (self.waiting + waves * self.worker) / 3600


#: Seconds that an accelerator takes for a kernel of a small network: an assumption, not a measurement.
KERNEL = (2e-6, 1e-5)


def model(found: dict[str, Any]) -> Model:
    """The model, from what was measured."""
    local, ray = (found["commands"][name]["seconds"] for name in (TWO_CORES, ON_RAY))
    worker = local * min(2, found["trials"]) / found["trials"]
    times = {int(seeds): micros * 1e-6 for seeds, micros in found["step_micros"].items()}
    largest = max(times)
    each = times[largest] / largest  # of one more seed on a core
    least, most = (max(1, round(found["kernels"] * kernel / each)) for kernel in KERNEL)
    return Model(
        worker=worker,
        waiting=max(0.0, ray - local),
        by_posts=int(found["posts_per_second"] / POSTS),
        by_files=int(worker / found["driver_seconds"]),
        seeds=(least, most),
    )


def measure(sizes: Sizes, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything that is measured."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "rounds": rounds, **sizes._asdict()}
    taken: dict[str, list[Used]] = {}
    with tempfile.TemporaryDirectory() as whole:
        for number in range(rounds):
            folder = Path(whole) / str(number)
            folder.mkdir()
            for name, words in commands(folder, sizes):
                say(f"round {number + 1} of {rounds}: {name}")
                taken.setdefault(name, []).append(used(words, folder))
                if name == ONE_CORE:
                    found["trial_seconds"] = training_seconds(folder)
        say("what the driver does")
        found["driver_seconds"] = driver_seconds(Path(whole) / "0")
    say("posts to the driver's actor")
    found["posts_per_second"] = posts_per_second(sizes.posting)
    say("time of a step")
    found["step_micros"] = step_times(sizes)
    found["kernels"] = kernels()
    found["commands"] = {
        name: {field: min(getattr(its, field) for its in each) for field in Used._fields}
        for name, each in taken.items()
    }
    alone = found["commands"][ONE_CORE]["seconds"]
    found["start_seconds"] = max(0.0, alone / sizes.trials - found["trial_seconds"])
    return found


def training_seconds(folder: Path) -> float:
    """Seconds that the trials of a sweep trained for, on average: the sum over chunks, as their metrics say."""
    runs = [path for path in folder.rglob("metrics.jsonl") if "deep_rok" in str(path)]
    return statistics.mean(sum(json.loads(line)["seconds"] for line in path.open()) for path in runs)


#: The largest ratios of seconds that are aimed at.
SEEDS_AIM, RAY_AIM = 0.6, 1.15
#: Trials of the sweep of the model.
MANY = 10_000


def ratio(found: dict[str, Any], one: str, other: str) -> float:
    """The ratio of two commands' seconds."""
    return float(found["commands"][one]["seconds"] / found["commands"][other]["seconds"])


def section(found: dict[str, Any]) -> str:
    """The part of the page that is made of what was measured."""
    said, alone, files = model(found), found["commands"][ONE_CORE], 1000 * found["driver_seconds"]
    memory, each = alone["memory"], alone["seconds"] / found["trials"]
    seeds, ray = ratio(found, VMAPPED, ONE_BY_ONE), ratio(found, ON_RAY, TWO_CORES)
    rounds = "one round" if found["rounds"] == 1 else f"{found['rounds']} rounds"
    most = max(1, said.workers // CORES)
    by = "lines of metrics" if said.by_posts <= said.by_files else "files, where nodes do not see its folder"
    low, high = (f"{1e6 * kernel:g}" for kernel in KERNEL)
    return f"""\
Measured on {found["cores"]} cores with nothing beside it: seeds of {found["steps"]:,} steps and trials of
{found["trial_steps"]:,}, the fastest of {rounds}. Each command began without compiled programs.

{_commands_table(found)}

- **{found["seeds"]} seeds of `rtd_dqn`**, vmapped on two cores, take {seeds:.2f} times as long as one process that
  trains them one after another. {_held(seeds, SEEDS_AIM)}
- **A second core** makes a sweep of `deep_rok` {ratio(found, ONE_CORE, TWO_CORES):.2f} times as fast.
- **Ray** takes {ray:.2f} times as long as processes for a sweep of {found["trials"]} trials, of {said.worker:.0f}
  seconds each. {_held(ray, RAY_AIM)}
- **A trial** needs {memory:.0f} MB. Of its {each:.0f} seconds {found["start_seconds"]:.0f} are start and end.

Seeds that share a program wait for each other, but each costs less:

{_seeds_table(found)}

## A hundred nodes, by a model

A sweep takes {said.waiting:.0f} seconds for Ray, and then as many waves as its trials fill, of {said.worker:.0f}
seconds each: what a worker took with another one beside it. A driver can serve so many workers and no more:

- its actor for lines of metrics answers {found["posts_per_second"]:,.0f} posts a second, and a task posts {POSTS:g}
  times a second: {said.by_posts:,} workers;
- where nodes do not see its folder it packs and unpacks a trial in {files:.0f} ms: {said.by_files:,} workers.

{_nodes_table(said, most)}

**It stops scaling at {said.workers:,} workers**, which are {most:,} nodes of {CORES} cores: there the driver is
busy with {by}. A sweep with fewer trials than workers leaves some idle before that. The model takes each core of a
node for as fast as those measured, and knows nothing of the network.

## An accelerator, by a model

An environment step with its updates is about {found["kernels"]:.0f} kernels, one after the other. If a kernel of so
small a network takes {low} to {high} µs whatever its size, {said.seeds[0]:,} to {said.seeds[1]:,} seeds that share
a program take as long there as on one core. With fewer the core is faster; with more the accelerator is, until its
memory or its units are full. The time of a kernel is an assumption: no accelerator was measured.

```sh
python benchmarks/scale.py
```

measures this again in about twenty minutes (extra `ray`), and writes `benchmarks/scale.json` and this part of the
page."""


def _commands_table(found: dict[str, Any]) -> str:
    lines = [
        "| command | seconds | environment steps a second | processor seconds | largest process |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, its in found["commands"].items():
        of_seeds = name in (ONE_BY_ONE, VMAPPED)
        runs, steps = (found[name] for name in (("seeds", "steps") if of_seeds else ("trials", "trial_steps")))
        what = f"{runs} {name}" if of_seeds else f"{name}, {runs} trials"
        # Ray's processes are no children of the command.
        used = "– | –" if name == ON_RAY else f"{its['processor']:.0f} | {its['memory']:.0f} MB"
        lines.append(f"| {what} | {its['seconds']:.0f} | {runs * steps / its['seconds']:,.0f} | {used} |")
    return "\n".join(lines)


def _seeds_table(found: dict[str, Any]) -> str:
    lines = ["| seeds in one program | µs for a step of all | µs for each |", "| ---: | ---: | ---: |"]
    lines += [f"| {n} | {micros:.0f} | {micros / int(n):.1f} |" for n, micros in found["step_micros"].items()]
    return "\n".join(lines)


def _nodes_table(said: Model, most: int) -> str:
    lines = [
        f"| nodes of {CORES} cores | workers | hours for {MANY:,} such trials | times as fast as one core |",
        "| ---: | ---: | ---: | ---: |",
    ]
    alone = said.hours(MANY, 1)
    for nodes in sorted({1, 10, 100, most}):
        hours = said.hours(MANY, CORES * nodes)
        lines.append(f"| {nodes:,} | {CORES * nodes:,} | {hours:.2f} | {alone / hours:,.0f} |")
    return "\n".join(lines)


def _held(ratio: float, bar: float) -> str:
    return f"The aim, at most {bar:g}, is {'met' if ratio <= bar else 'missed'}."


#: Between these lines of the page is what `section` writes.
BEGIN, END = "<!-- measured by benchmarks/scale.py -->\n", "<!-- end of what is measured -->"


def with_section(page: str, found: dict[str, Any]) -> str:
    """The page with the part that is made of what was measured."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{section(found)}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often each command is timed (default: 1)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, and nothing is written")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the page from scale.json")
    options = parser.parse_args()
    stored, page = Path(__file__).with_suffix(".json"), ROOT / "docs" / "scale.md"
    if options.page:
        found = json.loads(stored.read_text())
    else:
        sizes = QUICK if options.quick else Sizes()
        found = measure(sizes, options.rounds, lambda what: print(what, file=sys.stderr, flush=True))
    if options.quick:
        print(section(found))
        return
    stored.write_text(json.dumps(found, indent=1) + "\n")
    page.write_text(with_section(page.read_text(), found))
    print(section(found))


if __name__ == "__main__":
    main()
