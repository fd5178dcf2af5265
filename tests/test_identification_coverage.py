"""How often the ranges of short logs hold the truth, as the study `logs` makes them."""

from __future__ import annotations

import numpy as np
import pytest

from deeprok.identification.identify import identify
from studies import logs

#: Other seeds than those of the study, and than those that the weight of the penalty was chosen with.
FIRST_SEED, LOGS = 2000, 240


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize("name", logs.ENVS)
def test_ranges_of_short_logs_hold_the_truth_as_often_as_stated(name: str, episodes: int) -> None:
    """Of 240 logs with at most 20 steps an episode, 90 % regions hold both parameters in 85 to 95 %.

    One episode on the road may not tell the friction at all, when the range holds whatever is true.
    """
    env, held, widths = logs.environment(name), 0, []
    for seed in range(FIRST_SEED, FIRST_SEED + LOGS):
        truth = logs.true_system(env, seed)
        table = logs.make_log(env, logs.SYSTEMS[name], seed, episodes)
        found = identify(env, table, bootstrap=0, models=1, seed=seed).parameters
        held += all(found[each].low <= value <= found[each].high for each, value in truth.items())
        widths.append([(found[each].high - found[each].low) / (high - low) for each, (low, high) in env.box.items()])
    middle = np.median(widths, axis=0).round(2).tolist()
    print(f"{name}, episodes={episodes}: coverage {held / LOGS:.3f}, median widths {middle}")  # noqa: T201
    assert 0.85 <= held / LOGS <= (0.98 if episodes == 1 else 0.95)
