"""What is shown while something takes long."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deeprok.runs import folder as runs
from deeprok.runs.settings import Config, make_config
from deeprok.training import progress
from deeprok.training.jobs import watched
from deeprok.training.progress import Pace, fraction_bar, training_line, work_bar


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def after(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def piped() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=200), file


def test_time_left_is_unknown_until_there_is_a_pace(clock: Clock) -> None:
    pace = Pace()
    clock.after(60)  # compiling, which says nothing of the pace
    assert pace.left(10, 100) is None
    clock.after(5)
    assert pace.left(20, 100) is None
    clock.after(5)
    assert pace.left(30, 100) == pytest.approx(35)
    clock.after(15)
    assert pace.left(60, 100) == pytest.approx(20)
    assert pace.left(110, 100) == 0


def test_seeds_that_advance_together_are_one_report(clock: Clock) -> None:
    pace = Pace()
    for chunk in range(1, 5):
        for seed in range(3):
            left = pace.left(30 * chunk + 10 * seed - 20, 300)
            clock.after(0.01)
        clock.after(9.97)
    assert left == pytest.approx(60, rel=0.02)  # 180 of the work are left, and 30 are done in 10 s


def test_work_without_progress_has_no_pace(clock: Clock) -> None:
    pace = Pace()
    for _ in range(5):
        assert pace.left(0.0, 1.0) is None
        clock.after(10)


LINE: dict[str, Any] = {"returns": [20.0, 22.0], "epsilon": 0.5, "loss": 0.25}


def test_training_says_nothing_of_time_before_trials_are_compiled(clock: Clock) -> None:
    folder = Path("run")
    config = make_config("deep_rok", "tuned", episodes=100, chunk_steps=1000, horizon=200)
    said = progress._TimeLeft({folder: config})

    def report(chunk: int, **more: Any) -> tuple[str, str]:
        line = {**LINE, "returns": [0.0] * 5, "steps": 1000 * chunk, "episodes": 5 * chunk, **more}
        return said.speak(folder, line, {folder: line})

    clock.after(60)
    assert report(1) == ("", "")
    clock.after(30)
    assert report(2, trial_return=1.0) == ("", "")  # which compiled the trial
    clock.after(2)
    assert report(3) == ("", "")
    clock.after(2)
    # 80 episodes of 200 steps are left, at 500 steps a second.
    assert report(4, trial_return=1.0) == ("0:32 left · ", " · 500 steps/s")


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.02)
    console, file = piped()

    def wait_for(words: str) -> None:
        until = time.monotonic() + 20
        while words not in file.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)

    with fraction_bar(console, "evaluating") as advance:
        wait_for("evaluating: compiling, then the first part … · 0:00 so far")  # though nothing was reported yet
        advance(0.25)
        wait_for("evaluating:  25 %")
    ended = file.getvalue()
    time.sleep(0.1)
    assert file.getvalue() == ended
    with work_bar(console, 4.0) as done:
        done("3 of 4 radii done", 3.0)
        wait_for("3 of 4 radii done:  75 %")


def test_quick_work_says_nothing() -> None:
    console, file = piped()
    with fraction_bar(console, "evaluating") as advance:
        advance(1.0)
    assert file.getvalue() == ""


def config_of(algorithm: str, **changes: Any) -> Config:
    return make_config(algorithm, "tuned", episodes=10, chunk_steps=1500, **changes)


def test_training_line_on_a_terminal(clock: Clock) -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None, force_interactive=True)
    configs = {Path(f"seed-{s}"): config_of("rtd_dqn", seed=s) for s in (0, 1)}
    with training_line(console, configs, dict.fromkeys(configs, (0, 2))) as report:
        pass
    assert "rtd_dqn × 2 seeds" in file.getvalue()
    assert "compiling, then the first 1,500 steps …" in file.getvalue()
    assert "left" not in file.getvalue()
    with training_line(console, configs, dict.fromkeys(configs, (0, 2))) as report:
        report(Path("seed-0"), {**LINE, "steps": 1500, "episodes": 6})
    shown = file.getvalue()
    assert "8/20 episodes · return 21.0 · ε 0.50 · loss 0.25" in shown
    assert all(len(line) <= 100 for line in re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", shown).replace("\r", "\n").split("\n"))


def test_python_callers_see_a_line_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.create(tmp_path / "run", config_of("dqn"))
    with watched([tmp_path / "run"]) as report:
        assert report is None

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with watched([tmp_path / "run"]) as report:
        assert report
        report(tmp_path / "run", {**LINE, "steps": 1500, "episodes": 6})
    assert "6/10 episodes" in terminal.getvalue()
