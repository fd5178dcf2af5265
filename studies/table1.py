"""The systems of the paper's Table 1 on one environment: every estimator with either target, and policy gradients."""

from __future__ import annotations

from deeprok.evaluation import calibration
from deeprok.runs.settings import make_config
from studies import figures, plan, table1_page
from studies.engine import Found, Options, Session, Study
from studies.plan import Comparison


def _compare(options: Options) -> list[Comparison]:
    return [
        plan.beliefs(options.seeds, options.episodes),
        plan.policies(options.seeds, options.episodes),
        plan.belief_tuning(options.episodes),
    ]


def _collect(session: Session) -> Found:
    posteriors = [nominal for nominal, _ in plan.PAIRS.values() if make_config(nominal).has_posterior]
    folder = session.options.out / "beliefs"
    return {
        **session.numbers(),
        "calibration": {name: calibration.calibrate(folder / name).to_dict() for name in posteriors},
    }


STUDY = Study(
    "table1",
    "the systems of the paper's Table 1 beside each other",
    compare=_compare,
    collect=_collect,
    page=table1_page.table1_page,
    figures=figures.of_systems,
    tables=table1_page.short_tables,
)
