"""Commands start fast: they import JAX only where they compute, and load what was compiled before."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import time
import zlib
from pathlib import Path

import jax
import pytest

import deeprok as deeprok_package
from deeprok.cli import main as cli
from deeprok.cli.main import main
from deeprok.core import cache
from deeprok.core.errors import DeeprokError
from deeprok.training import workers

SMALL = [
    *("train", "rtd_dqn", "--preset", "tuned", "--hidden", "4", "--episodes", "4", "--horizon", "30", "--models", "2"),
    *("--batch-size", "3", "--warm-up", "10", "--chunk-steps", "60", "--trial-models", "2", "--snapshot-every", "0"),
]


@pytest.mark.parametrize("command", ["--help", "--version", "problems", "algorithms"])
def test_needs_no_jax(command: str) -> None:
    code = f"import sys; from deeprok.cli.main import main; main(['{command}']); print(sys.modules.keys() & {{'jax'}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_solve_imports_only_what_it_needs() -> None:
    """Not what learns, nor what draws; typeguard is what tyro imports for some types of options."""
    words = ["solve", "river_swim", "--radius", "0.1"]
    needless = {"deeprok.runs.folder", "deeprok.estimators", "deeprok.agents", "optax", "scipy", "typeguard"}
    needless |= {"matplotlib", "pandas"}
    code = f"import sys; from deeprok.cli.main import main; main({words}); print(sys.modules.keys() & {needless})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exact" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_worker_process_imports_only_what_it_needs() -> None:
    """A sweep starts hundreds of them; scipy's statistics and optimizers alone took a third of their start."""
    needless = {"scipy.stats", "scipy.optimize", "deeprok.identification", "deeprok.evaluation.guard", "matplotlib"}
    code = f"import sys; from deeprok.training.workers import work; print(sys.modules.keys() & {needless})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_nothing_is_collected_at_exit() -> None:
    """With JAX imported that takes a quarter of a second."""
    code = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > len(gc.get_objects())))
from deeprok.cli.main import program
sys.argv = ["deeprok", "--version"]
sys.exit(program())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"


# --- which folder --------------------------------------------------------------------------------------


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cache.VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("system", "environment", "expected"),
    [
        ("linux", {}, "/home/someone/.cache/deeprok"),
        ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/deeprok"),
        ("linux", {"XDG_CACHE_HOME": "relative, so not valid"}, "/home/someone/.cache/deeprok"),
        ("darwin", {}, "/home/someone/Library/Caches/deeprok"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/deeprok"),
        ("linux", {"XDG_CACHE_HOME": "/caches", "DEEPROK_CACHE": "/mine"}, "/mine"),
        ("linux", {"DEEPROK_CACHE": "~/mine"}, "/home/someone/mine"),
        ("linux", {"DEEPROK_CACHE": "off"}, None),
        ("linux", {"DEEPROK_CACHE": ""}, None),
    ],
)
def test_folder(
    monkeypatch: pytest.MonkeyPatch, system: str, environment: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr(cache.sys, "platform", system)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == (None if expected is None else Path(expected))


def test_no_cache_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache, "_user_folder", homeless)
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.folder() is None


def test_kinds_of_program_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [cache._kind_of_program(), cache._kind_of_program()]
    monkeypatch.setattr(cache.os, "sched_getaffinity", lambda process: set(range(77)), raising=False)
    kinds.append(cache._kind_of_program())  # XLA splits loops by the number of cores
    monkeypatch.setenv("NPROC", "3")
    kinds.append(cache._kind_of_program())
    monkeypatch.setattr(cache, "_processor", lambda: "flags: avx512f")
    kinds.append(cache._kind_of_program())
    monkeypatch.setattr(jax, "__version__", "99.0")
    kinds.append(cache._kind_of_program())
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 5
    assert not any(set(kind) & set("/\\ :") for kind in kinds)


# --- what is stored ------------------------------------------------------------------------------------

#: Compiles `one`, does what it is given, compiles `two`, and prints how many programs were loaded and their results.
COMPILE = """
import shutil, sys
import jax
from deeprok.core import cache
programs = cache.enable()
loaded = []
jax.monitoring.register_event_listener(lambda event, **_: loaded.extend([event] * event.endswith("cache_hits")))
def one(x): return jax.numpy.sin(x) @ x
def two(x): return jax.numpy.cos(x) @ x
x = jax.device_put(__import__("numpy").arange(4.0))
results = [float(jax.jit(one)(x))]
{between}
results.append(float(jax.jit(two)(x)))
print(len(loaded), *results, programs)
"""


def bare(folder: Path) -> dict[str, str]:
    """The environment of a user who has set nothing, with a home and caches in a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "DEEPROK_"))}
    return {**kept, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "caches"), "COLUMNS": "200"}


def compiled(folder: Path, between: str = "") -> list[str]:
    """What a new process prints that compiles two programs."""
    code = COMPILE.format(between=textwrap.dedent(between))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=bare(folder), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*-cache")}


def test_programs_are_loaded_the_second_time(tmp_path: Path) -> None:
    loaded, *results, programs = compiled(tmp_path)
    assert loaded == "0"
    assert Path(programs).is_relative_to(tmp_path / "caches" / "deeprok" / "compiled")
    assert Path(programs).stat().st_mode & 0o077 == 0  # what is loaded is run: nobody else may write there
    stored = entries(tmp_path)
    assert {name.partition("-")[0] for name in stored} == {"jit_one", "jit_two"}
    assert compiled(tmp_path) == ["2", *results, programs]
    assert entries(tmp_path) == stored


@pytest.mark.slow
def test_damaged_entries_are_replaced(tmp_path: Path) -> None:
    _, *expected = compiled(tmp_path)
    whole = entries(tmp_path)
    for i, path in enumerate(sorted(tmp_path.rglob("*-cache"))):
        path.write_bytes(path.read_bytes()[: i * 100])  # one empty, one cut short
    assert compiled(tmp_path) == ["0", *expected]
    again = entries(tmp_path)
    assert again.keys() == whole.keys()
    assert all(zlib.decompress(entry) for entry in again.values())
    assert compiled(tmp_path) == ["2", *expected]


def test_may_be_deleted_while_it_is_used(tmp_path: Path) -> None:
    loaded, *_ = compiled(tmp_path, "shutil.rmtree(programs.parent.parent)")
    assert loaded == "0"
    assert compiled(tmp_path)[0] in "01"


def test_a_cache_of_jax_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "ours"))
    assert cache.enable() == Path(jax.config.values["jax_compilation_cache_dir"])
    with cache.shared():
        pass
    assert not (tmp_path / "ours").exists()


def test_evicts_what_was_not_used_for_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 250)
    for kind in ("old-version", "new-version"):
        (tmp_path / kind).mkdir()
    now = time.time()
    used = {"old-version/a-cache": 50, "old-version/b-cache": 10, "new-version/c-cache": 30, "new-version/d-cache": 20}
    for name, ago in used.items():
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (now - ago, now - 100))
    (tmp_path / "new-version" / "mine").write_bytes(bytes(1000))  # no entry: left alone
    cache._evict(tmp_path)
    assert {path.name for path in tmp_path.glob("*/*")} == {"b-cache", "d-cache", "mine"}
    (tmp_path / "new-version" / "e-cache").write_bytes(bytes(100))
    cache._evict(tmp_path)  # not again on the same day
    assert len(list(tmp_path.glob("*/*-cache"))) == 3
    os.utime(tmp_path / ".last-eviction", (now - 2 * 86_400,) * 2)
    cache._evict(tmp_path)
    assert {path.name for path in tmp_path.glob("*/*-cache")} == {"b-cache", "e-cache"}


# --- on the command line -------------------------------------------------------------------------------


def deeprok(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deeprok", *words]
    return subprocess.run(command, env=bare(folder), cwd=folder, capture_output=True, text=True, check=True)


@pytest.mark.slow
def test_same_bits_with_and_without(tmp_path: Path) -> None:
    """Compiled, loaded, and in a process that stores nothing, a run is the same."""
    runs = {}
    for name, words in {"compiled": [], "loaded": [], "off": ["--cache", "off"]}.items():
        deeprok(tmp_path, *SMALL, "--out", name, *words)
        runs[name] = hashlib.sha256((tmp_path / name / "checkpoint.safetensors").read_bytes()).hexdigest()
        if name == "compiled":
            stored = entries(tmp_path / "caches")
    assert len(set(runs.values())) == 1
    assert entries(tmp_path / "caches") == stored != {}


@pytest.mark.slow
def test_workers_store_their_programs(tmp_path: Path) -> None:
    deeprok(tmp_path, "--cache=elsewhere", *SMALL, "--seeds", "2", "--jobs", "2", "--out", "seeds")
    assert not (tmp_path / "caches").exists()
    assert any(name.startswith("jit_advance-") for name in entries(tmp_path / "elsewhere"))


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = deeprok(tmp_path, "solve", "river_swim", "--radius", "0.1", "--cache", "file/cache")
    assert "exact" in done.stdout
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("deeprok: compiled programs can't be stored in ")
    assert str(tmp_path / "file" / "cache") in sentence


@pytest.mark.parametrize(
    ("words", "rest", "chosen"),
    [
        (["solve", "x"], ["solve", "x"], None),
        (["--cache", "off", "solve", "x"], ["solve", "x"], "off"),
        (["solve", "--cache=", "x"], ["solve", "x"], ""),
        (["solve", "--cache", "a", "x", "--cache=b=c"], ["solve", "x"], "b=c"),
        (["solve", "--cached", "--cac=x"], ["solve", "--cached", "--cac=x"], None),
    ],
)
def test_option(words: list[str], rest: list[str], chosen: str | None) -> None:
    assert cli._without_cache(words) == (rest, chosen)


def test_option_is_told_and_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "before")
    assert main(["problems", "--cache"]) == 2
    assert "--cache needs a value: a folder, or off" in capsys.readouterr().err
    assert main(["solve", "river_swim", "--cahce", "off"]) == 2
    assert "did you mean '--cache'?" in " ".join(capsys.readouterr().err.split())
    assert os.environ[cache.VARIABLE] == "before"
    assert main(["--cache", "off", "--version"]) == 0
    assert os.environ[cache.VARIABLE] == "off"
    assert main(["--help"]) == 0
    assert "--cache DIR|off" in capsys.readouterr().out


IN_PYTHON = """
import os, warnings
import deeprok
from deeprok.tabular.problems import parse
for folder in {folders}:
    os.environ["DEEPROK_CACHE"] = folder
    with warnings.catch_warnings(record=True) as said:
        deeprok.solve(parse("river_swim").model, "l1", 0.1, 0.9)
    print(len(said), os.path.isdir(folder))
"""


def test_in_python_it_is_used_if_it_is_asked_for(tmp_path: Path) -> None:
    """Whatever was compiled before; and what can't be used is said once."""
    (tmp_path / "file").touch()
    code = IN_PYTHON.format(folders=["", "off", "file/cache", "file/cache", "mine"])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=bare(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0 False", "0 False", "1 False", "0 False", "0 True"]
    assert not (tmp_path / "caches").exists()


def test_train_and_evaluate_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(cache, "enable", lambda: calls.append("cache"))
    for given in ("", "somewhere"):
        monkeypatch.setenv(cache.VARIABLE, given)
        for call in (lambda: deeprok_package.train(None, "out"), lambda: deeprok_package.evaluate("nowhere")):
            with pytest.raises(DeeprokError):
                call()
    assert calls == ["cache", "cache"]


def test_workers_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    (tmp_path / "file").touch()
    for given in ("off", str(tmp_path / "file" / "cache")):
        monkeypatch.setenv(cache.VARIABLE, given)
        with cache.shared() as environment:
            temporary = Path(environment[cache.VARIABLE])
            assert temporary.is_dir()
        assert not temporary.exists()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    with cache.shared() as environment:
        assert environment[cache.VARIABLE] == str(tmp_path / "cache")
        assert environment["PATH"] == os.environ["PATH"]
    assert (tmp_path / "cache" / "compiled").is_dir()


def test_a_worker_enables_it_on_its_own_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(sys, "argv", ["worker", "1", str(tmp_path)])
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: calls.append(cores), raising=False)
    monkeypatch.setattr(cache, "enable", lambda warn: calls.append("cache"))
    monkeypatch.setattr(workers, "train_together", calls.append)
    workers.work()
    assert calls == [{1}, "cache", [tmp_path]]


def test_tests_leave_the_users_cache_alone() -> None:
    assert os.environ[cache.VARIABLE] == "off"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]
