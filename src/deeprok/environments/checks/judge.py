"""What random play tells of an environment: parameters without effect, failures, returns, endings, scales."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from deeprok.environments.base import AnyEnvironment
from deeprok.environments.checks.declared import Tried, describe_corners
from deeprok.environments.checks.record import (
    OWN_WORDS,
    Difference,
    Finding,
    Played,
    Player,
    Taken,
    Values,
    counted,
    difference,
    listed,
    model_text,
    numbers,
)

#: Steps in which the effect of a parameter is looked for: one of the box, and any other.
_BOX_STEPS, _OTHER_STEPS = 10_000, 200

#: An observation this many times larger than its scale, or smaller, is worth knowing.
_LARGE, _SMALL = 10.0, 0.01

#: A simulation in which an observation becomes this many times larger than on the nominal model is unstable.
_RUN_AWAY = 1e6

#: How unlikely it must be by chance that all episodes which last so long terminate in one step.
_CHANCE = 1e-4

_ROBUST = "a robust target, which compares the outcomes of one action, does not see it"


# --- parameters ----------------------------------------------------------------------------------------


def check_effects(
    env: AnyEnvironment,
    player: Player,
    tried: Tried,
    episodes: Sequence[Sequence[Taken]],
    stale: Collection[str],
    advance: Callable[[], None],
) -> list[Finding]:
    """Which parameters have no effect, or not on everything.

    Args:
      env: the environment.
      player: how it is played.
      tried: its models.
      episodes: on the nominal model.
      stale: parameters of which it is known what is wrong.
      advance: called after each parameter.
    """
    found, seen, groups = [], list[str](), dict[str, list[str]]()
    for name, ends in tried.ends.items():
        boxed = name in env.box
        at_once, whole = _effect(player, tried, name, episodes, _BOX_STEPS if boxed else _OTHER_STEPS)
        advance()
        if at_once is not None and "observations" in at_once.kinds:
            kind = ""
        else:
            kind = _limited(at_once, whole)
        if not kind:
            seen.append(name)
        elif boxed and name not in stale:
            found.append(_sentence(name, ends, kind, (at_once or whole).steps, player.used.get(name)))
        elif not boxed:
            groups.setdefault(kind, []).append(name)
    if seen:
        boxed_ones, others = ([name for name in seen if (name in env.box) == inside] for inside in (True, False))
        parts = [f"of {listed(boxed_ones)} at the ends of the box"] if boxed_ones else []
        if others:
            parts.append(f"of {listed(others) if len(others) < 6 else f'{len(others)} others'} near the nominal value")
        found.append(Finding("parameters", "pass", f"An effect was seen {', and '.join(parts)}."))
    for kind, names in groups.items():
        found.append(_others(kind, names, player))
    return found


def _effect(
    player: Player, tried: Tried, name: str, episodes: Sequence[Sequence[Taken]], most: int
) -> tuple[Difference | None, Difference]:
    """What a parameter changes: in the outcome of one action, None if that is not known; and in whole episodes."""
    at_once, whole = None, Difference(False, frozenset(), 0)
    models = [tried.model(**{name: value}) for value in tried.ends[name]]
    if player.branches:
        branches = itertools.islice(player.branches([tried.nominal, *models]), len(episodes))
        at_once = difference(branches, most)
        if "observations" in at_once.kinds:
            return at_once, whole
    for model in models:
        pairs = (zip(*pair, strict=False) for pair in zip(episodes, player.episodes(model), strict=False))
        one = difference(pairs, most)
        whole = Difference(whole.start or one.start, whole.kinds | one.kinds, whole.steps + one.steps)
    return at_once, whole


def _limited(at_once: Difference | None, whole: Difference) -> str:
    """What kind of effect a parameter has, if it is not one on observations in each step; empty if it is."""
    if at_once is None:
        if whole.start:
            return "" if whole.kinds else "start or more"
        return "" if "observations" in whole.kinds else _only(whole.kinds)
    if at_once.kinds:
        return "" if "observations" in whole.kinds else _only(at_once.kinds)
    if whole.start:
        return "start"
    return "later" if whole.kinds else "none"


def _only(kinds: frozenset[str]) -> str:
    return " and ".join(sorted(kinds)) if kinds else "none"


def _sentence(name: str, ends: tuple[float, float], kind: str, steps: int, used: bool | None) -> Finding:
    """What is said of a parameter of the box."""
    low, high = (f"{end:g}" for end in ends)
    tested = f"{counted(steps, 'step')} of random play at {low} and {high}"
    if kind == "none" and used:
        return Finding(
            "parameters",
            "note",
            f"No effect of {name} was seen in {tested}. It is computed with, so that its effect may need a state that "
            "random actions do not reach; if not, look for what hides it.",
        )
    if kind == "none":
        why = (
            "Neither reset nor step computes anything with it; use it, or take it out of the box."
            if used is False
            else "Unless it takes a state that random actions do not reach, a number that follows from it was computed "
            "before it was set: compute that in step, or give from_gymnasium a function derive that does."
        )
        return Finding("parameters", "problem", f"No effect of {name} was seen in {tested}. {why}")
    return Finding("parameters", "note", _said(kind, name) + ".")


def _said(kind: str, names: str) -> str:
    return {
        "start": f"Only the start of an episode was seen to depend on {names}, no step: {_ROBUST}",
        "start or more": f"The start of an episode depends on {names}; whether its steps do can't be told, since the "
        "state can't be restored",
        "later": f"No outcome of a single action was seen to depend on {names}, only what follows later: {_ROBUST}",
        "rewards": f"The rewards of a step were seen to depend on {names}, its observations not",
        "termination": f"The end of an episode was seen to depend on {names}, its observations not",
    }.get(kind, f"The rewards and the end of an episode were seen to depend on {names}, its observations not")


def _others(kind: str, names: list[str], player: Player) -> Finding:
    """What is said of parameters outside the box."""
    these = listed(names)
    if kind != "none":
        return Finding("parameters", "pass", f"Outside the box: {_lower(_said(kind, these))}.")
    unread = [name for name in names if player.used.get(name) is False]
    more = f"; neither reset nor step computes anything with {listed(unread)}" if unread else ""
    return Finding("parameters", "note", f"Outside the box: no effect was seen of {these}{more}.")


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


# --- random play ---------------------------------------------------------------------------------------


def check_failures(env: AnyEnvironment, nominal: Played, corners: Sequence[tuple[Values, Played]]) -> list[Finding]:
    """Simulations that failed."""
    found = []
    boxed = [({name: model[name] for name in env.box}, played) for model, played in corners]
    for where, played in [("the nominal model", nominal), *((model_text(model), played) for model, played in boxed)]:
        if played.failures:
            steps, reasons = zip(*played.failures, strict=True)
            first = f"in step {min(steps)}" if min(steps) else "at the start"
            remedy = "; narrow the box, or make the simulation more stable, such as by a shorter time step."
            sentence = (
                f"On {where}, {len(steps)} of {counted(len(played.steps), 'random episode')} failed, the first "
                f"{first}, with {reasons[0]}{'.' if reasons[0].startswith(OWN_WORDS) else remedy}"
            )
            found.append(Finding("box" if where != "the nominal model" else "step", "problem", sentence))
    return found + [finding for model, played in boxed if (finding := _run_away(env, nominal, model, played))]


def _run_away(env: AnyEnvironment, nominal: Played, model: Values, played: Played) -> Finding | None:
    """What is said of a corner at which numbers stay finite, but grow without end."""
    if played.failures or not nominal.low.size:
        return None
    ratios = _sizes(played) / np.maximum(_sizes(nominal), np.asarray(env.observation_scale, float))
    place = int(np.argmax(ratios))
    if ratios[place] < _RUN_AWAY:
        return None
    sentence = (
        f"On {model_text(model)}, observation {place} reached {_sizes(played)[place]:.4g}, on the nominal model "
        f"{_sizes(nominal)[place]:.4g}: the simulation is unstable there; narrow the box, or shorten its time step."
    )
    return Finding("box", "problem", sentence)


def _sizes(played: Played) -> np.ndarray:
    """The largest size of each observation [D]."""
    return np.maximum(np.abs(played.low), np.abs(played.high))


def check_returns(
    env: AnyEnvironment, tried: Tried, nominal: Played, corners: Sequence[tuple[Values, Played]]
) -> Finding:
    """What random play earns, so that the scale of the rewards is seen."""
    low, mean, high = np.min(nominal.returns), np.mean(nominal.returns), np.max(nominal.returns)
    said = f"Random play on the nominal model earns {mean:.4g} on average ({low:.4g} to {high:.4g})"
    if corners:
        model, _ = min(corners, key=lambda corner: float(np.mean(corner[1].returns)))
        means = [float(np.mean(played.returns)) for _, played in corners]
        worst = model_text({name: model[name] for name in env.box})
        lowest = min(float(np.min(played.returns)) for _, played in corners)
        span = f"from {min(means):.4g} (on {worst}) to {max(means):.4g}" if min(means) < max(means) else "as much"
        said += f", on {describe_corners(env, tried)} {span}; the lowest return of all is {min(lowest, low):.4g}"
    return Finding("returns", "pass", said + ".")


def check_success(env: AnyEnvironment, nominal: Played, corners: Sequence[tuple[Values, Played]]) -> Finding:
    """Whether `success_return` tells good episodes from bad ones."""
    count, goal = len(nominal.returns), env.success_return
    succeeded = int(np.sum(nominal.returns > goal))
    said = f"{succeeded} of {counted(count, 'episode')} on the nominal model"
    if corners:
        elsewhere = np.concatenate([played.returns for _, played in corners])
        said += f" and {int(np.sum(elsewhere > goal))} of {len(elsewhere)} at the corners of the box"
    # Rewards above 0 pay most in the longest episode, those below in the shortest.
    most = nominal.best * env.horizon if nominal.best > 0 else nominal.best
    if 2 * succeeded >= count:
        sentence = (
            f"Random play already succeeds, with returns above success_return, {goal:.4g}, in {said}; a higher one "
            "tells good agents from bad ones."
        )
        return Finding("success", "note", sentence)
    if most <= goal:
        sentence = (
            f"The largest reward of a step was {nominal.best:.4g}, with which no return can be above success_return, "
            f"{goal:.4g}: better actions must earn more in a step, or no agent can succeed."
        )
        return Finding("success", "note", sentence)
    return Finding("success", "pass", f"Random play has returns above success_return, {goal:.4g}, in {said}.")


def check_endings(env: AnyEnvironment, nominal: Played, corners: Sequence[tuple[Values, Played]]) -> list[Finding]:
    """Whether termination is told from time being up."""
    every = [nominal, *(played for _, played in corners)]
    sound = [played for played in every if not played.failures]
    if not sound:
        return []
    steps, terminated, truncated = (
        np.concatenate([getattr(played, name) for played in sound]) for name in ("steps", "terminated", "truncated")
    )
    count, full = len(steps), steps == env.horizon
    found = []
    if (early := truncated & ~full & ~terminated).any():
        shortest, longest = int(np.min(steps[early])), int(np.max(steps[early]))
        span = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        sentence = (
            f"The simulator itself truncated {int(early.sum())} of {counted(count, 'random episode')}, after {span} "
            f"steps, before the horizon of {env.horizon}; if that is its time limit, give it as horizon."
        )
        found.append(Finding("termination", "note", sentence))
    remedy = (
        "If that is only because time is up, leave it out of terminated: the horizon truncates episodes, and a target "
        "goes on beyond it. If the task itself ends there, its observations should show the time."
    )
    if full.sum() > 1 and terminated[full].all():
        sentence = (
            f"{int(full.sum())} of {count} random episodes reached the horizon, {counted(env.horizon, 'step')}, and "
            f"each of these was reported as terminated in that very step. {remedy}"
        )
        found.append(Finding("termination", "note", sentence))
    elif count > 2 and terminated.all() and (steps == steps[0]).all() and steps[0] > 1:
        sentence = (
            f"Each of {count} random episodes, whatever its model, terminated in step {steps[0]} exactly. {remedy}"
        )
        found.append(Finding("termination", "note", sentence))
    elif count_last := _by_the_clock(sound):
        sentence = (
            f"{count_last} of {count} random episodes terminated in step {np.max(steps)} exactly, and none lasted "
            f"longer, which looks like a time limit. {remedy}"
        )
        found.append(Finding("termination", "note", sentence))
    if not found:
        ended = int(terminated.sum())
        said = f"{ended} of {counted(count, 'random episode')} terminated"
        said += f", after {np.min(steps[terminated])} to {np.max(steps[terminated])} steps" if ended else ""
        over = int((full & ~terminated).sum())
        said += f"; {over} reached the horizon of {env.horizon}, which was not reported as termination" if over else ""
        found.append(Finding("termination", "pass", said + "."))
    return found


def _by_the_clock(played: Sequence[Played]) -> int:
    """How many episodes terminated in the last step of all, if that looks like a time limit; else 0.

    Other episodes terminate earlier, at a rate that is measured in the second half of the time. If the survivors
    terminated at that rate too, they would hardly all do so in the same step. What ends by itself, such as a fall,
    takes another time on another model; so some must have survived on more than one. Episodes of one number have the
    same actions on all models and count once.
    """
    steps, terminated = (np.concatenate([getattr(one, name) for one in played]) for name in ("steps", "terminated"))
    limit = int(np.max(steps))
    last = steps == limit
    models = sum((one.steps == limit).any() for one in played)
    if limit < 2 or not terminated[last].all() or models < min(2, len(played)):
        return 0
    since = limit // 2
    survived = np.clip(np.minimum(steps, limit - 1) - since, 0, None).sum()  # steps, of all episodes together
    rate = (np.sum((steps > since) & ~last) + 1) / (survived + 2)
    different = len({number for one in played for number in np.flatnonzero(one.steps == limit).tolist()})
    return int(last.sum()) if rate < 1 and rate**different < _CHANCE else 0


def check_scales(env: AnyEnvironment, nominal: Played) -> list[Finding]:
    """Whether observations have the sizes that `observation_scale` says."""
    size, scale = _sizes(nominal), np.asarray(env.observation_scale, float)
    found = []
    for wrong, what in ((size > _LARGE * scale, "far above"), ((size < _SMALL * scale) & (size > 0), "far below")):
        if wrong.any():
            places = np.flatnonzero(wrong)
            sentence = (
                f"{_places(places)} reached {numbers(size[places])} in random play, {what} observation_scale there, "
                f"{numbers(scale[places])}; give typical sizes, or train with the preset default, which normalises."
            )
            found.append(Finding("scales", "note", sentence))
    constant = np.flatnonzero(nominal.low == nominal.high)
    if constant.size:
        sentence = f"{_places(constant)} never changed in random play; leave out what tells nothing."
        found.append(Finding("scales", "note", sentence))
    if not found:
        sentence = f"Observations reach {numbers(size)} in random play; observation_scale is {numbers(scale)}."
        found.append(Finding("scales", "pass", sentence))
    return found


def _places(places: np.ndarray) -> str:
    """Which observations, counted from 0; of many some."""
    names = [str(place) for place in places[:5].tolist()]
    if len(places) > 5:
        return f"Observations {', '.join(names)} and {len(places) - 5} more (counted from 0)"
    return f"Observation{'s' if len(names) > 1 else ''} {listed(names)} (counted from 0)"
