"""Environments, networks and memories in the browser are Python's: in double precision, step by step."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeprok.environments.base import with_model
from deeprok.evaluation.export.policy import ACTIVATIONS
from deeprok.evaluation.policies import ensemble_policy
from deeprok.evaluation.trained import load
from deeprok.report import write_report
from deeprok.runs.settings import make_config
from tests.browser.chromium import Browser
from tests.finished_runs import write_run

STEPS = 200
#: Environment -> parameters that differ from the nominal ones.
MODELS: dict[str, dict[str, float]] = {
    "acrobot": {"link_mass_2": 1.3, "torque": 1.2, "link_length_1": 0.9},
    "cartpole": {"pole_length": 0.9, "cart_mass": 0.7, "gravity": 11.0},
    "hard_cartpole": {"gravity": 14.0, "force": 7.0},
    "mountain_car": {"force": 0.0009, "gravity": 0.0023},
    "pendulum": {"mass": 0.8, "length": 1.2},
    "road": {"friction": 0.9, "drag": 0.003, "throttle": 2.0},
    "rocket": {"thrust": 17.0, "gravity": 9.1},
    "swing_up": {"torque": 1.4, "mass": 0.7},
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "cartpole": [{}, {"integrator": "semi-implicit", "failing_reward": -1.0}],
}
CASES = [(name, changes) for name in MODELS for changes in SETTINGS.get(name, [{}])]

#: Steps the browser's environment from the same states with the same actions.
STEP = """
const [name, params, settings, starts, actions] = arguments;
const world = deeprok.worldOf(name);
let [state, next] = [starts[0], 1];
return actions.map((action) => {
  const before = world.observe(state);
  const outcome = world.step(state, action, params, settings);
  state = outcome.terminated ? starts[next++ % starts.length] : outcome.state;
  return [before, outcome.state, world.observe(outcome.state), outcome.reward, outcome.terminated];
});
"""


def python_steps(env: Any, params: Any, starts: list[Any], actions: np.ndarray) -> list[Any]:
    """As `STEP`, in JAX; an episode that has terminated is followed by the next start."""
    step = jax.jit(env.step)
    state, following, found = jnp.asarray(starts[0]), 1, []
    key = jax.random.key(0)
    for action in actions:
        outcome = step(key, state, jnp.asarray(action), params)
        found.append((outcome.state, outcome.obs, outcome.reward, outcome.terminated))
        state = outcome.state
        if outcome.terminated:
            state = jnp.asarray(starts[following % len(starts)])
            following += 1
    return found


@pytest.mark.parametrize(("name", "changes"), CASES, ids=lambda value: str(value) if isinstance(value, str) else "")
def test_dynamics(browser: Browser, pole: Path, name: str, changes: dict[str, Any]) -> None:
    """200 steps with fixed actions; errors grow with the steps, since some of these systems are chaotic."""
    browser.open(pole)
    config = make_config("dqn" if name != "pendulum" else "epopt", env=name, precision="float64", **changes)
    random = np.random.default_rng(len(name))
    with config.arithmetic():
        env = config.make_env()
        params = with_model(env.nominal, MODELS[name])
        starts = [np.asarray(env.reset(jax.random.key(i), params)[0]).tolist() for i in range(8)]
        if env.actions.continuous:
            actions = random.uniform(-1, 1, (STEPS, len(env.actions)))
        else:
            # Each action for a few steps, or a pendulum hardly moves; later ones more often, or a car does not.
            actions = np.repeat(random.integers(len(env.actions), size=(2, STEPS)).max(axis=0), 4)[:STEPS]
        expected = python_steps(env, params, starts, actions)
        values = {field.name: float(getattr(params, field.name)) for field in dataclasses.fields(params)}
    found = browser.run(STEP, name, values, dataclasses.asdict(config.environment), starts, actions.tolist())
    assert len(found) == STEPS
    ends = 0
    for (before, state, obs, reward, terminated), (*numbers, ended) in zip(found, expected, strict=True):
        assert len(before) == len(obs)
        for ours, theirs in zip((state, obs, reward), numbers, strict=True):
            np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-9, atol=1e-9)
        assert terminated == bool(ended)
        ends += terminated
    assert ends > 0 or name in ("pendulum", "swing_up", "mountain_car", "acrobot")


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "elu", "silu"])
def test_activations(browser: Browser, pole: Path, activation: str, squashed: bool) -> None:
    random = np.random.default_rng(1)
    sizes, scale = (3, 5, 4, 2), [0.5, 2.0, -1.0]
    layers = [(random.normal(size=pair), random.normal(size=pair[1])) for pair in itertools.pairwise(sizes)]
    theta = np.concatenate([part.ravel() for layer in layers for part in layer])
    states = random.normal(size=(20, 3))
    x = states * scale
    for i, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        x = ACTIVATIONS[activation](x, np) if i < 2 else np.tanh(x) if squashed else x
    browser.open(pole)
    network = {"sizes": sizes, "activation": activation, "input_scale": scale, "squashed": squashed}
    found = browser.run(
        "return arguments[2].map((state) => deeprok.outputs(arguments[0], arguments[1], state))",
        *(network, theta.tolist(), states.tolist()),
    )
    np.testing.assert_allclose(found, x, rtol=1e-12, atol=1e-13)


def test_posterior(browser: Browser, tmp_path: Path) -> None:
    """Q, a vote of the draws, and the deviation over them, for weights in double precision."""
    theta = np.random.default_rng(1).normal(size=4 * 5 + 5 + 5 * 3 + 3 + 3 * 2 + 2)
    folder = write_run(
        tmp_path / "run",
        "deep_rok",
        best=theta,
        last=theta,
        spread=0.3,
        hidden=(5, 3),
        precision="float64",
        input_scale=(0.5, 2.0, 5.0, -1.0),
    )
    browser.open(write_report(folder, tmp_path / "report.html", play=False))
    states = np.random.default_rng(2).normal(size=(7, 4))
    found = browser.run(
        """
        const agent = deeprok.page.scene.agents[0], weights = deeprok.readWeights(agent);
        return arguments[0].map((s) => ["mean", "vote"].map((acting) => deeprok.decide(agent, weights, s, acting, 0)));
        """,
        states.tolist(),
    )
    run = load(folder)
    with run.settings.arithmetic():
        expected = np.asarray(run.network.apply(jnp.asarray(run.weights), jnp.asarray(states)))
        draws = np.stack([run.sample_weights(key) for key in jax.random.split(jax.random.key(0), 20)])
        each = np.stack([np.asarray(run.network.apply(jnp.asarray(draw), jnp.asarray(states))) for draw in draws])
        voting = ensemble_policy(run.network, run.env.actions, jnp.asarray(draws), "vote")
        voted = np.asarray(voting(jnp.asarray(states)))
    for i, (mean, vote) in enumerate(found):
        np.testing.assert_allclose(mean["values"], expected[i], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mean["deviation"], each[:, i].std(axis=0, ddof=1), rtol=1e-9)
        assert sum(vote["choice"]) == 20
        assert np.argmax(vote["choice"]) == voted[i]


def test_what_a_player_sees_is_what_python_remembers(browser: Browser, tmp_path: Path) -> None:
    """With a memory of 3 steps, noise and a delay, from the states that the browser has been in."""
    inputs = 4 + 3 * (4 + 2)
    theta = np.random.default_rng(3).normal(size=inputs + 1 + 4, scale=0.1)
    folder = write_run(
        tmp_path / "run", "dqn", best=theta, last=theta, memory=3, input_scale=(1.0,) * inputs, precision="float64"
    )
    browser.open(write_report(folder, tmp_path / "report.html", play=False), prefers_reduced_motion="reduce")
    found = browser.run(
        """
        const player = stage.panes[0].player;
        stage.settings.params.action_delay = 2;
        player.begin(stage.settings, 5, 0);
        const rows = [];
        for (let i = 0; i < 9; i++) {
          const before = player.seen;
          player.step(stage.settings);
          rows.push([before, player.decided.at(-1), player.action, player.states.at(-2)]);
        }
        return rows;
        """
    )
    past = load(folder).env.past
    assert past
    seen = past.begin(np.asarray(found[0][3]))
    for i, (before, decided, _, state) in enumerate(found):
        np.testing.assert_allclose(before[:4], state, rtol=0, atol=0)
        np.testing.assert_allclose(before, np.concatenate([np.asarray(state), seen[4:]]), rtol=0, atol=0)
        seen = np.concatenate([np.asarray(state), np.asarray(past.after(np.asarray(before), np.asarray(decided)))])
        assert i < 2 or found[i][2] == found[i - 2][1]  # what was decided two steps before is done


def test_sensor_noise_has_the_size_that_it_is_set_to(browser: Browser, pole: Path) -> None:
    browser.open(pole, prefers_reduced_motion="reduce")
    noise = browser.run(
        """
        const player = stage.panes[0].player;
        stage.settings.params.sensor_noise = 0.5;
        return Array.from({ length: 4000 }, (_, episode) => {
          player.begin(stage.settings, 3, episode);
          return player.seen.map((value, i) => value - player.state[i]);
        });
        """
    )
    np.testing.assert_allclose(np.std(noise, axis=0), 0.5 * np.array([2.4, 2.0, 0.2, 2.0]), rtol=0.05)
    np.testing.assert_allclose(np.mean(noise, axis=0) / np.array([2.4, 2.0, 0.2, 2.0]), 0.0, atol=0.03)


def test_starts_are_uniform(browser: Browser, pole: Path) -> None:
    browser.open(pole, prefers_reduced_motion="reduce")
    starts = browser.run(
        """
        const player = stage.panes[0].player;
        return Array.from({ length: 4000 }, (_, episode) => {
          player.begin(stage.settings, 3, episode);
          return player.state;
        });
        """
    )
    places = np.asarray(starts) / 0.05
    np.testing.assert_allclose(
        np.quantile(places, [0.0, 0.25, 0.5, 0.75, 1.0], axis=0).mean(axis=1), [-1.0, -0.5, 0.0, 0.5, 1.0], atol=0.04
    )
    assert np.abs(np.corrcoef(places.T) - np.eye(4)).max() < 0.08
