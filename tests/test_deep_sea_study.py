"""The study of deep exploration, small."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from deeprok.runs.settings import Config
from deeprok.training.scan import make_program
from studies import deep_sea, deep_sea_page
from studies.__main__ import STUDIES
from studies.engine import Options, run_study

DEPTHS = (3, 4)
AGENTS = ("dqn", "boot_dqn")
MEASURE = deep_sea.measure
MAKE = deep_sea.make


def small(agent: str, depth: int, episodes: int, changes: dict[str, Any]) -> Config:
    tiny: dict[str, Any] = dict(hidden=(3,), batch_size=4, warm_up=5, replay_size=40)
    return MAKE(agent, depth, episodes, changes).replace(**tiny, **({"members": 2} if agent == "boot_dqn" else {}))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_sea, "make", small)
    monkeypatch.setattr(deep_sea, "AGENTS", {agent: deep_sea.AGENTS[agent] for agent in AGENTS})
    monkeypatch.setattr(deep_sea, "TRIALS", {agent: deep_sea.TRIALS[agent][:2] for agent in AGENTS})
    monkeypatch.setattr(deep_sea, "DEPTHS", DEPTHS)
    monkeypatch.setattr(deep_sea, "EPISODES", 60)
    monkeypatch.setattr(deep_sea, "TUNING_EPISODES", 20)
    monkeypatch.setattr(deep_sea, "TUNING_SEEDS", (1000, 1001))
    monkeypatch.setattr(deep_sea, "measure", functools.partial(MEASURE, depths=DEPTHS))


# --- what is measured --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "after"),
    [
        ([0] * 50, None),
        ([1], 1),
        ([0] * 8 + [1], 9),  # a ninth
        ([0] * 9 + [1], None),  # a tenth, which is not more than a tenth
        ([0] * 9 + [1, 1], 11),
        ([0] * 100 + [1] * 20, 112),  # 12 of 112; 11 of 111 would be less than a tenth
    ],
)
def test_when_it_is_solved(found: list[int], after: int | None) -> None:
    """By bsuite's definition: the first episode whose average regret, bad episodes over all, is below 0.9."""
    flags = np.array(found, bool)
    assert deep_sea.solved_after(flags) == after
    regret = [(n - flags[:n].sum()) / n for n in range(1, len(flags) + 1)]
    assert next((i + 1 for i, share in enumerate(regret) if share < 0.9 - 1e-12), None) == after


@pytest.mark.slow
def test_a_dive_is_a_training_with_a_map_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the program of `deeprok train --action-seed`, for each of two seeds."""
    monkeypatch.setattr(deep_sea, "SOLVED", 2.0)  # never, so that the whole budget is used
    config = small("dqn", 3, 40, dict(epsilon_fraction=1.0, learning_rate=1e-3))
    parts: list[float] = []
    found = deep_sea.dive(config, (0, 3), parts.append)
    assert sum(parts) == pytest.approx(1.0)
    for seed in (0, 3):
        program = make_program(config.replace(action_seed=seed))
        states = jax.tree.map(lambda leaf: jnp.copy(leaf[None]), program.init(jax.random.key(seed)))
        returns: list[float] = []
        for index in range(2):
            states, log = program.advance(states, index)
            returns += list(np.asarray(log.earned[0])[np.asarray(log.ended[0])])
        assert len(returns) == 40
        first = int(np.flatnonzero(np.array(returns) > 0.5)[0]) + 1
        assert found[str(seed)] == {"first": first, "solved": None, "diverged": False}
    assert found["0"] != found["3"]


class Dives:
    """Stands in for `dive`: what was asked for."""

    def __init__(self, stop: str = "", fails: str = "") -> None:
        self.asked: list[tuple[str, int, tuple[int, ...]]] = []
        self.stop = stop
        self.fails = fails

    def __call__(self, config: Config, seeds: Sequence[int], advance: Any) -> dict[str, Any]:
        depth = config.environment.horizon
        if self.stop == f"{config.algorithm} {depth}" and max(seeds) < 1000:
            raise KeyboardInterrupt
        self.asked.append((config.algorithm, depth, tuple(seeds)))
        advance(1.0)
        # The second trial of each agent is the better one.
        second = config.flat().get("mask") == 1.0 or config.flat()["learning_rate"] == 3e-3
        after = None if config.algorithm == self.fails else 10 if second else 15
        return {str(s): {"first": 2, "solved": after, "diverged": False} for s in seeds}


def test_measuring_adds_up(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep_sea.json"

    def measure(seeds: int, stop: str = "") -> tuple[dict[str, Any], list[Any]]:
        dives = Dives(stop)
        monkeypatch.setattr(deep_sea, "dive", dives)
        work: list[float] = []
        try:
            found = deep_sea.measure(Options(seeds=seeds, out=tmp_path), path, lambda what, part: work.append(part))
        except KeyboardInterrupt:
            return {}, dives.asked
        assert sum(work) == pytest.approx(deep_sea._work(Options(seeds=seeds, out=tmp_path)))
        return found, dives.asked

    trials = [(agent, 3, (1000, 1001)) for agent in AGENTS for _ in range(2)]
    assert measure(2, stop="boot_dqn 4")[1] == [*trials, *((a, 3, (0, 1)) for a in AGENTS), ("dqn", 4, (0, 1))]
    found, asked = measure(2)
    assert asked == [("boot_dqn", 4, (0, 1))]  # what was stored before it was interrupted is not done again
    assert found["chosen"] == {agent: deep_sea.TRIALS[agent][1] for agent in AGENTS}
    for agent in AGENTS:
        for depth in DEPTHS:
            row = found["rows"][agent][str(depth)]
            assert row["settings"] == small(agent, depth, 60, found["chosen"][agent]).digest()
            assert list(row["seeds"]) == ["0", "1"]
    assert measure(3)[1] == [(agent, depth, (2,)) for depth in DEPTHS for agent in AGENTS]
    # What is not come to yet when a later call is interrupted stays too, also in a file that this call has written.
    assert measure(4, stop="dqn 3")[1] == []
    assert measure(3)[1] == []
    monkeypatch.setattr(deep_sea, "EPISODES", 80)
    assert measure(3)[1] == [(agent, depth, (0, 1, 2)) for depth in DEPTHS for agent in AGENTS]


def test_an_agent_that_fails_is_not_taken_deeper(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dives = Dives(fails="dqn")
    monkeypatch.setattr(deep_sea, "dive", dives)
    options, work = Options(seeds=2, out=tmp_path), list[float]()
    found = deep_sea.measure(options, tmp_path / "deep_sea.json", lambda what, part: work.append(part))
    assert [list(found["rows"][agent]) for agent in AGENTS] == [["3"], ["3", "4"]]
    assert ("dqn", 4, (0, 1)) not in dives.asked
    assert sum(work) == pytest.approx(deep_sea._work(options))


@pytest.mark.slow
def test_study(tiny: None, tmp_path: Path) -> None:
    """From training to page and figure; in waters this shallow everyone finds the treasure."""
    written = io.StringIO()
    options = Options(seeds=2, out=tmp_path, jobs=1)
    run_study(deep_sea.STUDY, options, Console(file=io.StringIO()), Console(file=written, width=200))
    report = tmp_path / "report"
    saved = json.loads((report / "deep_sea" / "deep_sea.json").read_text())
    assert "kept" not in saved
    assert (report / "deep_sea.md").read_text() == deep_sea_page.page(saved)
    assert all(agent in written.getvalue() for agent in AGENTS)
    for kind in ("png", "svg"):
        assert (report / "deep_sea" / f"episodes.{kind}").stat().st_size > 5000
    assert saved["command"] == "deeprok reproduce --study deep_sea --seeds 2"
    for agent in AGENTS:
        assert [len(trial["seeds"]) for trial in saved["tuning"]["trials"][agent]] == [2, 2]
        for row in saved["rows"][agent].values():
            for seed in row["seeds"].values():
                assert seed["solved"] is None or 1 <= seed["first"] <= seed["solved"] <= 60
    assert any(seed["solved"] for row in saved["rows"]["dqn"].values() for seed in row["seeds"].values())


def test_study_is_listed_and_fair() -> None:
    assert STUDIES["deep_sea"] is deep_sea.STUDY
    assert set(deep_sea.TRIALS) == set(deep_sea.AGENTS) == set(deep_sea._WORK) == set(deep_sea_page._STYLES)
    assert len({len(trials) for trials in deep_sea.TRIALS.values()}) == 1  # as many trials for each
    assert not set(deep_sea.TUNING_SEEDS) & set(range(1000))
    for agent, trials in deep_sea.TRIALS.items():
        digests = set()
        for changes in trials:
            config = MAKE(agent, 30, deep_sea.EPISODES, changes)
            assert config.environment.observation == "one_hot"
            assert config.environment.action_map == "random"
            assert config.shares_program  # seeds are vmapped
            digests.add(config.digest())
        assert len(digests) == len(trials)


# --- page and figure -----------------------------------------------------------------------------------------


def sample() -> dict[str, Any]:
    """Three agents: one never, one at depth 10 alone, and one whose episodes grow with the third power."""

    def row(*solved: int | None) -> dict[str, Any]:
        seeds = {str(i): {"first": x and max(1, x // 2), "solved": x, "diverged": False} for i, x in enumerate(solved)}
        return {"settings": "", "changes": {}, "seeds": seeds}

    trials = [{"settings": "", "changes": {"mask": mask}, "seeds": row(*its)["seeds"]} for mask, its in
              ((0.5, (300, 400)), (1.0, (200, None)))]  # fmt: skip
    return {
        "format": 1,
        "command": "deeprok reproduce --study deep_sea --seeds 3",
        "episodes": 4000,
        "tuning": {"depth": 10, "episodes": 2000, "trials": {"dqn": [], "ekf_dqn": [], "boot_dqn": trials}},
        "shared": deep_sea._SHARED,
        "agents": deep_sea.AGENTS,
        "chosen": {"boot_dqn": {"mask": 0.5}},
        "rows": {
            "dqn": {"10": row(900, None, None), "20": row(None, None, None), "30": row(None, None, None)},
            "ekf_dqn": {"10": row(500, 700, None), "20": row(None, None, None)},
            "boot_dqn": {"10": row(90, 100, 110), "20": row(800, 700, 900), "30": row(2700, None, 1000)},
        },
    }


def test_medians_and_growth() -> None:
    found = sample()
    assert deep_sea_page.median(found, "boot_dqn", "10") == 100
    assert deep_sea_page.median(found, "boot_dqn", "30") == 2700
    assert deep_sea_page.median(found, "ekf_dqn", "10") == 700
    assert deep_sea_page.median(found, "dqn", "10") == np.inf
    assert deep_sea_page.exponent(found, "boot_dqn") == pytest.approx(3.0)  # 100, 800, 2700
    assert deep_sea_page.exponent(found, "ekf_dqn") is None
    assert deep_sea.merit(found["tuning"]["trials"]["boot_dqn"][1], 2000) == (200 + 4000) / 2


def test_page_of_a_sample() -> None:
    found = sample()
    page = deep_sea_page.page(found)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert ["10", "1 of 3", "> 4000", "2 of 3", "700", "3 of 3", "100", "1.02e+03"] in lines
    assert ["30", "0 of 3", "> 4000", "–", "–", "2 of 3", "2700", "1.07e+09"] in lines
    assert ["Bootstrapped DQN", "`mask` 0.5", "2 of 2", "300, 400", "yes"] in lines
    assert ["Bootstrapped DQN", "`mask` 1", "1 of 2", "200, –", ""] in lines
    assert ["Bootstrapped DQN", "30", "2700, –, 1000", "1350, –, 500"] in lines
    text = " ".join(page.split())
    assert "The medians of Bootstrapped DQN grow as the depth to the power of 3.0, by least squares" in text
    assert "No seed diverged." in text
    assert "DQN, ε-greedy at no depth, EKF-DQN, Thompson sampling to depth 10, Bootstrapped DQN to depth 30.**" in text
    # Of 2 of 3 and 1 of 3 Fisher's test says nothing.
    assert "with 2 of 3 and 1 of 3 seeds at depth 10 (p = 1), 0 of 3 and 0 of 3 seeds at depth 20 (p = 1)" in text
    assert "medians can't be compared" not in text  # ε is not known to fall over the whole run
    assert "bsuite goes to depth 50; depths beyond 30 were not run." in text
    found["chosen"]["dqn"] = {"epsilon_fraction": 1.0}
    found["rows"]["ekf_dqn"]["10"]["seeds"]["0"] |= {"first": 8, "solved": 8}
    text = " ".join(deep_sea_page.page(found).split())
    assert "medians can't be compared: ε falls over the whole run" in text
    assert "so few episodes: EKF-DQN, Thompson sampling at depth 10 in episode 8." in text
    found["rows"]["ekf_dqn"]["20"]["seeds"]["1"]["diverged"] = True
    text = " ".join(deep_sea_page.page(found).split())
    assert "Seeds whose weights became infinite or no numbers: EKF-DQN, Thompson sampling, depth 20: 1." in text
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    ((title, header, *rows),) = deep_sea_page.short_tables(found)
    assert (title.split(":")[0], len(rows), {len(row) for row in rows}) == ("Deep sea", 3, {len(header)})


def test_figure_of_a_sample() -> None:
    (panel,) = deep_sea_page.figures(sample())["episodes"].axes
    marks = [(marks.get_offsets(), marks.get_facecolor()) for marks in panel.collections]
    filled = sorted(y for points, colour in marks if len(colour) for _, y in points)
    assert filled == [90, 100, 110, 500, 700, 700, 800, 900, 900, 1000, 2700]
    # Those that have not solved it are open, above the line of the budget.
    open_marks = [y for points, colour in marks if not len(colour) for _, y in points]
    assert len(open_marks) == 2 + 3 + 3 + 1 + 3 + 1
    assert min(open_marks) > 4000
    assert max(open_marks) < panel.get_ylim()[1]
    assert any("not solved within 4000 episodes" in text.get_text() for text in panel.texts)
    medians = [list(line.get_ydata()) for line in panel.lines]
    assert [100, 800, 2700] in medians
