"""What may be tried for the settings of a run, as its parts state it."""

from __future__ import annotations

from typing import NamedTuple

from deeprok.core.errors import DeeprokError, shown
from deeprok.core.fields import check_field, number_type
from deeprok.core.search import Range, Searched
from deeprok.runs.parts import setting_types
from deeprok.runs.run_settings import search_run
from deeprok.runs.settings import Config


class Stated(NamedTuple):
    """What is tried for a setting."""

    searched: Searched
    by: str  # what states it: a kind of part, or "every run"


def stated_space(config: Config) -> dict[str, Stated]:
    """What the parts of a run state for its settings: each may replace what one before it states.

    Their order is that of presets: every run, the environment, network, learner, target and estimator, and last the
    algorithm, whose own settings nothing else changes.
    """
    found: dict[str, Stated] = {}
    known = config.flat()
    statements = [("every run", search_run(config))]
    statements += [
        (section, part.search(getattr(config, section)))
        for section, part in config.parts._asdict().items()
        if part is not None
    ]
    for by, space in statements:
        found |= {name: Stated(searched, by) for name, searched in space.items() if name in known}
    own = {name: Stated(searched, "algorithm") for name, searched in config.row.search.items()}
    found = {name: stated for name, stated in found.items() if name not in config.row.settings} | own
    types = setting_types(config.algorithm, config.env, config.network)
    for name, stated in found.items():
        check_searched(f"the search space of {config.algorithm}: {name}", stated.searched, types[name], config)
    return found


def check_searched(key: str, searched: Searched, hint: object, config: Config) -> None:
    """Raises, with its name, unless a setting may have all that is to be tried."""
    kind = number_type(hint)
    if isinstance(searched, Range):
        low, high, log = searched
        if kind is None or not low < high or (log and low <= 0):
            raise DeeprokError(
                f"{key} is {shown(searched)}; a range needs a setting that is a number, its low end below the "
                "high one, and with log both above 0"
            )
        if kind is int and not (float(low).is_integer() and float(high).is_integer()):
            raise DeeprokError(f"{key} is {shown(searched)}; the ends of this range must be whole numbers")
    ends = searched[:2] if isinstance(searched, Range) else searched
    if not ends:
        raise DeeprokError(f"{key} has nothing to choose from; give at least two values")
    for value in ends:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        check_field(
            key, (int(value) if kind is int else float(value)) if kind and number else value, hint, config.precision
        )
