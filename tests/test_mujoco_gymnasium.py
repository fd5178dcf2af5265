"""Gymnasium environments that MuJoCo simulates, by their ids and of one's own: parameters by name, and their state."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS, from_gymnasium
from deeprok.environments.host import HostEnvironment, HostOutcome
from deeprok.environments.mujoco_parameters import parameters_of

#: Of those that are not ready-made, some whose rewards or observations are what MuJoCo computed on its way.
IDS = ("Walker2d-v5", "Ant-v5", "InvertedDoublePendulum-v5", "Humanoid-v5", "Pusher-v5")


def made(name: str) -> HostEnvironment:
    part = ENVIRONMENTS.find(name, "env")
    env = part.make(part.settings())
    assert isinstance(env, HostEnvironment)
    return env


def actions_of(env: HostEnvironment, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(env.actions.low, env.actions.high, (steps, len(env.actions)))


def same(one: HostOutcome, other: HostOutcome) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# --- parameters ------------------------------------------------------------------------------------------


def walker_by_hand() -> Any:
    """Gymnasium's Walker with a heavier torso, less gravity, weaker legs and a slippery ground."""
    env = gymnasium.make("Walker2d-v5")
    model = env.unwrapped.model  # type: ignore[attr-defined]
    torso = model.body("torso").id
    model.body_inertia[torso] *= 7.0 / model.body_mass[torso]
    model.body_mass[torso] = 7.0
    model.opt.gravity[2] = -8.0
    model.geom_friction[:] *= 0.5
    model.dof_damping[model.jnt("leg_joint").dofadr[0]] = 0.4
    model.actuator_gear[:] *= 0.7
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return env


@pytest.mark.parametrize("seed", [0, 1])
def test_a_changed_walker_is_gymnasiums_step_for_step(seed: int) -> None:
    env, theirs = made("Walker2d-v5"), walker_by_hand()
    simulator = env.make()
    values = dict(mass_torso=7.0, gravity=8.0, friction_scale=0.5, damping_leg_joint=0.4, gear_scale=0.7)
    np.testing.assert_array_equal(simulator.reset(seed, values), theirs.reset(seed=seed)[0])
    usual = made("Walker2d-v5").make()
    usual.reset(seed, {})
    for action in 0.3 * actions_of(env, 30, seed):
        found = simulator.step(action)
        obs, reward, terminated, *_ = theirs.step(action.astype(np.float32))
        np.testing.assert_array_equal(found.obs, obs)
        assert (found.reward, found.terminated) == (reward, terminated)
    for action in 0.3 * actions_of(env, 30, seed):
        nominal = usual.step(action)
    assert np.abs(nominal.obs - found.obs).max() > 0.01  # the parameters matter


@pytest.mark.parametrize("name", IDS)
def test_they_have_the_parameters_of_their_models(name: str) -> None:
    env, inner = made(name), gymnasium.make(name).unwrapped
    known = parameters_of(inner.model).nominal  # type: ignore[attr-defined]
    assert (env.branching, env.problem, env.box) == ("restored", "", {})
    assert known.items() <= vars(env.nominal).items()
    assert {"width", "height", "frame_skip"} == vars(env.nominal).keys() - known.keys()
    assert env.nominal.__dataclass_fields__["mass_scale"].metadata["positive"]


def test_a_parameter_that_has_no_meaning_is_refused() -> None:
    simulator = made("Walker2d-v5").make()
    with pytest.raises(DeeprokError, match="friction_scale is -1; it must be of at least 0 and finite"):
        simulator.reset(0, {"friction_scale": -1.0})


# --- several models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IDS)
def test_outcomes_leave_the_simulation_as_it_was(name: str) -> None:
    """Also the answer for the model that is played is the step's."""
    env = made(name)
    asked, left, episode = env.make(), env.make(), {"mass_scale": 1.2}
    np.testing.assert_array_equal(asked.reset(3, episode), left.reset(3, episode))
    models = {"mass_scale": np.array([0.5, 1.2, 2.0]), "damping_scale": np.array([3.0, 1.0, 1.0])}
    for action in actions_of(env, 8):
        found = asked.outcomes(action, models)
        stepped = asked.step(action)
        assert same(stepped, left.step(action))
        assert same(HostOutcome(*(leaf[1] for leaf in found)), stepped)
        assert not np.array_equal(found.obs[0], found.obs[2])


def test_parameters_that_models_do_not_name_are_the_episodes() -> None:
    env = made("Walker2d-v5")
    one, other = env.make(), env.make()
    one.reset(0, {"mass_torso": 8.0})
    other.reset(0, {"mass_torso": 8.0, "gear_scale": 0.5})
    action = actions_of(env, 1)[0]
    found = one.outcomes(action, {"gear_scale": np.array([1.0, 0.5])})
    np.testing.assert_array_equal(found.obs[1], other.step(action).obs)


@pytest.mark.parametrize("name", ["Walker2d-v5", "Ant-v5"])
def test_a_simulation_is_continued_from_its_state(name: str) -> None:
    env = made(name)
    one, other = env.make(), env.make()
    one.reset(5, {"mass_torso": 2.0})
    first, *rest = actions_of(env, 6)
    one.step(first)
    stored = one.read()
    assert stored is not None
    other.write({key: np.array(value) for key, value in stored.items()}, {"mass_torso": 2.0})
    for action in rest:
        assert same(one.step(action), other.step(action))


def test_a_simulation_that_explodes_is_a_failure_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself MuJoCo would begin anew from the model's own state, and write to a file."""
    monkeypatch.chdir(tmp_path)
    env = made("InvertedDoublePendulum-v5")
    simulator = env.make()
    simulator.reset(0, {})
    found = simulator.outcomes([1.0], {"gear_scale": np.array([1.0, 1e9])})
    assert found.terminated.tolist() == [False, True]
    assert np.isfinite(found.obs).all()
    assert sum(simulator.failures.values()) == 1
    assert not simulator.step([1.0]).terminated
    assert not list(tmp_path.iterdir())


# --- a user's own ----------------------------------------------------------------------------------------

XML = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body name="rod">
      <joint name="pivot" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -1" size="0.05" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="pivot" gear="3" ctrllimited="true" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


class Rod(gymnasium.Env[Any, Any]):
    """Holds a model, without Gymnasium's class for it; a number of its own decides what is earned."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(XML)
        self.data = mujoco.MjData(self.model)
        self.taken = 0
        self.price = 0.25

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.world())
        self.world().qpos[0] = self.np_random.uniform(0.1, 0.2)
        self.taken = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.world().ctrl[:] = action
        mujoco.mj_step(self.model, self.world())
        self.taken += 1
        return self._seen(), -self.price * self.taken, False, False, {}

    def _seen(self) -> np.ndarray:
        return np.concatenate([self.world().qpos, self.world().qvel])

    def world(self) -> Any:
        return self.data


class Elsewhere(Rod):
    """Has its data under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.data
        del self.data

    def world(self) -> Any:
        return self.inner


class Queued(Rod):
    """Earns by what was done three steps ago, which is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = deque([0.0] * 3)

    def step(self, action: Any) -> Any:
        self.queue.append(float(action[0]))
        return *super().step(action)[:1], self.queue.popleft(), False, False, {}


class Looking(Rod):
    """Earns by something that MuJoCo computed in the last step, and that is not stored."""

    def step(self, action: Any) -> Any:
        before = float(self.data.qacc_smooth[0])
        return *super().step(action)[:1], before, False, False, {}


class Fast(Walker2dEnv):
    """A subclass of Gymnasium's."""

    def __init__(self) -> None:
        super().__init__(frame_skip=2)


class Tired(gymnasium.ActionWrapper[Any, Any, Any]):
    """A wrapper that holds a number."""

    strength = 1.0

    def action(self, action: Any) -> Any:
        self.strength = 0.9 * self.strength
        return self.strength * action


def tired() -> Any:
    wrapper = Tired(Rod())
    wrapper.strength = 0.8
    return wrapper


def stacked() -> Any:
    """A wrapper that holds more than numbers."""
    return gymnasium.wrappers.FlattenObservation(gymnasium.wrappers.FrameStackObservation(Rod(), 4))


@pytest.mark.parametrize("kind", [Rod, Queued, Looking, Fast, tired, stacked])
def test_ones_own_has_them_too(kind: Any) -> None:
    """Numbers of its own are parameters and state beside MuJoCo's; where there is more to it, all of it is copied."""
    body = "torso" if kind is Fast else "rod"
    env = from_gymnasium(kind, box={f"mass_{body}": (0.5, 2.0)})
    assert (env.branching, env.problem) == ("restored", "")
    asked, left = env.make(), env.make()
    for simulator in (asked, left):
        simulator.reset(2, {f"mass_{body}": 1.5})
    assert (asked.read() is None) == (kind in (Queued, Looking, stacked))
    for action in actions_of(env, 6):
        found = asked.outcomes(action, {f"mass_{body}": np.array([1.5, 0.7])})
        stepped = asked.step(action)
        assert same(stepped, left.step(action))
        assert same(HostOutcome(*(leaf[0] for leaf in found)), stepped)
        assert not np.array_equal(found.obs[0], found.obs[1])


def test_both_kinds_of_parameters_can_be_uncertain() -> None:
    env = from_gymnasium(Rod, box={"mass_rod": (0.5, 2.0), "price": (0.1, 0.3)})
    assert (env.nominal.price, env.nominal.mass_rod) == (0.25, 1.0)
    simulator = env.make()
    simulator.reset(0, {})
    found = simulator.outcomes([1.0], {"mass_rod": np.array([1.0, 2.0]), "price": np.array([0.1, 0.3])})
    assert found.reward.tolist() == [-0.1, -0.3]
    assert simulator.step([1.0]).reward == -0.25
    with pytest.raises(DeeprokError, match=r"Rod has no attribute 'unwrapped\.mass_road'"):
        from_gymnasium(Rod, box={"mass_road": (0.5, 2.0)})


def test_a_model_without_data_is_copied_as_a_whole() -> None:
    env = from_gymnasium(Elsewhere, box={"mass_rod": (0.5, 2.0)})
    simulator = env.make()
    simulator.reset(0, {})
    found = simulator.outcomes([1.0], {"mass_rod": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(found.obs[0], simulator.step([1.0]).obs)
    assert (env.branching, simulator.read()) == ("restored", None)
