"""The page of claims: what its verdicts follow from, and that they are those of the stored numbers."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import claims, claims_filter, claims_page, claims_targets
from studies.claims import NO, OPEN, YES, Claim, Stored, apart, apart_by, less, oftener, over, verdict
from studies.statistics import Estimate, difference

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def stored() -> Stored:
    return claims.read()


def every_claim(stored: Stored) -> list[Claim]:
    of_targets = (claims_targets.beyond_the_box, claims_targets.worst_case, claims_targets.robust_targets)
    of_filters = (claims_filter.theory, claims_filter.speed, claims_filter.covariance)
    paper = [one for preset in ("paper", "tuned") for one in claims_targets.paper_agents(stored, preset)]
    return paper + [one for make in (*of_targets, *of_filters, claims_targets.without_tuning) for one in make(stored)]


# The rule.


@pytest.mark.parametrize(
    ("interval", "bar", "said"),
    [
        ((0.1, 0.3), 0.0, YES),
        ((-0.3, -0.1), 0.0, NO),
        ((-0.1, 0.3), 0.0, OPEN),
        ((0.0, 0.3), 0.0, OPEN),  # an end that touches the bar decides nothing
        ((1e-17, 1e-17), 0.0, OPEN),  # nor does one that is above it by rounding
        ((0.6, 0.9), 0.5, YES),
        ((0.1, 0.4), 0.5, NO),
        ((-0.004, 0.002), -0.01, YES),
        (None, 0.0, OPEN),  # of a single seed
    ],
)
def test_verdict_is_where_the_interval_lies(interval: tuple[float, float] | None, bar: float, said: str) -> None:
    found = Estimate(0.0, interval)
    assert verdict(found, bar) == said
    assert less(found, bar) == {YES: NO, NO: YES, OPEN: OPEN}[said]


samples = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=6)


@given(samples, samples)
def test_verdict_on_two_agents_does_not_depend_on_who_is_first(one: list[float], other: list[float]) -> None:
    first, second = difference(one, other), difference(other, one)
    assert verdict(first) == less(second)
    assert verdict(difference(one, one)) == OPEN
    assert verdict(difference([x + 1e4 for x in one], other)) == YES


def test_stored_intervals_and_counts_of_seeds() -> None:
    high, low, between = ({"ci": ends} for ends in ([0.8, 0.9], [0.1, 0.2], [0.15, 0.85]))
    assert [apart(high, low), apart(low, high), apart(high, between)] == [YES, NO, OPEN]
    # By hand: Fisher's p is 0.0325 for 5 of 10 against 10 of 10, and 0.474 for 8 of 10.
    some = [True] * 5 + [False] * 5
    assert oftener([True] * 10, some)[0] == YES
    assert oftener(some, [True] * 10)[0] == NO
    word, p = oftener([True] * 10, [True] * 8 + [False] * 2)
    assert word == OPEN
    assert p == pytest.approx(9 / 19)


def test_several_verdicts_are_counted() -> None:
    assert over([YES, OPEN, OPEN]) == "yes on 1 of 3, inconclusive on 2"
    assert over([NO, YES]) == "yes on 1 of 2, no on 1"
    assert over([OPEN, OPEN]) == "inconclusive on 2 of 2"
    assert over([]) == "not measured yet"


def test_differences_are_written_with_signs_but_for_zero() -> None:
    assert apart_by(Estimate(-0.1234, (-0.2, 0.05))) == "−12.3 (−20.0 – +5.0)"
    assert apart_by(Estimate(-1e-17, (-1e-17, 2e-17))) == "0.0 (0.0 – 0.0)"
    assert apart_by(Estimate(2.0, None), 1.0, 2) == "+2.00"


# The page.


def test_page_is_what_the_stored_numbers_give(stored: Stored) -> None:
    assert (ROOT / "docs" / "claims.md").read_text() == claims_page.page(stored)


def test_verdicts_follow_the_numbers(stored: Stored) -> None:
    """With the rows of two agents exchanged on the put, the better one is the other."""
    assert table_row(stored, "American put")[4] == f"**{YES}**"
    defaults = copy.deepcopy(stored.defaults)
    rows = defaults["rows"]["market"]
    rows["rtd_dqn"], rows["ddqn_dr"] = rows["ddqn_dr"], rows["rtd_dqn"]
    changed = stored._replace(defaults=defaults)
    assert table_row(changed, "American put")[4] == f"**{NO}**"
    before, after = (next(claims_targets.worst_case(its)).verdict for its in (stored, changed))
    assert before.startswith("yes on 2 of 9")
    assert after.startswith("yes on 1 of 9, no on 1")


def test_page_can_be_written_where_every_aim_is_met(stored: Stored) -> None:
    defaults = copy.deepcopy(stored.defaults)
    for known in defaults["references"].values():
        for its in known.values():
            worst = its["random"]["worst_cell"]
            # Random play far below all agents, and the planner just above it.
            its["random"]["worst_cell"], its["worst_case"]["worst_cell"] = worst - 1e6, worst - 1e6 + 1.0
    changed = stored._replace(defaults=defaults)
    assert [one.verdict for one in claims_targets.without_tuning(changed)][:4] == ["on 9 of 9"] * 4
    assert "reaches its aim on 9 of 9 environments" in " ".join(claims_page.page(changed).split())


def table_row(stored: Stored, place: str) -> list[str]:
    (row,) = [row for row in claims_targets.worst_case_table(stored) if row[0] == place]
    return row


def test_every_claim_names_a_page_and_the_command_on_it(stored: Stored) -> None:
    for one in every_claim(stored):
        name, _, anchor = one.source.page.partition("#")
        text = (ROOT / "docs" / name).read_text()
        headings = [re.sub(r"[^a-z0-9 -]", "", line.lower()).split() for line in re.findall(r"^#+ (.+)$", text, re.M)]
        assert not anchor or anchor in ["-".join(words) for words in headings], one.source
        if one.source.command.startswith("pytest"):
            assert (ROOT / one.source.command.split()[1]).exists()
        else:
            assert f"\n{one.source.command}\n" in text, one.source


def test_every_claim_has_a_question_numbers_and_a_verdict(stored: Stored) -> None:
    for one in every_claim(stored):
        assert one.question.endswith("?"), one
        assert re.search(r"\d", one.numbers) or one.source.command.startswith("pytest"), one
        assert re.match(rf"({YES}|{NO}|{OPEN}|(in|on) \d+ of \d+)\b", one.verdict), one
        assert one.seeds
