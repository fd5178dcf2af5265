"""A stateful simulator: shapes and types, random numbers, restoring its state, and how it is played at random."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.environments.checks.declared import Tried
from deeprok.environments.checks.record import (
    Episode,
    Finding,
    Player,
    Taken,
    Values,
    apart,
    counted,
    failure,
    held,
    model_text,
    near,
    numbers,
    same,
    words,
)
from deeprok.environments.host import HostEnvironment, HostOutcome, Simulator, model_of
from deeprok.environments.host_wrappers import action_sampler
from deeprok.environments.spaces import Interval

#: Episodes, and steps of each, that are repeated, and in which restoring the state is tried.
_EPISODES, _STEPS = 4, 100

#: Steps of an episode after which its state is stored and put back in another simulation.
_STORED = (0, 1, 3, 10, 30, 99)

#: Steps for which an episode without parameters is compared.
_GOING_ON = 5

_SEED = "Take random numbers from self.np_random, after super().reset(seed=seed), and set all of the state in reset."


class Draws(NamedTuple):
    """The random numbers of an episode: the simulator's seed, and its actions."""

    seed: int
    action: Callable[[], Any]


def draws_of(env: HostEnvironment, seed: int, number: int) -> Draws:
    """The random numbers of the episode of that number, the same on every model."""
    random, hold = np.random.default_rng((seed, number)), held(number)
    first = int(random.integers(2**32))
    return Draws(first, _actions(env, random, hold).__next__)


def _actions(env: HostEnvironment, random: np.random.Generator, hold: int) -> Iterator[Any]:
    """Random actions, each held for some steps; if for more than one, numbers are at one of their ends."""
    sample = action_sampler(env)
    while True:
        action = sample(random)[()]
        if hold > 1 and isinstance(env.actions, Interval):
            ends = np.array([env.actions.low, env.actions.high])
            action = ends[random.integers(2, size=len(env.actions)), np.arange(len(env.actions))]
        yield from itertools.repeat(action, hold)


def check_calls(env: HostEnvironment, tried: Tried, seed: int) -> list[Finding]:
    """Whether a simulation can be made, reset and stepped, and gives what it must."""
    draws, doing = draws_of(env, seed, 0), "make()"
    try:
        made: Any = env.make()  # whatever a user's function gives
        if not isinstance(made, Simulator):
            sentence = (
                f"make returns a {type(made).__name__}; it must be a Simulator: failures, reset, step, outcomes, "
                "read and write."
            )
            return [Finding("simulator", "problem", sentence)]
        simulator: Simulator = made
        doing = "reset(seed, model)"
        obs = simulator.reset(draws.seed, model_of(env, tried.nominal))
        found = _check_obs(env, obs, "reset")
        doing = "step(action)"
        found += _check_outcome(env, simulator.step(draws.action()), "step", ())
        if env.branching != "none" and env.box and not found:
            simulator.reset(draws.seed, model_of(env, tried.nominal))
            doing = "outcomes(action, models)"
            two = {name: np.array([tried.corners[0][name], tried.corners[-1][name]]) for name in env.box}
            found += _check_outcome(env, simulator.outcomes(draws.action(), two), "outcomes", (2,))
    except Exception as error:  # whatever a user's simulator raises
        why = _floats(env, tried, seed)
        return [Finding("simulator", "problem", f"{doing} fails with {words(error)}{why}.")]
    if found:
        return found[:1]
    size = len(env.observation_scale)
    return [
        Finding("observations", "pass", f"reset and step give {counted(size, 'number')}, as observation_scale has."),
        Finding("step", "pass", "reward is a number, terminated true or false."),
    ]


def _floats(env: HostEnvironment, tried: Tried, seed: int) -> str:
    """What is said of a simulation that can be played if no parameter is set: its parameters are now floats."""
    draws = draws_of(env, seed, 0)
    try:
        simulator = env.make()
        simulator.reset(draws.seed, {})
        simulator.step(draws.action())
    except Exception:  # then it is not the parameters
        return ""
    return (
        f", and does not if no parameter is set; {model_text(model_of(env, tried.nominal))} are set as floats: where a "
        "whole number is needed, round in two functions, parameters=(read, write), or in a property with a setter"
    )


def _check_obs(env: HostEnvironment, obs: Any, function: str, count: tuple[int, ...] = ()) -> list[Finding]:
    size, array = len(env.observation_scale), np.asarray(obs)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        sentence = f"The observation of {function} is of type {array.dtype}; it must be an array of numbers."
    elif array.shape != (*count, size):
        sentence = (
            f"The observation of {function} has the shape {array.shape}, but observation_scale has {size} numbers; the "
            f"shape must be {(*count, size)}."
        )
    elif not np.isfinite(array).all():
        sentence = f"The observation of {function} is {numbers(array.ravel())}; it must be finite."
    else:
        return []
    return [Finding("observations", "problem", sentence)]


def _check_outcome(env: HostEnvironment, outcome: Any, function: str, count: tuple[int, ...]) -> list[Finding]:
    if not isinstance(outcome, HostOutcome):
        return [
            Finding("step", "problem", f"{function} returns a {type(outcome).__name__}; it must return a HostOutcome.")
        ]
    found = _check_obs(env, outcome.obs, function, count)
    for name, kinds, what in (("reward", "fiu", "numbers"), ("terminated", "b", "bools")):
        array = np.asarray(getattr(outcome, name))
        if array.shape != count or array.dtype.kind not in kinds:
            sentence = (
                f"The {name} of {function} is {array.dtype} of shape {array.shape}; it must be {what} of shape {count}."
            )
            found.append(Finding(name, "problem", sentence))
    return found


def check_randomness(env: HostEnvironment, tried: Tried, episodes: list[list[Taken]], seed: int) -> Finding:
    """Whether an episode repeats itself: in the simulation that has played others, and in a new one.

    Args:
      env: the environment.
      tried: its models.
      episodes: on the nominal model, as they were played first.
      seed: of the random numbers.
    """
    simulator, steps = env.make(), 0
    for again in (False, True):
        for number, episode in enumerate(episodes[:_EPISODES]):
            repeated = _play(env, simulator, tried.nominal, draws_of(env, seed, number))
            for t, (one, two) in enumerate(zip(episode[: _STEPS + 1], repeated, strict=False)):
                if one[1:] != two[1:] or not same(one.obs, two.obs):
                    where = f"in step {t}" if t else "at its start"
                    how = "reset again in one simulation" if again else "played in two simulations"
                    sentence = (
                        f"An episode with the same seed, model and actions goes another way {where} when {how}: "
                        f"{apart(two, one)}. {_SEED}"
                    )
                    return Finding("determinism", "problem", sentence)
                steps += 1
    sentence = (
        f"The same seed, model and actions give the same episode, in {counted(steps, 'step')} that were repeated."
    )
    return Finding("determinism", "pass", sentence)


def _play(env: HostEnvironment, simulator: Simulator, model: Values, draws: Draws) -> Iterator[Taken]:
    """A random episode; what a user's simulator raises is its failure."""
    known = dict(simulator.failures)
    try:
        with np.errstate(all="ignore"):
            obs = np.asarray(simulator.reset(draws.seed, model_of(env, model)), float)
        yield Taken(obs, failure=failure(obs, 0.0))
        for _ in range(env.horizon):
            with np.errstate(all="ignore"):
                outcome = simulator.step(draws.action())
            taken = _taken(outcome, simulator, known)
            yield taken
            if taken.terminated or taken.truncated or taken.failure:
                return
    except Exception as error:
        yield Taken(np.zeros(len(env.observation_scale)), failure=words(error))


def _taken(outcome: HostOutcome, simulator: Simulator, known: Mapping[str, int]) -> Taken:
    reward, obs = float(outcome.reward), np.array(outcome.obs, float)
    failed = [name for name, count in simulator.failures.items() if count > known.get(name, 0)]
    why = failure(obs, reward) or (f"a simulation that is {failed[0]}" if failed else "")
    return Taken(obs, reward, bool(outcome.terminated), bool(getattr(simulator, "truncated", False)), why)


def host_player(env: HostEnvironment, tried: Tried, episodes: int, seed: int) -> Player:
    """How a stateful simulator is played."""
    simulator, beside = env.make(), env.make()

    def episodes_on(model: Values) -> Iterator[Episode]:
        return (_play(env, simulator, model, draws_of(env, seed, number)) for number in range(2 * episodes))

    def branch(models: Mapping[str, np.ndarray], count: int, draws: Draws) -> Iterator[tuple[Taken, ...]]:
        known = dict(beside.failures)
        try:
            yield (Taken(np.array(beside.reset(draws.seed, model_of(env, tried.nominal)), float)),) * count
            for _ in range(env.horizon):
                action = draws.action()
                with np.errstate(all="ignore"):
                    answers = beside.outcomes(action, models)
                    taken = tuple(_taken(HostOutcome(*column), beside, known) for column in zip(*answers, strict=True))
                    own = beside.step(action)
                yield taken
                if taken[0].failure or own.terminated or getattr(beside, "truncated", False):
                    return
        except Exception as error:
            sound = Taken(np.zeros(len(env.observation_scale)))
            yield (sound, *(sound._replace(failure=words(error)) for _ in range(count - 1)))

    def branches(models: Sequence[Values]) -> Iterator[Iterator[tuple[Taken, ...]]]:
        changed = {name for name in tried.nominal if any(model[name] != tried.nominal[name] for model in models)}
        asked = {name: np.array([model[name] for model in models]) for name in {**env.box, **dict.fromkeys(changed)}}
        return (branch(asked, len(models), draws_of(env, seed, number)) for number in range(2 * episodes))

    return Player(episodes_on, branches if env.branching == "restored" else None)


# --- restoring the state -------------------------------------------------------------------------------


def check_branching(env: HostEnvironment, tried: Tried, episodes: list[list[Taken]], seed: int) -> list[Finding]:
    """How it answers for several models, and whether the answers are right; arguments as for `check_randomness`."""
    if env.branching == "none":
        why = f"can't be restored ({env.problem})" if env.problem else "is not restored, since branching is none"
        remedy = (
            " To fix it, give from_gymnasium the place of its state, or set branching to copies (--branching copies)."
            if env.branched
            else ""
        )
        sentence = (
            f"Its state {why}, so branching is none: algorithms with a robust target refuse it, those without one, "
            f"such as ddqn_dr, train on it.{remedy}"
        )
        return [Finding("restoring", "note", sentence)]
    if not env.box:
        return []
    steps, simulator = 0, env.make()
    for number, episode in enumerate(episodes[:_EPISODES]):
        try:
            taken, wrong = _answers(env, simulator, tried, episode, draws_of(env, seed, number))
        except Exception as error:
            taken, wrong = 0, f"it fails with {words(error)}"
        steps += taken
        if wrong:
            what = f"When outcomes(action, models) is asked for in each step, {wrong}."
            remedy = " Put back all that a step changes: the state that from_gymnasium is given may lack an attribute."
            return [Finding("restoring", "problem", what + remedy)]
    tested = f"{counted(steps, 'step')} were taken after asking for the same action under other models"
    if env.branching == "copies":
        sentence = (
            f"Branching is copies, one for each model, which drift apart in an episode: a robust target is only "
            f"roughly the worst case of the present state. The episode itself is not disturbed: {tested}."
        )
        return [Finding("restoring", "note", sentence)]
    sentence = (
        f"The state is restored: {tested}, and were as without. Robust targets get the outcome of an action under each "
        "model from the same state."
    )
    return [Finding("restoring", "pass", sentence), *_check_stored(env, tried, seed)]


def _answers(
    env: HostEnvironment, simulator: Simulator, tried: Tried, episode: list[Taken], draws: Draws
) -> tuple[int, str]:
    """How many steps of an episode were taken with answers for other models in between, and what went wrong.

    The first and the last of the models is the episode's own, for which the answer must be that of the step.
    """
    asked = [tried.nominal, tried.corners[0], tried.corners[-1], tried.nominal]
    models = {name: np.array([model[name] for model in asked]) for name in env.box}
    known, scale, t = dict(simulator.failures), np.asarray(env.observation_scale), 0
    simulator.reset(draws.seed, model_of(env, tried.nominal))
    for t, expected in enumerate(episode[1 : _STEPS + 1], 1):
        action = draws.action()
        with np.errstate(all="ignore"):
            answers = simulator.outcomes(action, models)
            taken = _taken(simulator.step(action), simulator, known)
        if expected.failure or any(simulator.failures[name] > known.get(name, 0) for name in simulator.failures):
            return t, ""  # told elsewhere
        if not same(taken.obs, expected.obs) or taken[1:3] != expected[1:3]:
            return t, (f"step {t} of an episode has another outcome than without: {apart(taken, expected)}")
        for i in (0, 3):
            answer = Taken(answers.obs[i], float(answers.reward[i]), bool(answers.terminated[i]))
            if not near(answer, taken, scale):
                which = "" if i == 0 else ", asked for after other models,"
                return t, (
                    f"the answer for the episode's own model{which} is not the outcome of step {t}: "
                    f"{apart(answer, taken)}"
                )
        if taken.terminated or taken.truncated:
            break
    return t, ""


def _check_stored(env: HostEnvironment, tried: Tried, seed: int) -> list[Finding]:
    """Whether an episode goes on as it would have when its state is stored and put back in another simulation."""
    try:
        one, other = env.make(), env.make()
        one.reset(0, model_of(env, {}))
        form = _form(one.read() or {})
        for number in range(_EPISODES):
            if found := _store(env, (one, other), form, tried, draws_of(env, seed, number)):
                return [found]
    except Exception as error:
        return [Finding("storing", "problem", f"Storing the state by read and write fails with {words(error)}.")]
    sentence = "The state can be stored and put back: a run that was stopped goes on within its episode."
    return [Finding("storing", "pass", sentence)]


def _store(
    env: HostEnvironment, simulators: tuple[Simulator, Simulator], form: Any, tried: Tried, draws: Draws
) -> Finding | None:
    """What is wrong when the state of an episode in one simulation is put into another, which then goes along."""
    (one, other), model, since = simulators, model_of(env, tried.nominal), 0
    known, scale = dict(one.failures), np.asarray(env.observation_scale)
    one.reset(draws.seed, model)
    for t in range(min(env.horizon, _STEPS)):
        if t in _STORED:
            state, since = one.read(), t
            if state is None or _form(state) != form:
                return _not_stored(getattr(one, "unread", ""), t, state is None and not form)
            other.write({name: np.array(array) for name, array in state.items()}, model)
        action = draws.action()
        with np.errstate(all="ignore"):
            expected, found = (_taken(each.step(action), each, each.failures) for each in (one, other))
        if one.failures != known:
            return None  # told elsewhere
        if not near(found, expected, scale):
            sentence = (
                f"An episode whose state was stored by read and put back by write goes another way after "
                f"{counted(t + 1 - since, 'step')}: {apart(found, expected)}; a resumed run would differ. read must "
                "give all that the future depends on."
            )
            return Finding("storing", "problem", sentence)
        if expected.terminated or expected.truncated:
            break
    return None


def _form(state: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], bool]]:
    """What a checkpoint expects of a state: name -> shape, and whether its numbers are floats."""
    return {name: (np.shape(array), np.asarray(array).dtype.kind == "f") for name, array in state.items()}


def _not_stored(why: str, steps: int, always: bool) -> Finding:
    """What is said of a state that can't be stored after some steps, or never."""
    if always and not why:
        sentence = (
            "The state can't be stored, since read gives None, as it does where whole environments are copied: a "
            "run that was stopped goes on from its next episode. If from_gymnasium is given where the state is, it "
            "can, and is faster."
        )
    else:
        what = why or "read gives None, or other names, shapes or kinds than after a reset"
        sentence = (
            f"After {counted(steps, 'step')} of an episode the state can't be stored: {what}. A run that is stopped "
            "there goes on from its next episode. If the state has the same names and shapes from a reset on, by "
            "attributes or by two functions, Access(read, write), it can."
        )
    return Finding("storing", "note", sentence)


def check_stale(env: HostEnvironment, player: Player, tried: Tried) -> dict[str, Finding]:
    """Parameters of the box that have another effect when they are set within an episode than before it begins."""
    if player.branches is None:
        return {}
    found, scale = dict[str, Finding](), np.asarray(env.observation_scale)
    for name in env.box:
        for value in tried.ends[name]:
            model = tried.model(**{name: value})
            begun = list(itertools.islice(next(iter(player.episodes(model))), 2))
            answered = [
                answers[1] for answers in itertools.islice(next(iter(player.branches([tried.nominal, model]))), 2)
            ]
            if len(begun) < 2 or len(answered) < 2 or begun[1].failure or answered[1].failure:
                continue
            (start, step), (nominal_start, answer) = begun, answered
            if same(start.obs, nominal_start.obs) and not near(answer, step, scale):
                sentence = (
                    f"The answer for {model_text({name: value})} at the start of an episode is not the first step of "
                    f"an episode with that value: {apart(answer, step)}. Something that follows from {name} is "
                    "computed in reset and stored; compute it in step, or give from_gymnasium a function derive that "
                    "does."
                )
                found[name] = Finding("parameters", "problem", sentence)
                break
    return found


def check_nominal(env: HostEnvironment, tried: Tried, episodes: list[list[Taken]], seed: int) -> list[Finding]:
    """Whether the nominal parameters are those that the simulator has by itself; as for `check_randomness`."""
    own = _play(env, env.make(), {}, draws_of(env, seed, 0))
    scale = np.asarray(env.observation_scale)
    for t, (one, two) in enumerate(zip(episodes[0][: _GOING_ON + 1], own, strict=False)):
        if not near(one, two, scale):
            sentence = (
                f"With the nominal parameters an episode goes another way than with none set, in step {t}: "
                f"{apart(one, two)}. The values of nominal must be those that the simulator has."
            )
            return [Finding("parameters", "problem", sentence)]
    return []
