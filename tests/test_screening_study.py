"""The study of environments, small."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from deeprok.environments import (
    ENVIRONMENTS,
    Axis,
    Choices,
    Environment,
    Outcome,
    StateGrid,
    pytree_dataclass,
    quantity,
)
from deeprok.evaluation.screening.result import POLICIES, Summary, judge
from studies import screening, screening_figure, screening_page
from studies.__main__ import STUDIES, listed
from studies.engine import Options, run_study
from studies.references import cross_entropy
from studies.screening import Case, case_of, screen_all, settings_of
from studies.screening_page import answer, environments_page, ordered, short_tables, verdict
from studies.searched import Effort, Family, screen_by_search

# --- a door on one of two sides -------------------------------------------------------------------------


@pytree_dataclass
class Door:
    side: Any = quantity(1.0, "", "where the door is: action 1 opens it on side 1, action 0 on side −1", positive=False)
    prize: Any = quantity(1.0, "", "reward of going through")


def step_door(key: jax.Array, state: jax.Array, action: jax.Array, params: Door) -> Outcome:
    """Ends at once: the right side earns the prize, the wrong one costs it."""
    right = jnp.where(action == 1, 1.0, -1.0) == params.side
    reward = jnp.where(right, params.prize, -params.prize)
    return Outcome(state, state, reward, jnp.bool_(True))


DOOR = Environment(
    name="door",
    reset=lambda key, params: (jnp.zeros(1), jnp.zeros(1)),
    step=step_door,
    nominal=Door(),
    box={"side": (-1.0, 1.0)},
    observation_scale=(1.0,),
    actions=Choices(("left", "right")),
    horizon=2,
    success_return=0.0,
    grid=StateGrid((Axis("place", 0.0, 1.0, 2),)),
)
SIDES = {"side": np.array([-1.0, 1.0])}
#: Policies by the sign of the first of two weights, which begin at going right.
SIGN = Family(lambda obs: jnp.array([1.0, 0.0]) + 0 * obs, lambda params: jnp.array([0.1, 1.0]), designed=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("door") / "environments" / "environments.json"
    found = screen_all(path, {"door": Case(DOOR, SIDES)}, 4, lambda what, work: None)
    assert json.loads(path.read_text()) == json.loads(json.dumps(found))
    return json.loads(path.read_text())


def test_exact_policies_of_the_door(found: dict[str, Any]) -> None:
    scores = found["environments"]["door"]["0"]["summary"]
    assert scores["each"]["worst_success"] == 1.0  # it knows the side
    assert scores["nominal"]["mean_success"] == 0.5  # it always goes right
    assert scores["nominal"]["worst_return"] == -1.0
    assert verdict(found["environments"]["door"]["0"]) == "**no**: only knowing the model pays"


def test_finished_environments_are_not_run_again(
    tmp_path: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "environments.json"
    path.write_text(json.dumps(found))
    made: list[str] = []

    def counted(case: Case, episodes: int, epsilon: float, advance: Any) -> dict[str, Any]:
        made.append(f"{case.env.name} {epsilon:g}")
        if len(made) == 2:
            raise KeyboardInterrupt
        return {"env": case.env.name}

    monkeypatch.setattr(screening, "screen_case", counted)
    work: list[float] = []
    cases = {"door": Case(DOOR, SIDES), "gate": Case(DOOR._replace(name="gate"), SIDES)}
    with pytest.raises(KeyboardInterrupt):
        screen_all(path, cases, 4, lambda what, part: work.append(part))
    assert made == ["gate 0.05", "gate 0"]
    stored = json.loads(path.read_text())["environments"]
    assert stored["door"] == found["environments"]["door"]  # untouched, and the first half of the gate is kept
    assert list(stored["gate"]) == ["0.05"]
    screen_all(path, cases, 4, lambda what, part: work.append(part))
    assert made == ["gate 0.05", "gate 0", "gate 0"]
    screen_all(path, {"door": Case(DOOR, SIDES)}, 5, lambda what, part: None)  # with other settings it is
    assert made[3:] == ["door 0.05", "door 0"]


def test_study_writes_its_report(tmp_path: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = found["environments"]["door"]["0"]
    monkeypatch.setattr(screening, "ENVIRONMENTS", {"door": None})
    monkeypatch.setattr(screening, "case_of", lambda name: Case(DOOR, SIDES))
    monkeypatch.setattr(screening, "screen_case", lambda case, episodes, epsilon, advance: made)
    out = io.StringIO()
    options = Options(out=tmp_path, episodes=10)
    told = run_study(screening.STUDY, options, Console(file=io.StringIO()), Console(file=out, width=200))
    report = tmp_path / "report"
    assert (report / "environments.md").read_text() == environments_page(json.loads(json.dumps(told)))
    assert (report / "environments" / "worst-cell.svg").exists()
    assert told["environments"]["door"]["0"]["command"] == made["command"]
    assert "50 % / −1" in out.getvalue()


# --- policies that are searched for ---------------------------------------------------------------------


def test_search_finds_what_the_grid_does(found: dict[str, Any]) -> None:
    effort = Effort(population=16, rounds=3, episodes=1)
    searched = screen_by_search(DOOR, SIGN, SIDES, 0.5, 4, 0.0, 0, lambda part: None, effort)
    solved = found["environments"]["door"]["0"]["summary"]
    for policy in ("each", "nominal"):
        assert searched.summary()[policy]._asdict() == solved[policy]
    for policy in ("mean", "cvar", "worst_case"):  # either side is right in one cell and wrong in the other
        assert searched.of(policy)[0].mean() == 0.5
    assert searched.verdict.room == "adaptation"


def test_cross_entropy_finds_directions() -> None:
    goals = np.array([[0.6, 0.8, 0.0], [0.0, -1.0, 0.0]])

    def near(tried: np.ndarray, seed: int) -> np.ndarray:
        return -np.linalg.norm(tried - goals[:, None], axis=2)

    found = cross_entropy(near, np.zeros((2, 3)), 1.0)
    np.testing.assert_allclose(found, goals, atol=0.01)


# --- the page -------------------------------------------------------------------------------------------


def scores(**policies: tuple[float, float, float]) -> dict[str, Any]:
    """Mean success, worst success and return of each policy, as a screening that is stored."""
    summary = {
        name: Summary(mean, worst, worst, back, back, back)._asdict() for name, (mean, worst, back) in policies.items()
    }
    rest = {"nominal": (0.5, 0.1, 0.5), "random": (0.0, 0.0, -0.5)}
    summary |= {name: Summary(*(x[0], x[1], x[1]), *[x[2]] * 3)._asdict() for name, x in rest.items()}
    return {
        "summary": summary,
        "grid": {"wind_speed": [0.5, 2.0]},
        "parameters": {"wind_speed": {"unit": "m/s", "nominal": 1.0}},
        "states": {"place": 7},
        "episodes": 100,
        "command": "deeprok screen sample",
    }


GOOD, POOR = (0.9, 0.8, 0.9), (0.5, 0.1, 0.5)
SAMPLES = {
    "**yes**: robust policies pay, and `mean` is not enough": {
        "each": (1.0, 1.0, 1.0), "mean": POOR, "cvar": GOOD, "worst_case": GOOD,
    },
    "**in part**: robust policies pay, but `mean` does as well": {
        "each": (1.0, 1.0, 1.0), "mean": GOOD, "cvar": GOOD, "worst_case": GOOD,
    },
    "**in part**: `mean` pays, the worst case of every step does not": {
        "each": (1.0, 1.0, 1.0), "mean": GOOD, "cvar": POOR, "worst_case": POOR,
    },
    "**no**: only knowing the model pays": {
        "each": (1.0, 1.0, 1.0), "mean": POOR, "cvar": POOR, "worst_case": POOR,
    },
    "**no**: only a margin for random actions pays": {
        "each": POOR, "mean": POOR, "cvar": GOOD, "worst_case": GOOD,
    },
    "**no**: `nominal` does as well as `each`": {
        "each": POOR, "mean": POOR, "cvar": POOR, "worst_case": POOR,
    },
}  # fmt: skip


@pytest.mark.parametrize(("words", "policies"), SAMPLES.items())
def test_verdicts_in_words(words: str, policies: dict[str, tuple[float, float, float]]) -> None:
    assert verdict(scores(**policies)) == words


def test_page_of_a_sample() -> None:
    names = ("tells", "part", "rocketry", "adapts", "margin", "none")
    found = {
        "command": "deeprok reproduce --study environments",
        "epsilons": [0.05, 0.0],
        "environments": {
            name: {"0.05": scores(**policies), "0": scores(**policies)}
            for name, policies in sorted(zip(names, SAMPLES.values(), strict=True))
        },
    }
    assert ordered(found) == ["tells", "part", "rocketry", "adapts", "margin", "none"]
    assert [answer(found["environments"][name]["0"]) for name in ("tells", "part", "none")] == ["yes", "in part", "no"]
    page = environments_page(found)
    row = next(line for line in page.splitlines() if line.startswith("| [`tells`](#tells)"))
    assert "| `wind_speed` 0.5 to 2 (1) m/s | 0 % / −0.5 | 50 % / 0.5 | 50 % / 0.5 | 90 % / 0.9 | 90 % / 0.9 |" in row
    assert "1 of 6 separate them: [`tells`](#tells). 2 of 6 separate them in part:" in page
    assert "about 5.0 points" in page  # √(¼ / 100)
    assert max(map(len, (line for line in page.splitlines() if not line.startswith("|")))) <= 130
    assert len(short_tables(found)[0]) == 2 + len(names)
    (drawn,) = screening_figure.of_environments(found).values()
    titles = [panel.get_title() for panel in drawn.axes]
    assert titles[:2] == ["tells: yes", "part: in part"]


# --- what is stored -------------------------------------------------------------------------------------

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return json.loads((DOCS / "environments" / "environments.json").read_text())


def test_every_environment_is_stored_with_its_present_settings(stored: dict[str, Any]) -> None:
    assert set(stored["environments"]) == set(ENVIRONMENTS) == set(screening_page.ABOUT)
    for name, its in stored["environments"].items():
        for epsilon in screening.EPSILONS:
            screened = its[f"{epsilon:g}"]
            assert screened["settings"] == json.loads(json.dumps(settings_of(case_of(name), 200, epsilon)))
            assert set(screened["summary"]) == set(POLICIES)
            said = judge({policy: Summary(**one) for policy, one in screened["summary"].items()})
            assert (screened["room"], screened["verdict"]) == said


def test_page_is_what_its_numbers_give(stored: dict[str, Any]) -> None:
    assert (DOCS / "environments.md").read_text() == environments_page(stored)
    assert {path.name for path in (DOCS / "environments").iterdir()} == {
        *("environments.json", "worst-cell.png", "worst-cell.svg")
    }


def test_studies_are_listed() -> None:
    lines = listed().splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)
    assert max(map(len, lines)) <= 100
