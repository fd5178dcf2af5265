"""Every setting of every algorithm reaches what is computed.

Each setting is changed from a value to another, one at a time, in a tiny run in which it matters (`BASES`, or what
`CHANGES` adds to them), and something of the run must become different: the shapes that it stores, the traced
programs of a chunk and of a trial, or what a short training with a stand-in for the program leaves in its folder.
What does not flow into a result is removed from the programs first, so reading a setting is not enough. Nothing is
compiled.

A setting that must not change anything is listed with the reason, and is held to that. A new field needs a line in
`CHANGES`. Where a number can be changed alone it is: a feature switched on is a different program even if its size is
ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from configurations import make_readable
from jax.extend.linear_util import WrappedFun
from jax.interpreters import partial_eval

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.clock import Clock
from deeprok.agents.learner import LEARNERS, Learner, PlaysTrajectories
from deeprok.agents.network import MLP, NETWORKS, MLPSettings, NetworkPart
from deeprok.agents.policy.gradient import PolicyBelief, PolicyState
from deeprok.agents.targets import TARGETS
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS
from deeprok.estimators import ESTIMATORS, Fit
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.run_settings import RunSettings
from deeprok.runs.settings import Config, make_config
from deeprok.training import best
from deeprok.training import loop as trainer
from deeprok.training.scan import Log, Program, RunState, make_program

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
#: The rows that read most; the others are combinations of the same parts, and only a mistake in the row itself would
#: show in them alone.
RICHEST = ("rtd_dqn", "deep_rok")
richest_first = pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[] if name in RICHEST else pytest.mark.slow) for name in ALGORITHMS]
)


class Change(NamedTuple):
    """Another value of a setting, and the settings that it needs to matter."""

    value: Any
    where: Mapping[str, Any] = MappingProxyType({})


# --- the tables ------------------------------------------------------------------------------------------

#: Runs so small that only the tracing costs time, with as many features on as go together.
TINY: dict[str, Any] = dict(hidden=(2,), episodes=4, horizon=3, models=2, acting="member", snapshot_every=1)
LEARNING: dict[str, Any] = dict(
    **dict(chunk_steps=4, warm_up=2, target_period=3, epsilon_steps=5),
    **dict(robust_set="cvar", robust_level=0.5, confidence="time", level_start=0.9),
)
#: By estimator; for another learner than Q-learning by the learner.
BASES: dict[str, dict[str, Any]] = {
    "gradient": dict(**TINY, **LEARNING, batch_size=2),
    "kalman": dict(**TINY, **LEARNING, batch_size=2),
    "bayes_by_backprop": dict(**TINY, **LEARNING, batch_size=2, weight_prior="mixture"),
    "psgld": dict(**TINY, **LEARNING, batch_size=2, decay=0.3, burn_in=3, thinning=2, members=4),
    "unscented": dict(**TINY, **LEARNING, adaptive_noise=0.01, process_noise=0.01, kappa=0.5),
    "bootstrap": dict(**TINY, **LEARNING, batch_size=2, members=2),
    "actor_critic": dict(**TINY, **LEARNING, batch_size=2, normalise=False, activation="tanh"),
    "policy_gradient": dict(**TINY, trajectories=4, epochs=2, minibatches=2, entropy=0.01, level_iterations=3),
}

NETWORK_CRITIC: dict[str, Any] = dict(critic="kalman", critic_hidden=(2,), critic_updates=2, critic_batch=2)

TARGET: dict[str, Any] = dict(acting="sampled", target="gravity=5", particles=10)

DEEP_SEA: dict[str, Any] = dict(env="deep_sea")

#: Another value of every setting of a run and of its parts but the estimator.
CHANGES: dict[str, Change] = {
    "preset": Change("paper"),
    "seed": Change(1),
    "episodes": Change(6),
    "steps": Change(9),
    "env": Change("deep_sea"),
    "integrator": Change("semi-implicit"),
    "failing_reward": Change(0.5),
    "observation": Change("one_hot", DEEP_SEA),
    "action_map": Change("random", dict(DEEP_SEA, action_seed=1)),
    "action_seed": Change(1, dict(DEEP_SEA, action_map="random")),
    "horizon": Change(5),
    "nominal": Change("gravity=5"),
    "box": Change("pole_length=0.3:1.4,cart_mass=0.1:7"),
    "models": Change(1),
    "draw": Change("product"),
    "edges": Change(0.5),
    "fixed_models": Change("pole_length=0.3:0.5:2", dict(fixed_models="pole_length=0.3:0.4:2")),
    "sensor_noise": Change(0.2, dict(sensor_noise=0.1)),
    "action_delay": Change(2, dict(action_delay=1)),
    "parameter_noise": Change("force=0.2", dict(parameter_noise="force=0.1")),
    "memory": Change(2, dict(memory=1)),
    "simulators": Change(2),
    "acting": Change("nominal"),
    "robust_set": Change("kl"),
    "robust_level": Change(0.6),
    "confidence": Change("time", dict(confidence="fixed")),
    "level_start": Change(0.8),
    "level_steps": Change(20),
    "level_fraction": Change(0.5),
    "discount": Change(0.5),
    "double": Change(True, dict(double=False)),
    "hidden": Change((3,)),
    "activation": Change("relu"),
    "network": Change("test_settings:TWICE"),
    "input_scale": Change((1.0, 2.0, 1.0, 1.0)),
    "prior": Change("earlier"),
    "prior_part": Change("mean", dict(prior="earlier")),
    "precision": Change("float64"),
    "batch_size": Change(3),
    "replay_size": Change(5),
    "warm_up": Change(1),
    "train_every": Change(2),
    "updates": Change(3, dict(updates=2)),
    "target_period": Change(4),
    "target_rate": Change(0.5),
    "epsilon_start": Change(0.9),
    "epsilon_end": Change(0.2),
    "epsilon_steps": Change(7),
    "epsilon_fraction": Change(0.3),
    "longest_repeat": Change(3),
    "adversary": Change("stress"),
    "normalise": Change(True),
    "recalibrate": Change(True),
    "explore": Change("thompson"),
    "explore_scale": Change(2.0, dict(explore="ucb")),
    "chunk_steps": Change(6),
    "snapshot_every": Change(2),
    "trial_every": Change(3),
    "trial_models": Change(3),
    "trial_episodes": Change(3),
    "trial_epsilon": Change(0.2),
    "trial_tail": Change(0.5),
    "refine_from": Change(0.75, dict(trial_every=1, refine_from=0.25)),
    "settle": Change(True, dict(trial_every=1)),
}

#: The same of every kind of estimator, and where its algorithms need other values of the above.
OWN_CHANGES: dict[str, dict[str, Change]] = {
    "gradient": {
        "learning_rate": Change(0.2),
        "optimizer": Change("sgd"),
        "final_rate": Change(0.5),
        "averaging": Change(0.1),
        "explore_scale": Change(2.0),
    },
    "kalman": {
        "observation_noise": Change(0.3),
        "process_noise": Change(0.03),
        "prior_covariance": Change(0.5),
        "batching": Change("joint"),
        "learning_rate": Change(0.5),
        "averaging": Change(0.1),
        "covariance": Change("layer"),
        "rank": Change(2, dict(covariance="low_rank", rank=1)),
        "remembered": Change(0.2),
        "window": Change(2),
        "noise_share": Change(0.5),
    },
    "bayes_by_backprop": {
        "observation_noise": Change(0.3),
        "learning_rate": Change(0.2),
        "initial_deviation": Change(0.06),
        "weight_prior": Change("gaussian"),
        "prior_variance": Change(2.0),
        "narrow_variance": Change(0.01),
        "wide_share": Change(0.4),
        "samples": Change(2),
    },
    "psgld": {
        "observation_noise": Change(0.3),
        "learning_rate": Change(0.2),
        "decay": Change(0.4),
        "decay_updates": Change(100.0),
        "prior_variance": Change(2.0),
        "smoothing": Change(0.9),
        "damping": Change(1e-4),
        "gamma_term": Change(True),
        "frozen": Change(True),
        "burn_in": Change(4),
        "thinning": Change(3),
        "members": Change(5),
    },
    "unscented": {
        "observation_noise": Change(0.3),
        "prior_covariance": Change(0.5),
        "adaptive_noise": Change(0.02),
        "batch_size": Change(3, dict(replay_size=8)),
        "updates": Change(3, dict(replay_size=8, updates=2)),
        "process_noise": Change(0.02),
        "kappa": Change(0.6),
    },
    "bootstrap": {
        "learning_rate": Change(0.2),
        "optimizer": Change("sgd"),
        "final_rate": Change(0.5),
        "averaging": Change(0.1),
        "members": Change(3),
        "mask": Change(0.6),
        "prior_scale": Change(2.0),
    },
    "actor_critic": {
        # Its environment has other parameters and observations, and its estimator is a gradient or a filter.
        "env": Change("probe_envs:aim"),
        "box": Change("mass=0.8:1.2,length=0.7:1.3"),
        "parameter_noise": Change("mass=0.2", dict(parameter_noise="mass=0.1")),
        "fixed_models": Change("mass=0.8:1.2:2", dict(fixed_models="mass=0.9:1.2:2")),
        "input_scale": Change((1.0, 2.0, 1.0)),
        "optimizer": Change("sgd"),
        "final_rate": Change(0.5),
        "averaging": Change(0.1),
        "observation_noise": Change(0.3),
        "process_noise": Change(0.03),
        "prior_covariance": Change(0.5),
        "batching": Change("averaged"),
        "learning_rate": Change(0.5),
        "covariance": Change("layer"),
        "rank": Change(2, dict(covariance="low_rank", rank=1)),
        "remembered": Change(0.2),
        "window": Change(2),
        "noise_share": Change(0.5),
        "policy_delay": Change(3),
        "actor_rate": Change(0.2),
        "actor_final_rate": Change(0.5),
        "action_noise": Change(0.2),
        "smoothing_noise": Change(0.3),
        "smoothing_clip": Change(0.4),
    },
    "policy_gradient": {
        "env": Change("pendulum"),
        "inner": Change("natural"),
        "trajectories": Change(8),
        "learning_rate": Change(0.2),
        "clip": Change(0.3),
        "epochs": Change(3),
        "minibatches": Change(4),
        "entropy": Change(0.02),
        "kl_bound": Change(0.02, dict(inner="natural")),
        "gae_lambda": Change(0.9),
        "trajectory_set": Change("tv"),
        "trajectory_level": Change(0.6),
        "level_iterations": Change(4),
        "weigh": Change("models"),
        "adversary": Change(0.5, dict(acting="sampled", adversary=0.25)),
        "source_spread": Change(0.4, dict(acting="sampled", source_spread=0.2)),
        "target": Change("gravity=6", TARGET),
        "adapt_every": Change(3, TARGET),
        "target_trajectories": Change(3, TARGET),
        "particles": Change(11, TARGET),
        "target_noise": Change(0.02, TARGET),
        "critic": Change("adam"),
        "critic_hidden": Change((3,), NETWORK_CRITIC),
        "critic_updates": Change(3, NETWORK_CRITIC),
        "critic_batch": Change(3, NETWORK_CRITIC),
        "critic_rate": Change(0.2, dict(critic="adam")),
        "critic_noise": Change(0.3, NETWORK_CRITIC),
        "critic_drift": Change(0.02, NETWORK_CRITIC),
    },
}


def kind_of(algorithm: str) -> str:
    """Its entry in the tables."""
    row = ALGORITHMS[algorithm]
    return row.estimator if row.learner == "q_learning" else row.learner


def is_robust(algorithm: str) -> bool:
    return TARGETS[ALGORITHMS[algorithm].target].robust


def rows(kind: str = "", robust: bool | None = None) -> set[str]:
    """The algorithms of that kind, or with such targets."""
    return {
        name
        for name in ALGORITHMS
        if (not kind or kind_of(name) == kind) and (robust is None or is_robust(name) == robust)
    }


class Exempt(NamedTuple):
    """Settings of some algorithms that must not change what is computed, and why."""

    algorithms: set[str]
    settings: set[str]
    why: str


#: Settings that are accepted and change nothing.
UNREAD: list[Exempt] = [
    Exempt(set(ALGORITHMS), {"preset"}, "it tells where the other settings' values came from"),
    Exempt(rows("gradient"), {"explore_scale"}, "it scales a posterior's deviation, and a point has none"),
]

#: Settings whose change is refused.
REFUSED: list[Exempt] = [
    Exempt(set(ALGORITHMS), {"simulators"}, "the environments are in JAX"),
    Exempt(rows("gradient"), {"explore", "recalibrate"}, "a point has no posterior"),
    Exempt(rows("actor_critic"), {"double"}, "the actor chooses the successor's action"),
]


def settings_of(algorithm: str) -> list[str]:
    """The names of all settings: those of the run and of its parts."""
    return list(make_config(algorithm, "tuned").flat())


def exempt(table: list[Exempt], algorithm: str) -> set[str]:
    return {name for entry in table if algorithm in entry.algorithms for name in entry.settings}


def change_of(algorithm: str, name: str) -> Change:
    kind = kind_of(algorithm)
    if name == "algorithm":  # with the other kind of target
        others = rows(kind, not is_robust(algorithm)) or rows(kind)
        return Change(min(others - {algorithm}))
    return OWN_CHANGES[kind].get(name) or CHANGES[name]


@functools.cache
def _base(algorithm: str, where: tuple[tuple[str, Any], ...]) -> Config:
    return make_readable(algorithm, **{**BASES[kind_of(algorithm)], **dict(where)})


def base_of(algorithm: str, change: Change) -> Config:
    """The run in which that change matters."""
    return _base(algorithm, tuple(change.where.items()))


def changed(config: Config, name: str, value: Any) -> Config:
    """The settings with another value of one; raises where that is refused."""
    if name in ("algorithm", "env", "network") and isinstance(value, str):  # which decide what settings there are
        flat = {key: kept for key, kept in config.flat().items() if key not in ("algorithm", "preset", "input_scale")}
        algorithm, part = (value, {}) if name == "algorithm" else (config.algorithm, {name: value})
        return make_readable(algorithm, **{**flat, **part})
    return config.replace(**{name: value})


class _Twice(NamedTuple):
    """A perceptron whose outputs count twice."""

    inner: MLP

    num_weights = property(lambda self: self.inner.num_weights)
    slices = property(lambda self: self.inner.slices)
    neurons = property(lambda self: self.inner.neurons)

    def init(self, key: jax.Array) -> jax.Array:
        return self.inner.init(key)

    def apply(self, theta: jax.Array, obs: jax.Array) -> jax.Array:
        return 2.0 * self.inner.apply(theta, obs)


TWICE = NetworkPart(
    MLPSettings,
    lambda settings, scale, outputs: _Twice(MLP((len(scale), *settings.hidden, outputs), settings.activation, scale)),
)


# --- what is computed ------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value found in a traced program as something that compares by content."""
    if isinstance(value, jex.ClosedJaxpr):
        return plain_jaxpr(value.jaxpr), plain(value.consts)
    if isinstance(value, jex.Jaxpr):
        return plain_jaxpr(value)
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return array.shape, array.dtype.name, array.tobytes()
    if callable(value) or isinstance(value, WrappedFun):
        return None  # how to differentiate, which has been done by now
    return value


_PLAIN: dict[int, tuple[jex.Jaxpr, Any]] = {}


def plain_jaxpr(jaxpr: jex.Jaxpr) -> Any:
    """A traced program with its variables numbered; JAX uses the same object for the same function again."""
    if id(jaxpr) not in _PLAIN:
        numbers = {var: i for i, var in enumerate((*jaxpr.constvars, *jaxpr.invars))}

        def atom(x: Any) -> Any:
            return ("=", plain(x.val), x.aval) if isinstance(x, jex.Literal) else numbers.get(x)

        lines = []
        for eqn in jaxpr.eqns:
            params = tuple((name, plain(value)) for name, value in eqn.params.items())
            line = (eqn.primitive.name, params, tuple(map(atom, eqn.invars)), tuple(v.aval for v in eqn.outvars))
            numbers |= {var: len(numbers) + i for i, var in enumerate(eqn.outvars)}
            lines.append(line)
        whole = (tuple(v.aval for v in jaxpr.invars), tuple(lines), tuple(map(atom, jaxpr.outvars)))
        _PLAIN[id(jaxpr)] = jaxpr, whole  # with the program itself, so that no other takes its place in memory
    return _PLAIN[id(jaxpr)][1]


def traced(function: Any, *arguments: Any) -> Any:
    """What a jitted function computes, without what flows into none of its results, and from which numbers."""
    given = function.args if isinstance(function, functools.partial) else ()
    jitted = function.func if isinstance(function, functools.partial) else function
    closed = jitted.trace(*given, *arguments).jaxpr
    results = [True] * len(closed.jaxpr.outvars)
    needed, _ = partial_eval.dce_jaxpr(closed.jaxpr, results, instantiate=True)
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, results, instantiate=False)
    numbers = [number for number, is_used in zip(jax.tree.leaves(given), used, strict=False) if is_used]
    return plain_jaxpr(needed), plain(closed.consts), plain(numbers)


def template(program: Program) -> RunState:
    return jax.eval_shape(program.init, jax.random.key(0))


def stacked(tree: Any) -> Any:
    """Shapes with a first axis of one seed."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), tree)


def stored(config: Config, program: Program) -> Any:
    leaves, structure = jax.tree.flatten(template(program))
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def start(config: Config, program: Program) -> Any:
    return traced(jax.jit(program.init), jax.random.key(0))


def agent(config: Config, program: Program) -> Any:
    """Acting and learning alone, half of a chunk."""
    agent, state = program.learner, template(program).agent
    if isinstance(agent.plays, PlaysTrajectories):
        return None
    draw = jax.eval_shape(lambda key: agent.draw(key, ()), jax.random.key(0))

    def step(state: Any, draw: Any, obs: jax.Array, t: jax.Array) -> Any:
        clock = Clock(t, 0.5)
        return agent.act(state, draw, obs, clock), agent.learn(state, draw, clock, jnp.array(True), None)

    return traced(jax.jit(step), state, draw, jnp.zeros(len(agent.view.env.observation_scale)), jnp.int32(0))


def start_and_agent(config: Config, program: Program) -> Any:
    return start(config, program), agent(config, program)


def chunk(config: Config, program: Program) -> Any:
    return traced(program.advance, stacked(template(program)), jnp.int32(0))


def trial(config: Config, program: Program) -> Any:
    """The trial on held-out models, but for the episodes themselves."""

    def play(env: Any, act: Any, models: Any, key: jax.Array, epsilon: Any) -> jax.Array:
        seen = jnp.zeros((1, len(program.learner.view.env.observation_scale)))
        return sum(models.values()) * epsilon + jnp.sum(act(seen))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best, "play_episodes", play)
        return traced(trainer.make_trial(config, program, trainer.TRIAL), stacked(template(program).agent.belief))


def folder(config: Config, program: Program) -> Any:
    """What a training leaves whose program only counts: all that the loop around it takes from the settings."""

    def begin(key: jax.Array, belief: Any = None) -> RunState:
        told = 0.0 if belief is None else sum(float(np.sum(leaf)) for leaf in jax.tree.leaves(belief))
        zero, theta = np.zeros((), np.int32), np.full(1, told, np.float32)
        agent = PolicyState(PolicyBelief(theta, theta, zero), theta, (), None, None)
        held = np.full(int(config.refine_from > 0), -1.0, np.float32)
        return RunState(agent, None, jax.random.key_data(key), zero, zero, np.zeros((0, 1)), held)

    def count(states: RunState, t: Any) -> tuple[RunState, Log]:
        log = Log(np.ones((1, 1, 1), bool), np.zeros((1, 1, 1)), np.zeros((1, 1), bool), Fit(np.zeros((1, 1)), None))
        belief = dataclasses.replace(states.agent.belief, theta=states.agent.belief.theta + 1)
        agent = dataclasses.replace(states.agent, belief=belief)
        return dataclasses.replace(states, agent=agent, episodes=states.episodes + 1, steps=states.steps + 1), log

    load_prior = runs.load_prior
    learner = program.learner
    view = learner.view._replace(mean=lambda belief: belief.theta, posterior=None)
    restored = Learner._field_defaults["restored"]
    counting = learner._replace(view=view, metrics=lambda t, belief: {}, restored=restored)
    shapes = functools.partial(jax.eval_shape, begin, jax.random.key(0))
    stand_in = program._replace(learner=counting, init=begin, shapes=shapes, advance=count)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name, jax.disable_jit():
        patch.setattr(trainer, "make_program", lambda config: stand_in)
        patch.setattr(trainer, "make_trial", lambda *_: lambda belief: jnp.zeros(1))
        patch.setattr(runs, "load_prior", lambda folder, _: load_prior(folder, learner))
        run = Path(name) / "run"
        runs.create(run, config)
        trainer.train_together([run])
        lines = [{k: v for k, v in line.items() if "seconds" not in k} for line in runs.read_metrics(run)]
        arrays = safetensors.numpy.load_file(run / runs.CHECKPOINT)
        return lines, {name: plain(array) for name, array in arrays.items()}


Part = Callable[[Config, Program], Any]

#: The part of a run that a setting must show in, where that is not the stored shapes, the agent or a chunk.
SHOWS: dict[str, Part] = {
    **dict.fromkeys(("integrator", "failing_reward", "nominal", "chunk_steps"), chunk),
    **dict.fromkeys(("box", "models", "draw", "edges", "fixed_models", "acting"), chunk),
    **dict.fromkeys(("prior_covariance", "initial_deviation", "source_spread", "critic_noise"), start),
    "observation_noise": start_and_agent,  # the extended Kalman filter stores it, the other estimators compile it
    **dict.fromkeys(("trial_models", "trial_episodes", "trial_epsilon", "trial_tail"), trial),
    **dict.fromkeys(("seed", "prior", "prior_part", "trial_every", "refine_from", "settle"), folder),
}


@functools.cache
def part_of_base(part: Part, config: Config) -> Any:
    with config.arithmetic():
        return part(config, make_program(config))


def differ(base: Config, other: Config, parts: Iterable[Part]) -> bool:
    """Whether other settings show in one of the parts of a run."""
    with other.arithmetic():
        program = make_program(other)
        return any(part(other, program) != part_of_base(part, base) for part in parts)


# --- the tests -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cheap_tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seeds are traced one by one, which costs half (how they are arranged is no setting), and nothing is kept."""
    make = Config.make_learner
    monkeypatch.setattr(Config, "make_learner", lambda config: make(config)._replace(seeds="loop"))
    gc.disable()  # which saves a fifth
    yield
    gc.enable()
    part_of_base.cache_clear()
    _PLAIN.clear()


@pytest.fixture
def earlier_run(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder `earlier`, for the setting `prior`."""
    monkeypatch.chdir(tmp_path)
    config = base_of(algorithm, Change(None))
    runs.create(tmp_path / "earlier", config)
    state = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), template(make_program(config)))
    checkpoint.save(tmp_path / "earlier" / runs.CHECKPOINT, {"run": state})


def test_tables_name_every_setting_and_no_other() -> None:
    kinds: tuple[Mapping[str, Any], ...] = (ENVIRONMENTS, NETWORKS, TARGETS)
    shared = {f.name for f in dataclasses.fields(RunSettings)} - {"algorithm"}
    shared |= {f.name for kind in kinds for part in kind.values() for f in dataclasses.fields(part.settings)}
    of_replay = {f.name for f in dataclasses.fields(LEARNERS["q_learning"].settings)}
    shared |= of_replay
    own = {kind: {f.name for f in dataclasses.fields(part.settings)} for kind, part in ESTIMATORS.items()}
    own["policy_gradient"] = {f.name for f in dataclasses.fields(LEARNERS["policy_gradient"].settings)}
    own["policy_gradient"] |= {f.name for f in dataclasses.fields(TARGETS["worst_trajectories"].settings)}
    own["bootstrap"] = {f.name for f in dataclasses.fields(LEARNERS["bootstrap"].settings)} - shared
    own["bootstrap"] |= own["gradient"]
    own["actor_critic"] = {f.name for f in dataclasses.fields(LEARNERS["actor_critic"].settings)} - shared
    own["actor_critic"] |= own["gradient"] | own["kalman"]
    assert set(CHANGES) == shared - (own["policy_gradient"] - of_replay)  # whose adversary has another type
    assert set(OWN_CHANGES) == set(BASES) == set(own)
    for kind, names in own.items():
        assert names <= set(OWN_CHANGES[kind]) <= names | shared
    assert set(SHOWS) <= shared.union(*OWN_CHANGES.values())
    for entry in UNREAD + REFUSED:
        for algorithm in entry.algorithms:
            assert entry.settings <= set(settings_of(algorithm)), entry.why


@richest_first
def test_every_setting_changes_what_is_computed(algorithm: str, earlier_run: None) -> None:
    ineffective = []
    for name in settings_of(algorithm):
        if name in exempt(UNREAD + REFUSED, algorithm):
            continue
        change = change_of(algorithm, name)
        base = base_of(algorithm, change)
        other = changed(base, name, change.value)
        assert other != base, f"{name} is {change.value!r} already"
        if not differ(base, other, [SHOWS[name]] if name in SHOWS else [stored, agent, chunk]):
            ineffective.append(name)
    assert ineffective == []


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_setting_of_an_environment_changes_what_is_computed(env: str) -> None:
    """Those that Cart-Pole, on which the others are tested, has not."""
    known = {field.name for field in dataclasses.fields(ENVIRONMENTS["cartpole"].settings)}
    for name in {field.name for field in dataclasses.fields(ENVIRONMENTS[env].settings)} - known:
        change = change_of("rtd_dqn", name)
        base = base_of("rtd_dqn", change)
        assert base.env == env
        assert differ(base, changed(base, name, change.value), [chunk]), name


@every_algorithm
def test_what_is_listed_as_unread_changes_nothing(algorithm: str) -> None:
    """All at once, into values with which they would matter elsewhere."""
    changes = {name: change_of(algorithm, name) for name in sorted(exempt(UNREAD, algorithm))}
    where = {name: value for change in changes.values() for name, value in change.where.items()}
    base = other = base_of(algorithm, Change(None, where))
    for name, change in changes.items():
        before, other = other, changed(other, name, change.value)
        assert other != before, f"{name} is {change.value!r} already"
    assert not differ(base, other, [stored, start, chunk, trial, folder]), f"one of {', '.join(changes)} is read"


@every_algorithm
def test_what_is_listed_as_refused_is(algorithm: str) -> None:
    for name in sorted(exempt(REFUSED, algorithm)):
        change = change_of(algorithm, name)
        with pytest.raises(DeeprokError, match=str(change.value)):
            changed(base_of(algorithm, Change(None)), name, change.value)


@every_algorithm
def test_every_setting_has_bounds(algorithm: str) -> None:
    """What is not a number is no value of any setting."""
    for name in settings_of(algorithm):
        with pytest.raises(DeeprokError, match=name):
            changed(base_of(algorithm, Change(None)), name, float("nan"))
