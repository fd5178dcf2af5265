"""Runs the benchmarks, prints their ratios beside the bars, and saves them as JSON.

Exits with status 1 if a bar is missed, 2 if a benchmark could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from harness import BenchmarkError, Result, use_one_core
from rich.console import Console
from rich.table import Table

#: Benchmark -> rounds.
BENCHMARKS = dict(
    ddqn=12,
    host=7,
    kalman=40,
    ktd=7,
    mujoco_models=20,
    replay=40,
    seeds=20,
    start_up=3,
    structures=7,
    tabular=7,
    td3=7,
)
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "torch", "stable-baselines3", "gymnasium", "mujoco", "dynamax")


def machine(cores: int, load: float | None) -> dict[str, Any]:
    """What the numbers depend on, with the load average before they were taken, if the system has one."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "processor": _processor(),
        "cores": cores,
        "cores_used": 1,
        "load": load,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def table(results: dict[str, Result]) -> Table:
    """The times, and below those of each benchmark its ratios."""
    out = Table("benchmark", "measured", title="One core; best of interleaved repeats")
    for heading in ("µs / step", "steps / s", "ratio", "bar", ""):
        out.add_column(heading, justify="right")
    for name, result in results.items():
        out.add_section()
        out.add_row(name, f"[bold]{result.title}")
        for contender in result.times:
            best = result.best(contender)
            out.add_row("", contender, f"{1e6 * best:,.1f}", f"{1 / best:,.0f}")
        for ratio in result.ratios:
            bar = "" if ratio.bar is None else f"{'≥' if ratio.sense == '>=' else '≤'} {ratio.bar:g}"
            verdict = {True: "[green]met", False: "[red]missed", None: ""}[ratio.met]
            out.add_row("", f"[italic]{ratio.name}", "", "", f"[bold]{ratio.value:.2f}", bar, verdict)
    return out


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Ratios of things measured side by side, on one core.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all if none is given")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_name("results.json"),
        help="JSON file to write; of benchmarks that are not run it keeps what it has",
    )
    parser.add_argument("--repeats", type=int, help="rounds of each benchmark, instead of its own number")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error("--repeats must be at least 1")

    cores, load = os.cpu_count() or 1, round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    use_one_core()
    console = Console()
    results: dict[str, Result] = {}
    failed = False
    for name in arguments.names or BENCHMARKS:
        with console.status(name) as status:
            benchmark = import_module(name)
            repeats = arguments.repeats or BENCHMARKS[name]
            try:
                results[name] = benchmark.run(repeats, lambda text, name=name: status.update(f"{name}: {text}"))
            except BenchmarkError as error:
                failed = True
                print(f"benchmark {name}: {error}", file=sys.stderr)
    console.print(table(results))
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found |= {name: {"machine": machine(cores, load), **result.to_json()} for name, result in results.items()}
    arguments.out.write_text(json.dumps(dict(sorted(found.items())), indent=2, ensure_ascii=False) + "\n")
    if failed:
        return 2
    return 1 if any(ratio.met is False for result in results.values() for ratio in result.ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
