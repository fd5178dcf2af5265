"""Two JAX functions: shapes and types, where random numbers come from, and how they are played at random."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from deeprok.core.errors import DeeprokError, shown
from deeprok.environments.base import Environment, Outcome, with_model
from deeprok.environments.checks.declared import Tried
from deeprok.environments.checks.record import Episode, Finding, Player, Taken, Values, failure, held, words

_TRACED = "JAX traces it, so that it can't branch on values by if, nor call numpy on them: use jnp.where and jnp."


#: Addresses in memory, by which a program's text differs from one trace to the next.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def check_functions(env: Environment) -> list[Finding]:
    """Whether `reset` and `step` can be traced, and give what they must."""
    key, params = jax.random.key(0), with_model(env.nominal, {})
    try:
        start = jax.eval_shape(env.reset, key, params)
    except Exception as error:  # whatever a user's function raises
        return [_problem("reset", f"reset(key, params) fails with {words(error)}; {_TRACED}")]
    if not isinstance(start, tuple) or len(start) != 2:
        what = f"a {type(start).__name__} of {len(start)}" if isinstance(start, tuple | list) else _described(start)
        return [_problem("reset", f"reset returns {what}; it must return (state, obs).")]
    state, obs = start
    found = _check_obs(env, obs, "reset")
    try:
        action = jax.eval_shape(env.actions.sample, key)
        outcome = jax.eval_shape(env.step, key, state, action, params)
    except Exception as error:
        return [*found, _problem("step", f"step(key, state, action, params) fails with {words(error)}; {_TRACED}")]
    if not isinstance(outcome, Outcome):
        return [*found, _problem("step", f"step returns {_described(outcome)}; it must return an Outcome.")]
    found += _check_obs(env, outcome.obs, "step") if not found else []
    found += _check_state(state, outcome.state)
    found += _check_scalar("reward", outcome.reward, jnp.number, "a number such as jnp.where(fell, 0.0, 1.0)")
    found += _check_scalar("terminated", outcome.terminated, jnp.bool_, "a comparison such as jnp.abs(x) > 1.0")
    if not found:
        obs, shape = _shape(outcome.obs), _shape(outcome.reward)
        found = [
            Finding("observations", "pass", f"reset and step give observations {obs}, as observation_scale has."),
            Finding("step", "pass", f"step keeps the state's structure; reward is {shape}, terminated a bool."),
        ]
    return found


def refuse_wrong_shapes(env: Environment, name: str) -> None:
    """Raises where `reset` or `step` can't be traced, or gives what it must not; JAX would raise many lines.

    Args:
      env: the environment.
      name: how the user named it.
    """
    for finding in check_functions(env):
        if finding.level == "problem":
            raise DeeprokError(f"env is {shown(name)}, but it can't be trained on: {finding.sentence.rstrip('.')}")


def _problem(subject: str, sentence: str) -> Finding:
    return Finding(subject, "problem", sentence)


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _described(returned: Any) -> str:
    return _shape(returned) if hasattr(returned, "dtype") else f"a {type(returned).__name__}"


def _check_obs(env: Environment, obs: Any, function: str) -> list[Finding]:
    size = len(env.observation_scale)
    if not hasattr(obs, "dtype"):
        sentence = (
            f"The observation of {function} is a {type(obs).__name__}; it must be a flat array of {size} numbers."
        )
    elif obs.ndim != 1:
        sentence = (
            f"The observation of {function} is {_shape(obs)}; it must be flat: join its parts by jnp.concatenate."
        )
    elif obs.shape != (size,):
        sentence = (
            f"The observation of {function} is {_shape(obs)}, but observation_scale has {size}; it must have a number "
            "for each observation."
        )
    elif not jnp.issubdtype(obs.dtype, jnp.floating):
        sentence = f"The observation of {function} is {_shape(obs)}; it must be of floats: use .astype(float)."
    else:
        return []
    return [_problem("observations", sentence)]


def _check_scalar(name: str, leaf: Any, kind: Any, example: str) -> list[Finding]:
    if hasattr(leaf, "dtype") and leaf.shape == () and jnp.issubdtype(leaf.dtype, kind):
        return []
    expected = "bool[]" if kind is jnp.bool_ else "float32[]"
    return [_problem(name, f"The {name} of step is {_described(leaf)}; it must be {expected}, {example}.")]


def _check_state(before: Any, after: Any) -> list[Finding]:
    """Whether a step keeps the structure of the state, and the shape and type of each part."""
    old, new = (str(jax.tree.structure(tree)).removeprefix("PyTreeDef") for tree in (before, after))
    if old != new:
        sentence = f"reset gives a state of the structure {old}, step one of {new}; a step must keep it."
        return [_problem("state", sentence)]
    found = []
    for (path, leaf), kept in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if (leaf.shape, leaf.dtype) != (kept.shape, kept.dtype):
            where = f"The state's part {jax.tree_util.keystr(path)}" if path else "The state"
            how = f", such as by .astype({leaf.dtype})" if leaf.shape == kept.shape else ""
            sentence = (
                f"{where} is {_shape(leaf)} after reset and {_shape(kept)} after a step; a step must keep shapes and "
                f"types{how}."
            )
            found.append(_problem("state", sentence))
    return found


def check_randomness(env: Environment) -> Finding:
    """Whether all random numbers come from the key: traced twice, the functions must be the same two programs."""
    for name, first, second in zip(("reset", "step"), _programs(env), _programs(env), strict=True):
        if _text(first) != _text(second) or not all(map(np.array_equal, _constants(first), _constants(second))):
            sentence = (
                f"{name} is another function each time that JAX traces it, as by random numbers that do not come from "
                "its key; compiled, it would have the first ones for ever. Draw random numbers from key alone, by "
                "jax.random."
            )
            return _problem("determinism", sentence)
    return Finding("determinism", "pass", "The same key, state, action and parameters give the same outcome.")


def _text(program: Any) -> str:
    return _ADDRESS.sub("", str(program.jaxpr))


def _constants(program: Any) -> list[np.ndarray]:
    keys = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in program.consts)
    return [np.asarray(x) for x in keys]


def jax_player(env: Environment, tried: Tried, episodes: int, seed: int) -> Player:
    """How an environment in JAX is played."""
    keys = jax.random.split(jax.random.key(seed), 2 * episodes)
    holds = jnp.array([held(number) for number in range(2 * episodes)])

    @jax.jit
    def run(params: Any, other: Any) -> Any:
        def episode(key: jax.Array, hold: jax.Array) -> Any:
            start_key, actions_key, steps_key = jax.random.split(key, 3)
            start, obs = env.reset(start_key, params)

            def step(state: Any, t: jax.Array) -> Any:
                action = _action(env, jax.random.fold_in(actions_key, t // hold), hold > 1)
                key = jax.random.fold_in(steps_key, t)
                outcome, branched = (env.step(key, state, action, each) for each in (params, other))
                return outcome.state, [(each.obs, each.reward, each.terminated) for each in (outcome, branched)]

            _, taken = jax.lax.scan(step, start, jnp.arange(env.horizon))
            return obs, taken

        return jax.vmap(episode)(keys, holds)

    def play(model: Values, other: Values) -> tuple[np.ndarray, Any]:
        params, others = (with_model(env.nominal, {k: jnp.asarray(v) for k, v in m.items()}) for m in (model, other))
        return jax.tree.map(np.asarray, run(params, others))

    def episodes_on(model: Values) -> Iterator[Episode]:
        starts, (own, _) = play(model, model)
        return (_episode(starts[i], [x[i] for x in own], own[2][i]) for i in range(2 * episodes))

    def branches(models: Sequence[Values]) -> Iterator[Iterator[tuple[Taken, ...]]]:
        def under(model: Values) -> Iterator[Episode]:
            starts, (own, branched) = play(tried.nominal, model)
            return (_episode(starts[i], [x[i] for x in branched], own[2][i]) for i in range(2 * episodes))

        # One model after the other by the same program: side by side their rounding could differ.
        return (zip(*each, strict=False) for each in zip(*map(under, models), strict=True))

    return Player(episodes_on, branches, used_parameters(env))


def _action(env: Environment, key: jax.Array, extreme: jax.Array) -> jax.Array:
    """A random action; numbers are at one of their ends if they are to be extreme."""
    action = env.actions.sample(key)
    if not env.actions.continuous:
        return action
    ends = jax.random.rademacher(key, (len(env.actions),), action.dtype)
    return jnp.where(extreme, env.actions.at(ends), action)


def _episode(start: np.ndarray, outcomes: Sequence[np.ndarray], ends: np.ndarray) -> Iterator[Taken]:
    """An episode until it ends, or until it fails.

    Args:
      start: [D] the first observation.
      outcomes: observations [T, D], rewards [T] and terminations [T] of its actions.
      ends: [T] whether the episode itself terminates.
    """
    yield Taken(start, failure=failure(start, 0.0))
    for obs, reward, terminated, over in zip(*outcomes, ends, strict=True):
        wrong = failure(obs, reward)
        yield Taken(obs, float(reward), bool(terminated), failure=wrong)
        if over or wrong:
            return


def _programs(env: Environment) -> tuple[Any, Any]:
    """`reset` and `step`, traced; the parameters are the first inputs of both."""
    key, params = jax.random.key(0), with_model(env.nominal, {})
    state, _ = jax.eval_shape(env.reset, key, params)
    action = jax.eval_shape(env.actions.sample, key)
    return (
        jax.make_jaxpr(lambda params, key: env.reset(key, params))(params, key),
        jax.make_jaxpr(lambda params, key, state, action: env.step(key, state, action, params))(
            params, key, state, action
        ),
    )


def used_parameters(env: Environment) -> dict[str, bool]:
    """Parameter -> whether anything that `reset` or `step` gives is computed from it."""
    used = [dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1] for traced in _programs(env)]
    names = [field.name for field in dataclasses.fields(env.nominal)]
    return {name: any(inputs[i] for inputs in used) for i, name in enumerate(names)}
