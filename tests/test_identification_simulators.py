"""Parameters of simulators from logs: a simulator is asked once, and polynomials of its answers have its likelihood."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from identified import POINT_MASS, as_table, played
from numpy.polynomial import chebyshev

from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, Access, HostEnvironment, from_gymnasium
from deeprok.environments.cartpole import cartpole
from deeprok.environments.host import model_of
from deeprok.environments.simulation import random_action
from deeprok.identification.dynamics import make_dynamics
from deeprok.identification.identify import identify
from deeprok.identification.likelihood import Unknowns, as_data, innovations_of
from deeprok.identification.log import Log
from deeprok.identification.surrogate import Asker, Surrogate, ask, basis, check_simulator, terms

TRUTH = {"push": 1.3, "friction": 0.3}


class Slider(gymnasium.Env[Any, Any]):
    """The mass of `identified.POINT_MASS`, as a simulator that fails where friction would be a push."""

    push, friction, time_step = 1.0, 0.5, 0.1
    gusts = 0.0
    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self) -> None:
        self.state, self.start = np.zeros(2), 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2)
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.friction > 1.2:
            raise ZeroDivisionError
        place, speed = self.state
        force = self.push * action[0] - self.friction * speed + self.gusts * self.np_random.normal()
        self.state = np.array([place + self.time_step * speed, speed + self.time_step * force])
        return self.state.copy(), 0.0, False, False, {}


def slider(**more: Any) -> HostEnvironment:
    given: dict[str, Any] = {
        "box": {"push": (0.5, 2.0), "friction": (0.1, 1.0)},
        "state": ["unwrapped.state"],
        "observation_scale": (1.0, 0.5),
    }
    return from_gymnasium(Slider, **(given | more))


# --- polynomials ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "degree"), [(1, 5), (2, 4), (3, 2)])
def test_the_basis_is_products_of_chebyshev_polynomials(count: int, degree: int) -> None:
    at = np.random.default_rng(0).uniform(-1, 1, count)
    powers = terms(count, degree)
    assert len({tuple(each) for each in powers.tolist()}) == len(powers)
    assert powers.sum(axis=1).max() == degree
    each = [chebyshev.chebval(at, np.eye(degree + 1)[k]) for k in range(degree + 1)]
    expected = [np.prod([each[k][i] for i, k in enumerate(row)]) for row in powers.tolist()]
    np.testing.assert_allclose(basis(at, powers), expected, rtol=1e-12)


def test_the_derivative_at_an_end_is_finite() -> None:
    with jax.enable_x64(True):
        found = jax.jacfwd(lambda at: basis(at, terms(2, 4)))(jnp.array([1.0, -1.0]))
    assert np.isfinite(found).all()


# --- the simulator's likelihood ------------------------------------------------------------------------


def random_log(name: str, model: dict[str, float], episodes: int, steps: int, sensor: float, seed: int = 0) -> Log:
    """A log of random actions; an episode ends with a termination."""
    env = ENVIRONMENTS.find(name, "env").make(ENVIRONMENTS.find(name, "env").settings())
    assert isinstance(env, HostEnvironment)
    simulator, draws = env.make(), np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {"episode": [], "t": [], "action": [], "obs": []}
    for episode in range(episodes):
        obs, ended, t = simulator.reset(seed * episodes + episode, model_of(env, model)), False, 0
        while not ended and t < steps:
            action = random_action(env.actions, draws)
            for column, value in zip(columns.values(), (episode, t, action, obs), strict=True):
                column.append(value)
            outcome = simulator.step(action)
            obs, ended, t = outcome.obs, bool(outcome.terminated), t + 1
    seen = np.array(columns["obs"])
    seen += sensor * np.array(env.observation_scale) * draws.normal(size=seen.shape)
    lengths = np.bincount(columns["episode"]) - 1
    most = lengths.max()
    padded, action = np.zeros((episodes, most + 1, seen.shape[1])), np.array(columns["action"])
    acted = np.zeros((episodes, most, *action.shape[1:]), action.dtype)
    for episode, length in enumerate(lengths):
        (rows,) = np.nonzero(np.array(columns["episode"]) == episode)
        padded[episode, : length + 1], acted[episode, :length] = seen[rows], action[rows[:-1]]
    return Log(padded, acted, lengths)


def test_gymnasiums_cart_pole_has_the_likelihood_of_ours() -> None:
    """By polynomials and differences on one side, by automatic differentiation on the other."""
    log = random_log("CartPole-v1", {"pole_length": 0.6, "cart_mass": 1.5}, 3, 20, sensor=0.002)
    env = ENVIRONMENTS.find("CartPole-v1", "env").make(ENVIRONMENTS.find("CartPole-v1", "env").settings())
    names, positive = ("pole_length", "cart_mass"), (True, True)
    surrogate = Surrogate(names, positive, env.observation_scale)
    low, high = np.log([0.4, 1.0]), np.log([0.9, 2.5])
    done: list[float] = []
    asker = Asker(env, surrogate, low, high, seed=0, sensor=0.002 * np.array(env.observation_scale))  # type: ignore[arg-type]
    found = ask(asker, surrogate, log, done.append)
    assert sum(done) == pytest.approx(1)
    assert np.all(found.error < 1e-10)
    with jax.enable_x64(True):
        ours = Unknowns(make_dynamics(cartpole(), names), positive)
        x = jnp.asarray(ours.pack(np.array([0.62, 1.4]), np.full(4, 1e-6), np.full(4, 2e-5)))
        expected = innovations_of(ours)(x, as_data(log))
        polynomial = innovations_of(Unknowns(surrogate, positive))(x, as_data(log, found))
    np.testing.assert_allclose(polynomial.value, expected.value, atol=2e-4)
    np.testing.assert_allclose(polynomial.variance, expected.variance, rtol=2e-3)


class Bent(Slider):
    """A slider whose place goes to its square, and that jumps at a push of 1."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = np.array([self.state[0] ** 2, float(self.push > 1)])
        return self.state.copy(), 0.0, False, False, {}


def test_what_polynomials_and_lines_do_not_know_is_their_error() -> None:
    """A square has an error u², of which the mean square is 3 σ⁴; a jump is no polynomial, whatever the state."""
    env = from_gymnasium(Bent, box={"push": (0.5, 2.0)}, state=["unwrapped.state"], observation_scale=(1.0, 1.0))
    surrogate = Surrogate(("push",), (True,), (1.0, 1.0))
    asker = Asker(env, surrogate, np.log([0.5]), np.log([2.0]), seed=0, sensor=np.array([0.1, 0.2]))
    table = asker.table(np.array([0.7, 0.0]), np.zeros(1))
    assert table.error[0] == pytest.approx(3 * 0.1**4, rel=1e-6)
    assert 0.001 < table.error[1] < 0.1
    with jax.enable_x64(True):
        ahead = surrogate.predict(jnp.array([1.5]), jnp.array([0.8, 0.0]), None, table)
    np.testing.assert_allclose(ahead.mean[0], 0.7**2 + 2 * 0.7 * 0.1, rtol=1e-9)
    np.testing.assert_allclose(ahead.spread, np.diag(table.error), rtol=1e-6)


def test_a_parameter_of_a_simulator_is_recovered() -> None:
    """The search begins where the simulator fails, and is narrowed."""
    log = played(POINT_MASS, {"friction": 0.3}, (40, 40), seed=0, process=0.01, sensor=0.02)
    found = identify(slider(), as_table(log), "friction", confidence=0.99, bootstrap=0, models=5)
    one = found.parameters["friction"]
    assert (found.env, found.unidentified, found.notes) == ("Slider", (), ())
    assert one.low < 0.3 < one.high < one.low + 0.3
    assert found.noise.sensor == pytest.approx((0.02, 0.01), rel=0.5)


@pytest.mark.slow
def test_a_linear_simulator_is_identified_as_the_environment_in_jax_is() -> None:
    table = as_table(played(POINT_MASS, TRUTH, (40, 40, 40), seed=0, process=0.01, sensor=0.02))
    expected = identify(POINT_MASS, table, bootstrap=0, models=5)
    found = identify(slider(), table, bootstrap=0, models=5)
    for name, one in expected.parameters.items():
        other = found.parameters[name]
        error = 0.02 * (one.high - one.low)
        assert other.estimate == pytest.approx(one.estimate, abs=error)
        assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=3 * error)
    assert found.noise.sensor == pytest.approx(expected.noise.sensor, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("CartPole-v1", {"pole_length": 0.7, "cart_mass": 1.6}),
        ("Acrobot-v1", {"link_mass_2": 1.3, "torque": 0.8}),
        ("Pendulum-v1", {"mass": 1.2, "length": 0.8}),
        ("InvertedPendulum-v5", {"mass_pole": 8.0, "length_pole": 0.9}),
    ],
)
def test_parameters_of_simulators_are_recovered(name: str, truth: dict[str, float]) -> None:
    log = random_log(name, truth, 6, 50, sensor=0.005)
    found = identify(name, as_table(log), confidence=0.99, bootstrap=0)
    assert not found.unidentified
    for parameter, value in truth.items():
        one = found.parameters[parameter]
        assert one.low <= value <= one.high
        assert one.high - one.low < 0.2 * value


@pytest.mark.slow
def test_the_ranges_hold_the_truth_of_a_simulator_as_often_as_stated() -> None:
    """Of 200 logs with 57 steps each, 90 % regions hold both parameters in 85 to 95 %."""
    truth, held = {"mass": 1.2, "length": 0.8}, 0
    for seed in range(200):
        table = as_table(random_log("Pendulum-v1", truth, 3, 20, sensor=0.01, seed=seed))
        found = identify("Pendulum-v1", table, bootstrap=0, models=1).parameters
        held += all(found[name].low <= value <= found[name].high for name, value in truth.items())
    assert 170 <= held <= 190


# --- where an observation puts a simulator -------------------------------------------------------------

PLACED = (
    *("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *("InvertedPendulum-v5", "Hopper-v5", "HalfCheetah-v5", "Reacher-v5"),
)


@pytest.mark.parametrize("name", PLACED)
def test_an_observation_tells_the_state_of_ready_made_simulators(name: str) -> None:
    env = ENVIRONMENTS.find(name, "env").make(ENVIRONMENTS.find(name, "env").settings())
    assert isinstance(env, HostEnvironment)
    check_simulator(env)


class Windy(Slider):
    """A slider in gusts."""

    gusts = 0.5


def misplaced(obs: np.ndarray) -> np.ndarray:
    return obs + 0.1


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (slider(state=None), "nothing says which state"),
        (slider(state_of=misplaced), "is not its state"),
        (slider(branching="copies"), "can't be restored"),
        (from_gymnasium(Windy, state=["unwrapped.state"]), "itself random"),
    ],
    ids=["unknown", "wrong", "copies", "random"],
)
def test_a_simulator_that_can_not_be_asked_is_refused(env: HostEnvironment, sentence: str) -> None:
    table = {"episode": [0] * 9, "t": range(9), "action_0": [0.0] * 9, "obs_0": range(9), "obs_1": range(9)}
    with pytest.raises(DeeprokError, match=sentence):
        identify(env, table, parameters="push")


def test_state_may_be_two_functions() -> None:
    access = Access(
        lambda env: {"all": env.unwrapped.state.copy()},
        lambda env, state: setattr(env.unwrapped, "state", np.array(state["all"])),
    )
    check_simulator(slider(state=access, state_of=lambda obs: {"all": obs}))


class Level(gymnasium.Env[Any, Any]):
    """A tank that leaks; the one number that is seen is an attribute."""

    leak = 0.1
    observation_space = spaces.Box(0.0, 2.0, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.level = float(self.np_random.uniform())
        return np.array([self.level]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.level += 0.1 * float(action) - self.leak * self.level
        return np.array([self.level]), 0.0, False, False, {}


class Levels(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Such tanks at once; the levels are an array without an axis of observations."""

    leak: Any = 0.1
    single_observation_space, single_action_space = Level.observation_space, Level.action_space

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.levels = self.np_random.uniform(size=self.num_envs)
        return self.levels[:, None].copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.levels = self.levels + 0.1 * np.asarray(actions) - self.leak * self.levels
        never = np.zeros(self.num_envs, bool)
        return self.levels[:, None].copy(), np.zeros(self.num_envs), never, never.copy(), {}


@pytest.mark.parametrize(("kind", "state"), [(Level, ["unwrapped.level"]), (Levels, None)])
def test_the_state_may_be_the_one_number_that_is_seen(kind: Any, state: Any) -> None:
    env = from_gymnasium(kind, box={"leak": (0.05, 0.2)}, state=state)
    check_simulator(env)
    simulator = env.make()
    simulator.reset(0, {"leak": 0.1})
    assert env.place
    env.place(simulator, np.array([0.5]))
    np.testing.assert_allclose(simulator.step(1).obs, [0.5 + 0.1 - 0.05], rtol=1e-12)
