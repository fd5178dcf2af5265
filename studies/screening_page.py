"""The page on environments, made of nothing but the numbers of `environments.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deeprok.evaluation.screening.result import ON_AVERAGE, WORST_CELL, Summary, judge, measures
from studies.tables import Lines, figure, markdown, wrapped

#: In the order of the tables, from chance to the ceiling.
POLICIES = ("random", "nominal", "mean", "cvar", "worst_case", "each")
_ROBUST = ("cvar", "worst_case")

#: Whether an environment separates robust agents from others, and in a sentence.
_ANSWERS = {"yes": "separate them", "in part": "separate them in part", "no": "do not"}

#: Of each environment: the task, and why robustness pays or does not. Numbers are in the tables.
ABOUT = {
    "acrobot": """Swing a double pendulum above a bar with a weak motor at the elbow. A torque along the elbow's speed
adds energy under every model, so a policy for the nominal model gets there with heavier links and weaker motors as
well, only later. This environment does not separate robust agents from others.""",
    "cartpole": """Balance a pole on a cart; the paper's experiment. One linear policy does about as well on every cell
as a policy designed for that cell, and where it fails, all fail: with the shortest pole on the lightest cart a single
random action can be too much. Differences between agents are differences in learning here, not in what a robust
policy could gain.""",
    "deep_sea": """Go right in every step to find a treasure of uncertain worth. The best policy is the same for every
worth, so nothing can be gained by knowing it. It is a test of exploration and none of robustness. A treasure of less
than the success threshold never counts as success, whatever the policy: the returns show that all policies find
it.""",
    "ferry": """Cross a river with an unknown current and land near the dock. The nominal policy counts on the nominal
current: in any other it steers for the dock until the time is up and lands nowhere. The robust policy embarks further
upstream and lands in every current, at the price of a detour. There are few cells, so its values are exact.""",
    "hard_cartpole": """Cart-Pole with unknown gravity and force, and starts far from upright. It was meant to be harder
on nominal policies, and it is harder on all alike: where gravity is strong and the push weak, some starts are lost
whatever is done. The regulator for the nominal model does as well as policies for each model, so this box does not
separate robust agents from others either.""",
    "market": """Hold or exercise an American put while drift and volatility are uncertain. The nominal holder expects
falling prices and waits; where the market rises, the profit that was there is lost. The worst market of every step is
always the same one, the calmest and most rising, so the minimum in every step is no more pessimistic than the worst
case over whole episodes. It exercises early: that earns more in the worst market and gives away much of what the
others would. Success is whether the option pays anything, which is not what the policies are made for, so `each`, which
waits for more, succeeds less often.""",
    "mountain_car": """Swing a car that is too weak for the hill out of a valley. A policy for the nominal engine tries
the hill after as few swings as that engine needs; the weakest of the box needs more, and with the nominal policy runs
out of time. Only that engine makes a difference: with the others nearly all episodes get there.""",
    "pendulum": """Swing a rod up and hold it, with a torque of any size; here one of five. The nominal policy lifts
long and heavy rods too early and needs another swing. Policies for all models swing more before, and `mean` does most
of it: the gap between it and the robust ones is close to what counts here, but below.""",
    "road": """Drive through curves on tyres of unknown friction. Friction limits the speed in a curve and the brakes
before it, and leaving the road ends the drive, so that a policy for dry roads crashes on slippery ones. The robust
policy is slow for the worst friction in the box and arrives everywhere. With random actions even a policy for the true
friction crashes, because it drives at the edge of what the tyres hold and was planned without them.""",
    "rocket": """Land a rocket whose thrust and weight are unknown. A strong engine must brake late, or the rocket rises
again, a weak one early, or it crashes; no policy was found that fits both, but `mean` fits many. Against a nature
that may choose thrust and weight anew in every step no policy lands for certain: near the ground some choice makes the
rocket too fast or lifts it again. Trying to land is then worse than not trying, and the minimum in every step teaches
to stay in the air until the time is up. True parameters do not change within an episode, so this is caution against a
nature that does not exist; a worst case over whole episodes would be another thing.""",
    "swing_up": """Swing a rod up and keep it there with three torques and a motor of unknown strength. A policy for the
nominal motor lifts the rod at once where that motor could; a weaker one gets stuck half-way and needs more swings
before.""",
}


def environments_page(found: Mapping[str, Any]) -> str:
    """Markdown of the tables, the figure and a section for each environment.

    Args:
      found: what `environments.json` holds.
    """
    parts = [_introduction(found), _tables(found), _accuracy(found), _sections(found)]
    return wrapped("\n".join(parts))


def short_tables(found: Mapping[str, Any]) -> list[list[Any]]:
    """For a terminal: of each table a title, a header and its lines."""
    return [
        [f"ε = {epsilon:g}: mean success / return in the worst cell", *_table(found, epsilon, short=True)]
        for epsilon in found["epsilons"]
    ]


def _screening(found: Mapping[str, Any], name: str, epsilon: float) -> Mapping[str, Any]:
    return found["environments"][name][f"{epsilon:g}"]


def _summary(screening: Mapping[str, Any]) -> dict[str, Summary]:
    return {policy: Summary(**scores) for policy, scores in screening["summary"].items()}


def ordered(found: Mapping[str, Any]) -> list[str]:
    """The environments, those that separate agents first: by their verdict with random actions, then by name."""
    answers = {name: answer(_screening(found, name, found["epsilons"][0])) for name in found["environments"]}
    return sorted(answers, key=lambda name: (list(_ANSWERS).index(answers[name]), name))


def answer(screening: Mapping[str, Any]) -> str:
    """Whether an environment separates robust agents from others, in a word or two."""
    return verdict(screening).partition(":")[0].replace("*", "")


def verdict(screening: Mapping[str, Any]) -> str:
    """Whether an environment separates robust agents from others, and which."""
    summary = _summary(screening)

    def better(policies: tuple[str, ...], than: str) -> bool:
        return any(by.better(policy, than) for by in measures(summary) for policy in policies)

    room = judge(summary).room
    if room == "robustness":
        if better(_ROBUST, "mean"):
            return "**yes**: robust policies pay, and `mean` is not enough"
        return "**in part**: robust policies pay, but `mean` does as well"
    if room == "adaptation":
        if better(("mean",), "nominal"):
            return "**in part**: `mean` pays, the worst case of every step does not"
        return "**no**: only knowing the model pays"
    if room == "margin":
        return "**no**: only a margin for random actions pays"
    return "**no**: `nominal` does as well as `each`"


def _introduction(found: Mapping[str, Any]) -> str:
    first, last = found["epsilons"][0], found["epsilons"][-1]
    return f"""# Where can robustness pay?

A robust agent can only be better than another where the environment lets it. Training can't show that it does: an agent
may fail for many reasons. So every built-in environment was solved, nearly exactly or as well as is known, for six
policies that differ only by what they are made for, and these were played on a grid of models of its box.

An environment separates robust agents from others if

- **a wrong model costs something**: `each`, a policy for each model, is much better than `nominal`, a policy for the
  nominal one;
- **one policy can do well on many models**: `cvar` or `worst_case` is much better than `nominal` too;
- **the worst case matters**: they are also better than `mean`. Otherwise random models in training, as with domain
  randomisation, are as good.

Where the first fails, all agents that learn at all end up equal, and differences between them are differences in
learning. Where the second fails, only measuring the parameters helps. Where the third fails, a robust agent beats an
ordinary one but not a randomised one.

{_counts(found, first)}

{figure("environments", "worst-cell", "The worst cell of each policy on each environment, with and without ε")}
This page is generated, with its figure and [environments.json](environments/environments.json), by

```sh
{found["command"]}
```

which trains nothing. `deeprok screen ENV --epsilon {first:g}` or `--epsilon {last:g}` does the same for one environment
with a grid of states: [See whether robustness can pay](how-to/screen.md).
"""


def _counts(found: Mapping[str, Any], epsilon: float) -> str:
    """Which environments separate robust agents from others and which don't, in a sentence each."""
    answers: dict[str, list[str]] = {kind: [] for kind in _ANSWERS}
    for name in ordered(found):
        answers[answer(_screening(found, name, epsilon))].append(f"[`{name}`](#{name})")
    total = len(found["environments"])
    counts = [
        f"{len(names)} of {total} {_ANSWERS[kind]}: {', '.join(names)}." for kind, names in answers.items() if names
    ]
    return f"With random actions in {100 * epsilon:g} % of the steps: {' '.join(counts)}"


def _tables(found: Mapping[str, Any]) -> str:
    first, last = found["epsilons"]
    texts = (1, 2 + len(POLICIES))  # the box, and the verdict
    return f"""## All environments

Of each policy: the mean success over the cells in %, and the return in its worst cell. The policies are

| policy | made for |
|---|---|
| random | nothing: uniformly random actions |
| nominal | the nominal model |
| mean | a model drawn at random in every step |
| cvar | the worst quarter of the models in every step, averaged |
| worst case | the worst model in every step |
| each | the model that it is played on: one policy per model, which needs to know the model |

### With random actions

Actions are random with probability ε = {first:g}, as they are when agents explore. This is the table to judge by.

{markdown(_table(found, first), texts)}
### Without random actions

{markdown(_table(found, last), texts)}
One policy is better than another if its worst cell has {100 * WORST_CELL:.0f} points more success, or if it has
{100 * ON_AVERAGE:.0f} points more on average; where success is alike, returns count, with the same percentages of the
range from `random` to `each`.
"""


def _table(found: Mapping[str, Any], epsilon: float, short: bool = False) -> Lines:
    policies = [policy.replace("_", " ") for policy in POLICIES]
    lines = [["environment", *([] if short else ["uncertain (nominal)"]), *policies, "separates agents?"]]
    for name in ordered(found):
        screening = _screening(found, name, epsilon)
        cells = [_score(screening["summary"][policy]) for policy in POLICIES]
        said = answer(screening) if short else verdict(screening)
        lines.append([name if short else f"[`{name}`](#{name})", *([] if short else [_box(screening)]), *cells, said])
    return lines


def _score(scores: Mapping[str, float]) -> str:
    return f"{100 * scores['mean_success']:.0f} % / {_number(scores['worst_return'])}"


def _number(value: float) -> str:
    """Three digits or all before the point, with a minus sign."""
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")


def _box(screening: Mapping[str, Any]) -> str:
    """The ranges of the parameters, with their nominal values in brackets."""
    said = []
    for name, values in screening["grid"].items():
        about = screening["parameters"][name]
        ends = f"{_number(min(values))} to {_number(max(values))} ({_number(about['nominal'])}) {about['unit']}"
        said.append(f"`{name}` {ends.strip()}")
    return "; ".join(said)


def _accuracy(found: Mapping[str, Any]) -> str:
    episodes = {_screening(found, name, e)["episodes"] for name in found["environments"] for e in found["epsilons"]}
    return f"""## How exact this is

- **Solved on a grid.** Environments with one or two coordinates are solved by dynamic programming on a grid of states;
  their sections give its size. Values are interpolated between grid states, so that policies are nearly exact and
  none is exact, but for `ferry` and `deep_sea`, whose grid is all of their states.
- **Planned without ε.** These policies are planned as if no action were random. With random actions `each` is therefore
  no ceiling: a policy that keeps away from the edge can do better. Compare both tables.
- **Nature moves in every step.** `mean`, `cvar` and `worst_case` of a grid take the mean or the worst models anew in
  every step, as a robust target does. When played, an episode has one model.
- **Searched, not solved.** `acrobot`, `cartpole` and `hard_cartpole` have four coordinates, too many for a grid.
  Their policies push by the sign of a linear function of the observations (`acrobot`: of ten features of them) and were
  searched for by the cross-entropy method, with the same ε that they are played with: `each` on each cell, beginning at
  the linear-quadratic regulator for that cell, `mean`, `cvar` and `worst_case` for the mean return over all cells, over
  the worst quarter of them, and in the worst one. `nominal` is the regulator for the nominal model; for `acrobot`,
  which has none, it was searched for. They are the best known policies of a small class and no proven ceilings:
  that nothing better was found does not show that there is nothing. A policy for one cell was chosen by its few
  episodes in the search, so `each` may do a little worse than `nominal`.
- **Episodes.** {" or ".join(map(str, sorted(episodes)))} in each cell, with the same random numbers for all policies
  and cells, and one seed. A success rate of 50 % in a cell has a standard error of about
  {100 * (0.25 / min(episodes)) ** 0.5:.1f} points.
- **What a verdict is about.** An environment with its default box, as it is built in. Another box may be different.
"""


def _sections(found: Mapping[str, Any]) -> str:
    return "\n".join(["## Each environment\n", *(_section(found, name) for name in ordered(found))])


def _section(found: Mapping[str, Any], name: str) -> str:
    screenings = {epsilon: _screening(found, name, epsilon) for epsilon in found["epsilons"]}
    verdicts = "\n".join(f"- ε = {epsilon:g}: {judge(_summary(one)).sentence}" for epsilon, one in screenings.items())
    one = screenings[found["epsilons"][0]]
    earned = ", ".join(
        f"{policy.replace('_', ' ')} {_number(one['summary'][policy]['mean_return'])}" for policy in POLICIES
    )
    models = " × ".join(f"{len(values)} `{parameter}`" for parameter, values in one["grid"].items())
    states = " × ".join(f"{points} {coordinate}" for coordinate, points in one["states"].items())
    solved = f"States: {states}." if states else "Searched, without a grid of states."
    return f"""### {name}

{ABOUT.get(name, "")}

{verdicts}

Mean return over the cells with ε = {found["epsilons"][0]:g}: {earned}. Models: {models}. {solved}
{_command(found, one)}
"""


def _command(found: Mapping[str, Any], screening: Mapping[str, Any]) -> str:
    if screening["command"] == found["command"]:
        return "By the study alone."
    return f"By `{screening['command']}`."
