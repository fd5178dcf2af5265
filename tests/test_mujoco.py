"""MuJoCo: parameters by name, several models at once, and Gymnasium's environments step for step."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest

from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS
from deeprok.environments import mujoco as ours
from deeprok.environments.host import HostEnvironment, Simulator
from deeprok.environments.mujoco import Moved, MujocoSimulator, MujocoTask, mujoco_environment
from deeprok.environments.mujoco_parameters import parameters_of, set_parameters
from deeprok.environments.mujoco_tasks import MUJOCO, hopper, inverted_pendulum, load
from deeprok.runs.settings import make_config

every_env = pytest.mark.parametrize("name", MUJOCO)

# --- parameters ------------------------------------------------------------------------------------------

#: A bob of 2 kg on a rod without mass, from which another hangs; a block on a floor that is level.
XML = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.001" gravity="0 0 -9.81" integrator="RK4" cone="elliptic" impratio="100"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1" pos="0 0 -3" friction="0.3"/>
    <body name="bob" pos="0 0 0">
      <joint name="pivot" type="hinge" axis="0 1 0" pos="0 0 0.5" damping="{damping}"/>
      <geom name="ball" type="sphere" size="{ball}" pos="0 0 -0.5" mass="{mass}" contype="0" conaffinity="0"/>
    </body>
    <body name="block" pos="0 3 -2.9">
      <joint name="along" type="slide" axis="1 0 0"/>
      <joint name="up" type="slide" axis="0 0 1"/>
      <geom name="block" type="box" size="0.1 0.1 0.1" mass="1" friction="0.3"/>
    </body>
  </worldbody>
  <actuator><motor joint="pivot" gear="3" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
"""
USUAL = dict(damping=0, ball=0.05, mass=2)


def pendulum_model() -> Any:
    return mujoco.MjModel.from_xml_string(XML.format(**USUAL))


#: Sees all of the state, and earns nothing.
WATCH = MujocoTask(
    start=lambda random, qpos, qvel: (qpos + np.array([0.01, 0.0, 0.0]), qvel + np.array([0.0, 1.0, 0.0])),
    observe=lambda qpos, qvel, bodies: np.hstack([qpos, qvel]),
    reward=lambda moved: np.zeros(len(moved.qpos)),
    terminated=lambda qpos, qvel: np.zeros(len(qpos), bool),
    frame_skip=1,
)


def watch(steps: int, action: float = 0.0, **values: float) -> np.ndarray:
    """What is seen [steps + 1, 6]: angle, place along the floor, height and their speeds."""
    simulator = MujocoSimulator(pendulum_model(), WATCH)
    seen = [simulator.reset(0, values)]
    return np.stack([*seen, *(simulator.step([action]).obs for _ in range(steps))])


def quarter_period(**values: float) -> float:
    """Seconds until a pendulum that was let go hangs straight down."""
    angle = watch(3000, **values)[:, 0]
    first = int(np.argmax(angle <= 0))
    return 0.001 * (first - angle[first] / (angle[first] - angle[first - 1]))


def test_a_pendulum_swings_as_physics_says() -> None:
    """The ball is 1 m below the pivot; its own inertia is 2/5 m r²."""
    inertia = 1.0 + 0.4 * 0.05**2  # for each kg
    usual = 0.5 * np.pi * np.sqrt(inertia / 9.81)
    assert quarter_period() == pytest.approx(usual, rel=1e-4)
    assert quarter_period(gravity=2.0) == pytest.approx(usual * np.sqrt(9.81 / 2.0), rel=1e-4)
    assert quarter_period(length_bob=1.7) == pytest.approx(usual * np.sqrt(1.7), rel=1e-4)
    # All of a body is multiplied, so that its mass does not matter.
    assert quarter_period(length_bob=0.6, mass_bob=7.0) == pytest.approx(usual * np.sqrt(0.6), rel=1e-4)


def test_a_block_is_braked_by_its_friction() -> None:
    """Coulomb: speed falls by μ g."""
    for values, friction in (({}, 0.3), ({"friction_scale": 0.5}, 0.15), ({"friction_block": 0.6}, 0.6)):
        speed = watch(150, **values)[:, 4]
        assert (speed[50] - speed[100]) / 0.05 == pytest.approx(friction * 9.81, rel=0.05)


def test_damping_and_gear_and_mass_make_the_acceleration() -> None:
    """The first step from rest at a small angle: torque / inertia, with inertia m (L² + 2/5 r²)."""
    own = 2 * (1.0 + 0.4 * 0.05**2)
    push = watch(1, action=1.0)[1, 3] - watch(1)[1, 3]
    assert push == pytest.approx(0.001 * 3 / own, rel=1e-5)
    assert watch(1, 1.0, gear_pivot=5.0)[1, 3] - watch(1)[1, 3] == pytest.approx(0.001 * 5 / own, rel=1e-5)
    assert watch(1, 1.0, gear_scale=0.5)[1, 3] - watch(1)[1, 3] == pytest.approx(0.001 * 1.5 / own, rel=1e-5)
    assert watch(1, 1.0, mass_scale=2.0)[1, 3] - watch(1)[1, 3] == pytest.approx(0.001 * 1.5 / own, rel=1e-5)
    # Damped by 0.4 and pushed for long it turns with a speed of torque / damping, once gravity is off.
    late = watch(40_000, 1.0, damping_pivot=0.4, gravity=0.0)[-1, 3]
    assert late == pytest.approx(3 / 0.4, rel=1e-2)


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    names = [name for name in dir(model) if not name.startswith("_")]
    values = {name: getattr(model, name) for name in names if not callable(getattr(model, name))}
    return {name: array.copy() for name, array in values.items() if isinstance(array, np.ndarray) and array.size}


#: Parts of Hopper's file, and what they are with a leg of 1.2 times the size about the knee and the same mass: the knee
#: stays 0.45 below the hip, and the ankle is where the leg ends.
LONGER_LEG = {
    '<body name="leg" pos="0 0 -0.70000000000000007">': '<body name="leg" pos="0 0 -0.75">',
    '<joint axis="0 -1 0" name="leg_joint" pos="0 0 0.25"': '<joint axis="0 -1 0" name="leg_joint" pos="0 0 0.3"',
    'name="leg_geom" size="0.04 0.25"': f'name="leg_geom" density="{1000 / 1.2**3}" size="0.048 0.3"',
    '<body name="foot" pos="0.13 0 -0.35">': '<body name="foot" pos="0.13 0 -0.4">',
}


def test_a_longer_leg_is_that_of_another_model_file() -> None:
    """Every number of the model, those that MuJoCo computes in advance included, is as if it had been compiled so."""
    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    text = (assets / "hopper.xml").read_text()
    for old, new in LONGER_LEG.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    expected, found = mujoco.MjModel.from_xml_string(text), load("hopper.xml")()
    set_parameters(found, parameters_of(found), {"length_leg": 1.2})
    mujoco.mj_setConst(found, mujoco.MjData(found))
    usual = arrays_of(load("hopper.xml")())
    differing = set()
    for name, array in arrays_of(expected).items():
        np.testing.assert_allclose(arrays_of(found)[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
        if not np.allclose(usual[name], array, rtol=1e-9, atol=1e-12):
            differing.add(name)
    assert {"body_pos", "body_inertia", "geom_size", "geom_rbound", "jnt_pos", "dof_invweight0"} <= differing


@every_env
def test_nominal_parameters_change_nothing(name: str) -> None:
    model = MUJOCO[name]().make()._model  # type: ignore[attr-defined]
    before, known = arrays_of(model), parameters_of(model)
    set_parameters(model, known, known.nominal)
    mujoco.mj_setConst(model, mujoco.MjData(model))
    for field, array in arrays_of(model).items():
        np.testing.assert_allclose(array, before[field], rtol=1e-12, atol=1e-15, err_msg=field)


@every_env
def test_each_parameter_is_put_back(name: str) -> None:
    """Another set of parameters leaves nothing of the last one behind."""
    model = MUJOCO[name]().make()._model  # type: ignore[attr-defined]
    known = parameters_of(model)
    set_parameters(model, known, {"gravity": 3.0})
    before = arrays_of(model)
    set_parameters(model, known, {key: 1.7 * value + 0.1 for key, value in known.nominal.items()})
    assert any(not np.array_equal(array, before[field]) for field, array in arrays_of(model).items())
    set_parameters(model, known, {"gravity": 3.0})
    for field, array in arrays_of(model).items():
        np.testing.assert_array_equal(array, before[field], err_msg=field)


def test_names_and_nominal_values() -> None:
    env = inverted_pendulum()
    assert (env.nominal.gravity, env.nominal.gear_slide, env.nominal.damping_hinge) == (9.81, 100.0, 1.0)
    assert (env.nominal.mass_scale, env.nominal.length_pole) == (1.0, 1.0)
    assert env.nominal.mass_cart == pytest.approx(1000 * np.pi * 0.1**2 * (0.2 + 4 / 3 * 0.1))  # a capsule
    names = parameters_of(load("hopper.xml")()).nominal
    assert {"mass_torso", "friction_foot_geom", "damping_leg_joint", "gear_thigh_joint", "length_leg"} <= set(names)
    assert "length_block" in parameters_of(pendulum_model()).nominal


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mass_tors": 1.0}, "unknown parameter 'mass_tors': did you mean 'mass_torso'"),
        ({"mass_torso": 0.0}, "mass_torso is 0; it must be above 0 and finite"),
        ({"damping_scale": -1.0}, "damping_scale is -1; it must be of at least 0 and finite"),
        ({"gravity": np.nan}, "gravity is nan; it must be finite"),
    ],
)
def test_parameters_that_are_refused(values: dict[str, float], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        hopper().make().reset(0, values)


def test_a_box_names_what_the_model_has() -> None:
    make = lambda box: mujoco_environment("mine", pendulum_model, WATCH, box, (1.0,) * 6, 100, 0.0)  # noqa: E731
    with pytest.raises(DeeprokError, match="unknown parameter in the box of mine 'mass_bub': did you mean 'mass_bob'"):
        make({"mass_bub": (1.0, 2.0)})
    env = make({"mass_bob": (1.0, 2.0)})
    assert (env.actions.low, env.actions.high) == ((-1.0,), (1.0,))
    assert isinstance(env.make(), Simulator)
    assert env.make().outcomes([0.5], {"mass_bob": np.array([1.0, 2.0])}).obs.shape == (2, 6)


# --- Gymnasium's ----------------------------------------------------------------------------------------


def play(name: str, change: Callable[[Any], None], values: Mapping[str, float], seed: int) -> int:
    """Plays an episode in both and compares each number; the count of steps."""
    env = MUJOCO[name]()
    simulator, random = env.make(), np.random.default_rng(seed)
    gym = gymnasium.make(name).unwrapped
    change(gym.model)
    mujoco.mj_setConst(gym.model, mujoco.MjData(gym.model))
    obs, expected = simulator.reset(seed, values), gym.reset(seed=seed)[0]
    np.testing.assert_allclose(obs, expected, rtol=0, atol=1e-9)
    for t in range(150):
        action = random.uniform(env.actions.low, env.actions.high)
        if name == "InvertedPendulum-v5" and t < 60:  # which falls in a few steps by itself
            action = np.clip([obs[0] + 3 * obs[1] + obs[2] + 0.7 * obs[3] + 0.05 * action[0]], -3, 3)
        found = simulator.step(action)
        obs, reward, terminated, truncated, _ = gym.step(action)
        np.testing.assert_allclose(found.obs, obs, rtol=0, atol=1e-9)
        assert float(found.reward) == pytest.approx(reward, abs=1e-9)
        assert (bool(found.terminated), truncated) == (terminated, False)
        if terminated:
            return t + 1
    return 150


@every_env
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_gymnasium_at_nominal(name: str, seed: int) -> None:
    steps = play(name, lambda model: None, {}, seed)
    assert 3 < steps < 150 if "Hopper" in name or "Pendulum" in name else steps == 150


def change_pendulum(model: Any) -> None:
    pole = model.body("pole").id
    model.body_inertia[pole] *= 9.0 / model.body_mass[pole] * 1.5**2
    model.body_mass[pole] = 9.0
    model.body_ipos[pole] *= 1.5
    for array in (model.geom_size, model.geom_pos, model.geom_rbound, model.geom_aabb):
        array[model.geom("cpole").id] *= 1.5
    model.dof_damping[:] = [0.5, 0.3]
    model.opt.gravity[:] = [0.0, 0.0, -5.0]
    model.actuator_gear[0, 0] = 60.0


def change_hopper(model: Any) -> None:
    torso = model.body("torso").id
    model.body_inertia[torso] *= 6.0 / model.body_mass[torso]
    model.body_mass[torso] = 6.0
    model.geom_friction[model.geom("foot_geom").id, 0] = 1.2
    model.geom_friction *= 0.5
    model.dof_damping[3:] = [1.0, 2.5, 1.0]


def change_cheetah(model: Any) -> None:
    model.body_mass *= 1.3
    model.body_inertia *= 1.3
    model.geom_friction *= 2.0
    model.actuator_gear *= 0.8
    model.dof_damping *= 0.5


def change_reacher(model: Any) -> None:
    arm, tip = model.body("body1").id, model.body("fingertip").id
    model.body_inertia[arm] *= 0.1 / model.body_mass[arm] * 1.5**2
    model.body_mass[arm] = 0.1
    model.body_ipos[arm] *= 1.5
    model.body_pos[tip] = [0.165, 0.0, 0.0]
    for array in (model.geom_size, model.geom_pos, model.geom_rbound, model.geom_aabb):
        array[model.geom("link1").id] *= 1.5
    model.dof_damping *= 2.0
    model.actuator_gear[0, 0] = 120.0


PERTURBED: dict[str, tuple[Callable[[Any], None], dict[str, float]]] = {
    "InvertedPendulum-v5": (
        change_pendulum,
        dict(mass_pole=9.0, length_pole=1.5, damping_slider=0.5, damping_hinge=0.3, gravity=5.0, gear_slide=60.0),
    ),
    "Hopper-v5": (
        change_hopper,
        dict(mass_torso=6.0, friction_foot_geom=1.2, friction_scale=0.5, damping_leg_joint=2.5),
    ),
    "HalfCheetah-v5": (change_cheetah, dict(mass_scale=1.3, friction_scale=2.0, gear_scale=0.8, damping_scale=0.5)),
    "Reacher-v5": (change_reacher, dict(mass_body1=0.1, length_body1=1.5, damping_scale=2.0, gear_joint0=120.0)),
}


@every_env
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_gymnasium_at_parameters_set_by_hand(name: str, seed: int) -> None:
    change, values = PERTURBED[name]
    assert play(name, change, values, seed) > 3
    with pytest.raises(AssertionError):
        play(name, change, {}, seed)  # the parameters matter


def test_gymnasium_is_as_it_was_when_the_rewards_were_written() -> None:
    for name in MUJOCO:
        spec, env = gymnasium.spec(name), MUJOCO[name]()
        assert spec.max_episode_steps == env.horizon
        if name != "Hopper-v5":  # whose threshold, 3800, tells little of a policy that just does not fall
            assert spec.reward_threshold == pytest.approx(env.success_return)
        assert len(env.observation_scale) == gymnasium.make(name).observation_space.shape[0]


# --- several models -------------------------------------------------------------------------------------


def models_of(env: HostEnvironment, count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {name: random.uniform(low, high, count) for name, (low, high) in env.box.items()}


def actions_of(env: HostEnvironment, steps: int, seed: int = 3) -> np.ndarray:
    return 0.3 * np.random.default_rng(seed).uniform(env.actions.low, env.actions.high, (steps, len(env.actions)))


@every_env
@pytest.mark.parametrize("threads", [1, 3])
def test_outcomes_are_those_of_single_simulations(name: str, threads: int) -> None:
    env = MUJOCO[name]()
    simulator, models = env.make(), models_of(env, 5)
    assert isinstance(simulator, MujocoSimulator)
    simulator._branches._most = threads
    single = env.make()
    for seed in (0, 1):
        simulator.reset(seed, {"gravity": 9.0})
        for action in actions_of(env, 6):
            found = simulator.outcomes(action, models)
            assert (found.obs.shape, found.reward.shape) == ((5, len(env.observation_scale)), (5,))
            assert found.terminated.dtype == bool
            for i in range(5):
                single.write(simulator.read(), {"gravity": 9.0} | {key: values[i] for key, values in models.items()})
                alone = single.step(action)
                np.testing.assert_allclose(found.obs[i], alone.obs, rtol=0, atol=1e-9)
                assert float(found.reward[i]) == pytest.approx(float(alone.reward), abs=1e-9)
                assert found.terminated[i] == alone.terminated
            simulator.step(action)
        models = models_of(env, 5) if seed else {key: values[::-1] for key, values in models.items()}
    assert len(np.unique(found.obs, axis=0)) == 5


@every_env
def test_outcomes_leave_the_simulation_as_it_was(name: str) -> None:
    env = MUJOCO[name]()
    asked, plain = env.make(), env.make()
    np.testing.assert_array_equal(asked.reset(4, {"gravity": 8.0}), plain.reset(4, {"gravity": 8.0}))
    for count, action in zip(itertools.cycle([3, 3, 1]), actions_of(env, 9), strict=False):
        before = asked.read()
        asked.outcomes(-action, models_of(env, count))
        after = asked.read()
        assert before is not None and after is not None  # noqa: PT018
        for key, array in before.items():
            np.testing.assert_array_equal(array, after[key])
        one, other = asked.step(action), plain.step(action)
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.reward, other.reward)


@every_env
def test_equal_models_have_the_outcome_of_the_step(name: str) -> None:
    env = MUJOCO[name]()
    simulator = env.make()
    simulator.reset(2, {})
    for action in actions_of(env, 5):
        found = simulator.outcomes(action, {"gravity": np.full(3, 9.81)})
        moved = simulator.step(action)
        np.testing.assert_allclose(found.obs, np.tile(moved.obs, (3, 1)), rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.reward, np.full(3, moved.reward), rtol=0, atol=1e-12)


def test_parameters_that_models_do_not_name_are_the_episodes() -> None:
    simulator, single = hopper().make(), hopper().make()
    masses = np.array([3.0, 5.0])
    for gravity in (20.0, 4.0):
        simulator.reset(0, {"gravity": gravity, "mass_torso": 2.0})
        found = simulator.outcomes(np.zeros(3), {"mass_torso": masses})
        for i, mass in enumerate(masses):
            single.write(simulator.read(), {"gravity": gravity, "mass_torso": mass})
            np.testing.assert_allclose(found.obs[i], single.step(np.zeros(3)).obs, rtol=0, atol=1e-9)


def test_they_are_known_by_their_ids() -> None:
    for name, make in MUJOCO.items():
        part = ENVIRONMENTS.find(name, "env")
        assert part.make(part.settings()) == make()  # one environment for all of a process
        assert part.make(part.settings(horizon=30)).horizon == 30
    with pytest.raises(DeeprokError, match=r"^Hopper-v5 has continuous actions; dqn needs actions to choose"):
        make_config("dqn", env="Hopper-v5", box="mass_torso=2:4")


@every_env
def test_a_simulation_is_continued_from_its_state(name: str) -> None:
    env = MUJOCO[name]()
    first, other = env.make(), env.make()
    first.reset(5, {"gravity": 12.0})
    other.reset(6, {"gravity": 3.0})
    actions = actions_of(env, 8)
    for action in actions[:4]:
        first.step(action)
    state = first.read()
    assert state is not None
    other.write({key: array.copy() for key, array in state.items()}, {"gravity": 12.0})
    for action in actions[4:]:
        np.testing.assert_array_equal(first.step(action).obs, other.step(action).obs)
    with pytest.raises(DeeprokError, match=r"the state of the simulation has shape \(3,\); this model's has \(\d+,\)"):
        other.write({"state": np.zeros(3), "seen": state["seen"]}, {})


# --- simulations that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Hopper-v5", "InvertedPendulum-v5", "Reacher-v5"])
def test_an_unstable_model_fails_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    env = MUJOCO[name]()
    simulator, single = env.make(), env.make()
    seen = simulator.reset(0, {})
    action = np.full(len(env.actions), 0.1)
    gears = np.array([1.0, 1e12, 0.9, 1e30])
    found = simulator.outcomes(action, {"gear_scale": gears})
    np.testing.assert_array_equal(found.terminated, [False, True, False, True])
    np.testing.assert_array_equal(found.obs[[1, 3]], np.tile(seen, (2, 1)))
    failing = -40.0 if name == "Reacher-v5" else 0.0
    np.testing.assert_array_equal(found.reward[[1, 3]], failing)
    assert simulator.failures == {"unstable": 2}
    for _ in range(2):  # again, after the threads' own data have failed
        found = simulator.outcomes(action, {"gear_scale": gears})
        for i in (0, 2):
            single.write(simulator.read(), {"gear_scale": gears[i]})
            np.testing.assert_allclose(found.obs[i], single.step(action).obs, rtol=0, atol=1e-9)
    assert simulator.step(action).terminated == np.bool_(False)
    assert np.isfinite(found.obs).all()
    assert list(tmp_path.iterdir()) == []  # MuJoCo's own log
    assert capfd.readouterr() == ("", "")


@every_env
def test_an_unstable_step_ends_the_episode(name: str) -> None:
    env = MUJOCO[name]()
    simulator = env.make()
    seen = simulator.reset(0, {"gear_scale": 1e12})
    found = simulator.step(np.full(len(env.actions), 0.5))
    assert bool(found.terminated)
    np.testing.assert_array_equal(found.obs, seen)
    assert simulator.failures == {"unstable": 1}
    assert float(found.reward) == {"Reacher-v5": -40.0, "HalfCheetah-v5": -300.0}.get(name, 0.0)
    np.testing.assert_array_equal(simulator.reset(0, {}), env.make().reset(0, {}))  # and the next one is sound
    assert not simulator.step(np.zeros(len(env.actions))).terminated


# --- own models, and what is missing -----------------------------------------------------------------------


def test_what_a_task_is_told() -> None:
    told: list[Moved] = []

    def reward(moved: Moved) -> np.ndarray:
        told.append(moved)
        return moved.qpos[:, 0]

    simulator = MujocoSimulator(pendulum_model(), WATCH._replace(reward=reward, frame_skip=4))
    seen = simulator.reset(0, {})
    simulator.step(0.25)
    np.testing.assert_array_equal(told[0].action, [0.25])
    np.testing.assert_array_equal(told[0].start, seen[:3])
    assert told[0].seconds == pytest.approx(0.004)
    assert told[0].bodies.shape == (1, 0, 3)


def test_mujoco_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(DeeprokError, match="MuJoCo's environments need the extra mujoco; in a clone: pip install"):
        load("reacher.xml")()


def test_gymnasiums_models_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeprok.environments.mujoco_tasks.find_spec", lambda name: None)
    with pytest.raises(DeeprokError, match=r"reacher.xml is a model of Gymnasium, which is missing: it needs"):
        load("reacher.xml")()
    assert importlib.util.find_spec("gymnasium")


def test_warnings_that_someone_handles_are_left_to_them() -> None:
    before = mujoco.get_mju_user_warning()
    try:
        mujoco.set_mju_user_warning(print)
        ours.library()
        assert mujoco.get_mju_user_warning() is print
        mujoco.set_mju_user_warning(None)
        ours.library()
        assert mujoco.get_mju_user_warning() is not None
    finally:
        mujoco.set_mju_user_warning(before)
