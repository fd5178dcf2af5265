"""`deeprok check-env`: try an environment, and say what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deeprok.cli import streams
from deeprok.cli.options import option_names, parse_options
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Branching, Finding, HostEnvironment, check_environment
from deeprok.environments.base import AnyEnvironment
from deeprok.training.progress import fraction_bar
from deeprok.uncertainty.models import parse_box

_COLOURS = {"pass": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class CheckEnv:
    """Try an environment by random play, and say what was found, before training on it.

    Looks at shapes and types, whether episodes can be repeated and a simulator's state restored, whether termination
    is told from time being up, parameters without effect, failing simulations at the corners of the box, returns and
    the sizes of observations. A problem must be fixed; a note may be meant so. The exit code is 1 if there is a
    problem, else 0.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """An environment that `deeprok environments` lists, any id of Gymnasium, or your own as module:object."""
    box: Annotated[str | None, tyro.conf.arg(metavar="BOX", help_behavior_hint="(default: the environment's own)")] = (
        None
    )
    """Ranges of the uncertain parameters, as name=low:high,…"""
    horizon: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the environment's own)")
    ] = None
    """Steps after which an episode is truncated."""
    branching: Annotated[Branching | None, tyro.conf.arg(help_behavior_hint="(default: the environment's own)")] = None
    """How a simulator answers for several models, as `deeprok train` has it."""
    episodes: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 10, or fewer of a simulator if long)")
    ] = None
    """Random episodes on the nominal model and on each corner of the box, and as many with actions that are held."""
    seed: int = 0
    """Seed of the random numbers."""
    json: bool = False
    """Print one JSON object instead of a table."""


def run(words: Sequence[str]) -> int:
    """Runs the command; 1 if a problem was found."""
    options = parse_options(CheckEnv, words, "check-env")
    env = _environment(options)
    with fraction_bar(streams.err, "checking") as advance:
        found = check_environment(env, options.episodes, options.seed, advance)
    problems, notes = (sum(finding.level == level for finding in found) for level in ("problem", "note"))
    if options.json:
        findings = [finding._asdict() for finding in found]
        print(json.dumps({"env": options.env, "problems": problems, "notes": notes, "findings": findings}))
    else:
        _print(found, streams.out)
        streams.out.print(_verdict(options.env, problems, notes), highlight=False, markup=False, soft_wrap=True)
    return 1 if problems else 0


def _environment(options: CheckEnv) -> AnyEnvironment:
    """The environment with what the options change."""
    part = ENVIRONMENTS.find(options.env, "env")
    given = {name: value for name in ("horizon", "branching") if (value := getattr(options, name)) is not None}
    if options.branching and "branching" not in {field.name for field in dataclasses.fields(part.settings)}:
        raise DeeprokError(
            f"--branching is not a setting of {options.env}, which answers for several models in one way"
        )
    if options.horizon is not None and not 1 <= options.horizon < 2**31:
        raise DeeprokError(f"horizon is {options.horizon}; it must be at least 1 and at most {2**31 - 1}")
    env = part.make(part.settings(**given))
    if options.horizon is not None and isinstance(env, HostEnvironment):
        env = env._replace(assumed=tuple(name for name in env.assumed if name != "horizon"))
    return env if options.box is None else env._replace(box=parse_box(options.box, env.nominal))


def _print(found: Sequence[Finding], out: Console) -> None:
    """A line for each finding, problems last, next to the verdict; in a file lines are not wrapped."""
    ordered = sorted(found, key=lambda finding: list(_COLOURS).index(finding.level))
    if not out.is_terminal:
        subjects = max(len(finding.subject) for finding in found)
        for finding in ordered:
            line = f"{finding.level:<7}  {finding.subject:<{subjects}}  {finding.sentence}"
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in ordered:
        table.add_row(Text(finding.level, style=_COLOURS[finding.level]), finding.subject, Text(finding.sentence))
    out.print(table, highlight=False)


def _verdict(name: str, problems: int, notes: int) -> str:
    these = "problem" if problems == 1 else "problems"
    counts = f"{name}: {problems or 'no'} {these}, {notes or 'no'} {'note' if notes == 1 else 'notes'}"
    return f"{counts}; fix the {these} before training." if problems else f"{counts}."


def options() -> set[str]:
    """The names of its options."""
    return option_names(CheckEnv)
