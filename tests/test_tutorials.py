"""Tutorials and how-to guides run as they are written, in a folder of their own, but for their sizes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
from sweeping import as_toml

import deeprok
from deeprok.cli.main import main
from deeprok.training import jobs

DOCS = Path(__file__).parent.parent / "docs"
README = DOCS.parent / "README.md"
#: Pages whose commands and functions are those of others, in another order, or tested by themselves.
SLOW = (
    "ambiguity-set",
    "compare-settings",
    "deploy",
    "counts",
    "disturbances",
    "estimator",
    "first-policy",
    "from-log-to-machine",
    "guard",
    "identify",
    "memory",
    "read-results",
    "render",
    "report",
    "runs",
    "screen",
    "stress",
    "sweep",
    "track",
    "tune",
)
PAGES = [README, *sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "how-to").glob("*.md")])]

#: What the tests change: a training of four episodes, trials on few models, an evaluation of two in each cell. And
#: what takes long to compile: the final exam, and several steps a round.
TRAIN = {"episodes": 4, "chunk_steps": 100, "train_every": 1, "trial_models": 2, "trial_episodes": 1, "settle": False}
#: On all pages but the README: the preset `default` has more to compile.
PLAIN = {"preset": "tuned", **TRAIN}
#: Policy gradients have iterations instead of chunks.
ITERATION = {"preset": "tuned", "episodes": 4, "trajectories": 4, "trial_models": 2, "trial_episodes": 1}
EVALUATE = {"episodes": 2}
#: The fewest models that four parameters take.
STRESS = {"budget": 192}
#: One trial of a tuning, and as few seeds as there may be.
TUNE = {"trials": 1, "rungs": 1, "seeds": 1, "finalists": 1, "fresh": 2, "fix": "steps=2000", "jobs": 1}


class Block(NamedTuple):
    language: str
    title: str  # the name of a file that the block is
    code: str


def blocks(page: Path) -> list[Block]:
    fence = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
    return [Block(*found.groups(default="")) for found in fence.finditer(page.read_text())]


def commands(code: str) -> list[list[str]]:
    """The words of each `deeprok …` line."""
    lines = code.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("deeprok ")]


def programs(code: str, files: Sequence[str]) -> list[list[str]]:
    """The words of each line that runs or compiles a file of the page, or what was compiled; others are not run."""
    lines = [shlex.split(line, comments=True) for line in code.splitlines() if not line.startswith("deeprok ")]
    own = [words for words in lines if words and (set(words) & set(files) or words[0].startswith("./"))]
    return [[sys.executable if word == "python" else word for word in words] for words in own]


def reduced(words: list[str]) -> list[str]:
    """The command with small sizes."""
    train = ITERATION if {"pg", "epopt", "robust_pg"} & {*words[1:2]} else PLAIN
    episodes = dict.fromkeys(("evaluate", "check-env", "compare", "report"), EVALUATE)
    sizes = {"train": train, "stress": STRESS, "tune": TUNE, **episodes}.get(words[0], {})
    if "--resume" in words:  # a longer budget is one of two more episodes
        given = [words.index(option) for option in ("--episodes", "--steps") if option in words]
        return [*words[: given[0]], *words[given[0] + 2 :], "--episodes", "6"] if given else words
    for name, value in sizes.items():
        option = f"--{name.replace('_', '-')}"
        if option in words:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
        words = [*words, f"--no-{name}"] if value is False else [*words, option, str(value)]
    return words


def small_sweep(text: str) -> str:
    """The same sweep with small sizes: a single network, and at most two values of all else."""
    spec = tomllib.loads(text)
    settings = {
        name: value[: 1 if isinstance(value[0], list) else 2] if isinstance(value, list) else value
        for name, value in spec["settings"].items()
    }
    return as_toml({**spec, "seeds": 2, "settings": {**settings, **PLAIN}})


pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module", autouse=True)
def compiled_for_all() -> Iterator[None]:
    """Pages evaluate the same agents: what one of them has compiled, the others load."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", True)
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@pytest.fixture
def small(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small sizes, a folder of its own from which modules can be imported, and one process."""
    make_config, evaluate, stress, compare = deeprok.make_config, deeprok.evaluate, deeprok.stress, deeprok.compare
    tune = deeprok.tune

    def small_config(*args: Any, **settings: Any) -> Any:
        return make_config(*args, **{**settings, **(TRAIN if page == README else PLAIN)})

    def small_evaluation(*args: Any, **options: Any) -> Any:
        return evaluate(*args, **{**options, **EVALUATE})

    monkeypatch.setattr(deeprok, "make_config", small_config)
    monkeypatch.setattr(deeprok, "evaluate", small_evaluation)
    monkeypatch.setattr(deeprok, "compare", lambda runs, **options: compare(runs, **{**options, **EVALUATE}))
    monkeypatch.setattr(deeprok, "stress", lambda *runs, **options: stress(*runs, **{**options, **STRESS}))
    small_tune = {**TUNE, "fix": {"steps": 2000}}
    monkeypatch.setattr(deeprok, "tune", lambda *args, **options: tune(*args, **{**options, **small_tune}))
    monkeypatch.setattr(jobs, "count_cores", lambda: 1)  # worker processes would compile all of it again
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield
    for name in {path.stem for path in tmp_path.glob("*.py")} & set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in SLOW)) for page in PAGES]
)
def test_page_runs(page: Path, small: None, tmp_path: Path) -> None:
    written: dict[str, Any] = {}
    for block in blocks(page):
        if block.title:
            assert block.code == (DOCS / "examples" / block.title).read_text(), "the page shows the file as it is"
            (tmp_path / block.title).write_text(small_sweep(block.code) if block.language == "toml" else block.code)
    for block in blocks(page):
        if block.language == "python" and not block.title:
            exec(compile(block.code, page.name, "exec"), written)
        elif block.language == "sh" and page != README:  # its commands are those of the tutorials
            for words in commands(block.code):
                assert main(reduced(words)) == 0, shlex.join(words)
            for words in programs(block.code, [block.title for block in blocks(page)]):
                subprocess.run(words, cwd=tmp_path, check=True)


def test_every_example_with_a_name_of_ones_own_stands_on_a_page() -> None:
    shown = {block.title for page in PAGES for block in blocks(page) if block.title}
    others = {"deployed.py", "rollout.py", "main.c", "sweep.toml", "rates.toml"}
    assert shown == {path.name for path in (DOCS / "examples").glob("my_*.py")} | others


def test_small_sizes_replace_those_of_the_page() -> None:
    words = shlex.split("train dqn --episodes 700 --out runs/dqn")
    sizes = (
        "--preset tuned --episodes 4 --chunk-steps 100 --train-every 1 --trial-models 2 --trial-episodes 1 --no-settle"
    )
    assert reduced(words) == ["train", "dqn", "--out", "runs/dqn", *sizes.split()]
    assert reduced(["train", "--resume", "x", "--steps", "300"]) == ["train", "--resume", "x", "--episodes", "6"]
    assert programs("pip install .\npython a.py b\n./a  # x", ["a.py"]) == [[sys.executable, "a.py", "b"], ["./a"]]
    assert commands("pip install .\ndeeprok train dqn \\\n  --seed 1  # a comment") == [["train", "dqn", "--seed", "1"]]
