"""All checks of an environment, in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from deeprok.core.errors import DeeprokError
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.checks import in_jax, judge, simulator
from deeprok.environments.checks.declared import Tried, check_declared, models_to_try, passed
from deeprok.environments.checks.record import Episode, Finding, Played, Taken, Values, summed_up, words
from deeprok.environments.host import HostEnvironment
from deeprok.environments.registry import usual_environment

#: Random episodes on each model; of a simulator no more are begun after so many steps, unless they are few.
_EPISODES, _STEPS, _FEWEST = 10, 4000, 4


def check_environment(
    env: AnyEnvironment | str,
    episodes: int | None = None,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
) -> list[Finding]:
    """Tries an environment by random play, and says what it found.

    Shapes and types; whether all random numbers are decided by key or seed; whether a simulator's state is restored;
    whether termination is told from time being up; parameters that have no effect; the nominal model and the corners
    of the box, where a simulation may fail; what random play earns; and the sizes of observations.

    Args:
      env: an environment, or its name.
      episodes: random episodes on each model, and as many in which actions are held for some steps; by default 10, and
        fewer of a simulator whose episodes are long.
      seed: seed of the random numbers.
      advance: called with the fraction of the work done since its last call.

    Returns:
      What was found. An environment without a finding of the level `problem` can be trained on.

    Example:
      >>> found = check_environment("cartpole", episodes=3)
      >>> any(finding.level == "problem" for finding in found)
      False
    """
    if episodes is not None and episodes < 1:
        raise DeeprokError(f"episodes is {episodes}; it must be at least 1")
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")
    if isinstance(env, str):
        env = usual_environment(env)
    found = check_declared(env)
    if _broken(found):
        return [*found, _rest()]
    if env.box and not any(finding.subject == "box" for finding in found):
        found.append(passed(env))
    tried = models_to_try(env, seed)
    found += (
        simulator.check_calls(env, tried, seed) if isinstance(env, HostEnvironment) else in_jax.check_functions(env)
    )
    if _broken(found):
        return [*found, _rest()]
    return found + _play(env, tried, episodes, seed, advance or (lambda fraction: None))


def _broken(found: list[Finding]) -> bool:
    return any(finding.level == "problem" for finding in found)


def _rest() -> Finding:
    return Finding("other checks", "note", "The rest was not tried; fix this first, and check again.")


def _affordable(episodes: Iterable[Episode], most: float) -> list[list[Taken]]:
    """Episodes, an even number of them, until so many steps were taken."""
    played, steps = list[list[Taken]](), 0
    for episode in episodes:
        if steps >= most and len(played) % 2 == 0 and len(played) >= _FEWEST:
            break
        played.append(list(episode))
        steps += len(played[-1]) - 1
    return played


def _play(
    env: AnyEnvironment, tried: Tried, episodes: int | None, seed: int, advance: Callable[[float], None]
) -> list[Finding]:
    """What needs random play."""
    part = 1.0 / (2 + len(tried.corners) + len(tried.ends))  # of the work

    def done() -> None:
        advance(part)

    try:
        if isinstance(env, HostEnvironment):
            player = simulator.host_player(env, tried, episodes or _EPISODES, seed)
            usual = _affordable(player.episodes(tried.nominal), np.inf if episodes else _STEPS)
        else:
            player = in_jax.jax_player(env, tried, episodes or _EPISODES, seed)
            usual = _affordable(player.episodes(tried.nominal), np.inf)
    except Exception as error:  # of JAX, where it compiles what a user wrote
        return [Finding("step", "problem", f"Random play fails with {words(error)}."), _rest()]
    nominal, stale = summed_up(usual), dict[str, Finding]()
    done()
    if isinstance(env, HostEnvironment):
        found = [simulator.check_randomness(env, tried, usual, seed)]
        repeats = not _broken(found)
        if repeats:
            found += simulator.check_branching(env, tried, usual, seed)
            found += simulator.check_nominal(env, tried, usual, seed)
            stale = simulator.check_stale(env, player, tried)
            found += stale.values()
    else:
        found, repeats = [in_jax.check_randomness(env)], True  # compiled, it does in any case
    done()
    corners = list[tuple[Values, Played]]()
    for model in tried.corners:
        corners.append((model, summed_up(itertools.islice(player.episodes(model), len(usual)))))
        done()
    found += judge.check_endings(env, nominal, corners)
    if repeats:
        found += judge.check_effects(env, player, tried, usual, stale, done)
    else:
        sentence = "Which of them have no effect can't be told from episodes that do not repeat."
        found.append(Finding("parameters", "note", sentence))
    found += judge.check_failures(env, nominal, corners)
    if nominal.low.size:
        found += judge.check_scales(env, nominal)
    found.append(judge.check_returns(env, tried, nominal, corners))
    if not isinstance(env, HostEnvironment) or "success_return" not in env.assumed:
        found.append(judge.check_success(env, nominal, corners))
    return found
