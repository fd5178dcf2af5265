"""The page and the figure of the study `actor_critics`, made of nothing but the numbers of `actor_critics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deeprok.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY
from studies import robustness_page
from studies.defaults_page import diverged, missing
from studies.marks import draw_seeds, name_rows
from studies.robustness_page import percent
from studies.simulators_page import said_of
from studies.statistics import Estimate, estimate, probability_of_improvement
from studies.tables import Lines, figure, interval, markdown, title, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]

_COLOURS = {
    "td3": BLUE,
    "td3_last": SKY,
    "td3_constant": PURPLE,
    "sb3_td3": BLACK,
    "sb3_sac": ORANGE,
    "sb3_td3_constant": "dimgrey",
    "sb3_sac_constant": GREEN,
}
#: What all rows of the table are compared with.
BASELINE = "sb3_td3_constant"
#: The page's questions, and the rows that answer them: whether the first of two does better than the second.
QUESTIONS = {
    "Does `td3` match the TD3 of stable-baselines3?": (
        ("td3_constant", "sb3_td3_constant"),
        ("td3", "sb3_td3"),
        ("td3", "sb3_td3_constant"),
    ),
    "TD3 or SAC?": (("sb3_sac_constant", "sb3_td3_constant"), ("sb3_sac", "sb3_td3"), ("sb3_sac", "td3")),
}


def each(found: Found, name: str, score: str) -> list[float]:
    """A score of each seed."""
    return [seed[score] for seed in found["rows"][found["env"]][name]["seeds"].values()]


def measured(found: Found) -> list[str]:
    """The rows that have numbers."""
    return [name for name in _COLOURS if robustness_page.measured(found, found["env"], name)]


def better(found: Found, first: str, second: str) -> Estimate:
    """The probability that a seed of the first row has a higher mean return than one of the second."""
    return estimate(probability_of_improvement, *(each(found, name, "mean_return") for name in (first, second)))


def sentence(found: Found, first: str, second: str) -> str:
    """What the seeds say of two rows; empty if one of them has no numbers."""
    if not {first, second} <= {*measured(found)}:
        return ""
    return said_of(title(first), title(second), *(each(found, name, "mean_return") for name in (first, second)))


def verdict(found: Found) -> str:
    """Each of the page's questions with what the seeds say."""
    answers = {
        question: " ".join(filter(None, (sentence(found, *pair) for pair in pairs)))
        for question, pairs in QUESTIONS.items()
    }
    return "\n".join(f"- **{question}** {answer}" for question, answer in answers.items() if answer)


def table(found: Found, short: bool = False) -> Lines:
    """A header and a line for each row that has numbers."""
    header = ["agent", "mean return", "95 % interval", "worst seed"]
    header += [f"better than {title(BASELINE)} %", "processor seconds", "seeds"]
    if short:
        header = ["", "return", "interval", "worst", "better", "seconds", "seeds"]
    lines: Lines = [header]
    for name in measured(found):
        returns = each(found, name, "mean_return")
        mean = estimate(np.mean, returns)
        compared = name != BASELINE and BASELINE in measured(found)
        lines.append(
            [
                name if short else title(name),
                f"{mean.value:.1f}",
                interval(mean.interval),
                f"{min(returns):.1f}",
                percent(better(found, name, BASELINE)) if compared else "–",
                f"{np.median(each(found, name, 'seconds')):.1f}",
                str(len(returns)),
            ]
        )
    return lines


def short_tables(found: Found) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [[f"{found['env']}, {found['steps']:,} steps", *table(found, short=True)]]


# --- the page ------------------------------------------------------------------------------------------


def _shared(found: Found) -> str:
    """What stable-baselines3's agents have of the preset."""
    its = found["shared"]
    first, last = its["learning_rate"], its["learning_rate"] * its["final_rate"]
    rate = f"{first:g}" if first == last else f"{first:g} that falls linearly to {last:g}"
    updates, steps = (
        one if its[name] == 1 else f"{its[name]} {one}s"
        for name, one in (("updates", "update"), ("train_every", "step"))
    )
    return (
        f"hidden layers of {' and '.join(map(str, its['hidden']))} units, mini-batches of {its['batch_size']}, a "
        f"learning rate of {rate}, a discount of {its['discount']:g}, {its['warm_up']:,} steps of random actions "
        f"before the first update, and then {'an ' if its['updates'] == 1 else ''}{updates} for each {steps}"
    )


def _stable_baselines(found: Found) -> str:
    if any(name.startswith("sb3") for name in measured(found)):
        return ""
    return " stable-baselines3 is not among the rows: it needs the extra `bench`, which was not installed."


def effort(found: Found) -> str:
    """How long training took in all."""
    seconds = sum(sum(each(found, name, "seconds")) for name in measured(found))
    return f"Training took {seconds / 60:.0f} minutes of one core."


def page(found: Found) -> str:
    """Markdown of the answers, the table and the figure.

    Args:
      found: what `actor_critics.json` holds.
    """
    env, simulator = found["env"], found["simulator"]
    return wrapped(
        f"""# TD3 against stable-baselines3's TD3 and SAC

The library's agents for continuous actions are [TD3](algorithms/td3.md) and its relatives. This page asks whether
`td3` learns as well as the TD3 of stable-baselines3, and whether SAC [^sac] would learn better. All agents learn to
swing up a pendulum and to hold it, for {found["steps"]:,} environment steps, with the same network, mini-batch,
discount, warm-up and number of updates, and with the same learning rate unless a row says otherwise.

{verdict(found)}

{figure("actor_critics", "returns", "Mean return of each seed of each agent on the pendulum")}

A dot is a seed, a bar the mean over seeds with its 95 % interval.

## Results

*Mean return*: over {found["episodes"]} episodes of the weights that a run ends with, without exploration; then the mean
over seeds, with its 95 % bootstrap interval. A return of 0 would be a pendulum that stands upright from the first step
on. *Worst seed*: the lowest mean return of a seed. *Better than {title(BASELINE)}*: how often a seed has a higher mean
return than one of {title(BASELINE)}; 50 % is no difference. An agent is called better or worse than another where
Welch's 95 % interval of the difference of their mean returns excludes 0.
*Processor seconds*: of training one seed, median over seeds.

{markdown(table(found))}

## How it was measured

This page is generated, with its figure and [actor_critics.json](actor_critics/actor_critics.json), by

```sh
{found["command"]}
```

which adds to what its folder holds. {effort(found)} {diverged(found)}{missing(found)}{_stable_baselines(found)}

- `{env}` is Gymnasium's `{simulator}` written in JAX: its steps and rewards are the same, as a test shows, and so are
  the first states' distribution and the limit of {found["horizon"]} steps. The library's agents learn in the former,
  stable-baselines3's in the latter, all on the nominal model alone. The test is in the former for all, from the same
  starts for every agent and seed. For this the actors of stable-baselines3 are brought over with their weights, and
  their actions are compared after each training. Returns in the test are not discounted.
- stable-baselines3's agents have the numbers of TD3's preset `default`: {_shared(found)}. Agents of *constant
  rate* keep the first learning rate to the end, as is the default of stable-baselines3. Observations are divided by
  their typical sizes, and TD3 explores with noise of a standard deviation of {found["action_noise"]:g}, as the
  library's does; by default that of stable-baselines3 does not explore. All else is as in stable-baselines3's defaults.
  The numbers were chosen for the library's TD3; for stable-baselines3's agents nothing was tuned.
- The library's TD3 also normalises observations and targets as it learns, which stable-baselines3's agents don't.
- With its preset it is tried every {found["trial_steps"]:,} steps on held-out models from the box, in episodes that
  are not counted here. After {100 * found["refine_from"]:.0f} % of the steps it goes back once to the weights that did
  best, and at its end it keeps the better of the last and the best weights. *{title("td3_last")}* and
  *{title("td3_constant")}* do neither, so that they have learned from as many steps as the others and from nothing
  else.
- Processor seconds are those of one thread that trains one seed by itself. They hold the simulation, which is in Python
  for stable-baselines3. For the library's agents they hold neither trials nor compiling the program, which takes some
  seconds once for all seeds.

[^sac]: T. Haarnoja et al., "Soft actor-critic: off-policy maximum entropy deep reinforcement learning with a stochastic
    actor", ICML, 2018, [arXiv:1801.01290](https://arxiv.org/abs/1801.01290).
"""
    )


# --- the figure ----------------------------------------------------------------------------------------


def figures(found: Found) -> dict[str, Figure]:
    """Every figure that the numbers allow, by name."""
    return {"returns": returns(found)} if measured(found) else {}


def returns(found: Found) -> Figure:
    """A row for each agent: a dot for each seed's mean return, and the mean over seeds with its interval."""
    from matplotlib.figure import Figure

    names = measured(found)[::-1]
    chart = Figure(figsize=(7.2, 0.5 * len(names) + 0.9), layout="constrained")
    panel = chart.subplots()
    for height, name in enumerate(names):
        values = each(found, name, "mean_return")
        draw_seeds(panel, height, values, estimate(np.mean, values), _COLOURS[name])
    name_rows(panel, [title(name) for name in names])
    panel.set_xlabel("mean return")
    panel.grid(axis="x", linewidth=0.5, alpha=0.5)
    return chart
