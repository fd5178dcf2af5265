"""The guard of a deployed policy: its statistic by the textbook, its false alarms, and what it refuses."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from finished_runs import write_run
from hypothesis import given
from hypothesis import strategies as st
from identified import played
from scipy import stats
from scipy.special import logsumexp

import deeprok
from deeprok.core.errors import DeeprokError
from deeprok.core.pytree import pytree_dataclass
from deeprok.environments import ENVIRONMENTS, Choices, Environment, Interval, Outcome, cartpole, quantity
from deeprok.evaluation.guard import Guard, models, uncertainty
from deeprok.evaluation.guard.evidence import Evidence
from deeprok.evaluation.guard.guard import _Values
from deeprok.evaluation.guard.likeliest import climb_to_likeliest, passes_for, with_found
from deeprok.evaluation.guard.noise import assumed_noise, with_noise
from deeprok.identification.likelihood import as_data, innovations_of
from deeprok.identification.result import Fit, Noise


@pytree_dataclass
class Drift:
    """A place that moves by an action times a gain: a linear regression."""

    gain: Any = quantity(1.0, "", "how far an action moves it", positive=False)


def _reset(key: jax.Array, params: Drift) -> tuple[jax.Array, jax.Array]:
    del params
    state = jax.random.normal(key, (1,))
    return state, state


def _step(key: jax.Array, state: jax.Array, action: jax.Array, params: Drift) -> Outcome:
    del key
    moved = state + params.gain * action
    return Outcome(state=moved, obs=moved, reward=jnp.zeros(()), terminated=jnp.array(False))


LOW, HIGH, SIGMA = 0.5, 1.5, 0.2
DRIFT = Environment(
    name="drift",
    reset=_reset,
    step=_step,
    nominal=Drift(),
    box={"gain": (LOW, HIGH)},
    observation_scale=(1.0,),
    actions=Interval((-1.0,), (1.0,)),
    horizon=12,
    success_return=0.0,
)
#: The sensor is as good as exact, so that the steps are independent.
NOISE = Noise(process=(SIGMA,), sensor=(0.0,))


@pytest.fixture(scope="module")
def watched() -> models.Watched:
    with jax.enable_x64(True):
        return models.watch(DRIFT, dict(DRIFT.box), NOISE)


def make(watched: models.Watched, false_alarm: float = 0.01, per: int | None = None, values: Any = None) -> Guard:
    return Guard(DRIFT, None, watched, values, NOISE, "the noise is that given", false_alarm, per)


def drive(gain: float, steps: int, seed: int, sigma: float = SIGMA) -> tuple[np.ndarray, np.ndarray]:
    """Observations [T + 1] and actions [T]."""
    draws = np.random.default_rng(seed)
    action = draws.uniform(-1, 1, steps)
    return np.cumsum([0.0, *(gain * action + sigma * draws.normal(size=steps))]), action


def feed(guard: Guard, obs: np.ndarray, action: np.ndarray) -> list[deeprok.GuardCheck]:
    return [guard.check(obs[t : t + 1], action[t : t + 1], obs[t + 1 : t + 2]) for t in range(len(action))]


def textbook(gain: Any, scale: Any, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Log-likelihoods of linear regressions."""
    gains, scales = np.broadcast_arrays(gain, scale)
    error = np.diff(obs) - gains[..., None] * action
    return stats.norm.logpdf(error, scale=scales[..., None] * SIGMA).sum(axis=-1)


def textbook_best(obs: np.ndarray, action: np.ndarray) -> float:
    """The largest likelihood in the box: least squares between its ends, and a noise from 1 to 1.5 times the stated."""
    gain = np.clip(action @ np.diff(obs) / (action @ action), LOW, HIGH)
    scale = np.clip(np.sqrt(np.mean((np.diff(obs) - gain * action) ** 2)) / SIGMA, 1.0, 1.5)
    return float(textbook(gain, scale, obs, action))


# --- the statistic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "sigma"), [(1.0, SIGMA), (2.5, SIGMA), (1.4, 1.3 * SIGMA), (0.4, 3 * SIGMA)])
def test_the_e_value_is_the_ratio_of_the_textbook(watched: models.Watched, gain: float, sigma: float) -> None:
    """A mixture of regressions with fixed weights, over the largest likelihood in the box."""
    guard = make(watched, false_alarm=1e-300)
    obs, action = drive(gain, 3, seed=1, sigma=sigma)  # models are looked for from the fourth step on
    feed(guard, obs, action)
    state = guard._state
    scales = np.array([models.noise_scale(i) for i in range(5)])
    each = textbook(watched.first.x[:, :1], scales, obs, action)
    numerator = logsumexp(watched.first.weight + each)
    with jax.enable_x64(True):
        found = climb_to_likeliest(watched, state.bank, state.segment, in_box=True)
    said = models.log_e_value(watched, state.bank, 3, found.bound)
    assert said == pytest.approx(numerator - textbook_best(obs, action), abs=1e-5)
    assert logsumexp(watched.first.weight) == pytest.approx(0.0, abs=1e-12)


def test_found_models_only_take_weight_from_others(watched: models.Watched) -> None:
    """So that the mixture stays a probability, whatever is found and when."""
    guard = make(watched, false_alarm=1e-300)
    obs, action = drive(2.0, 9, seed=2)
    feed(guard, obs, action)
    state = guard._state
    with jax.enable_x64(True):
        found = climb_to_likeliest(watched, state.bank, state.segment, in_box=False)
    more = with_found(watched, state.bank, found, 9, in_box=False)
    assert logsumexp(more.weight) <= logsumexp(state.bank.weight) + 1e-12
    slot = int(np.argmax(np.abs(more.x - state.bank.x)))
    assert more.x[slot, 0] == pytest.approx(action @ np.diff(obs) / (action @ action), abs=1e-3)


@pytest.mark.parametrize("gain", [1.0, 2.5])
def test_what_a_climb_has_not_gained_yet_counts_as_gained(watched: models.Watched, gain: float) -> None:
    """So that evidence is never overstated: a pass from afar has the bound of the whole climb, or a larger one."""
    obs, action = drive(gain, 10, seed=4)
    segment = watched.empty(12, action[:1])
    for t in range(10):
        segment = models.extended(watched, segment, obs[t : t + 1], action[t : t + 1], obs[t + 1 : t + 2])
    afar = watched.first._replace(x=np.full_like(watched.first.x, LOW))
    with jax.enable_x64(True):
        bounds = [climb_to_likeliest(watched, afar, segment, in_box=True, passes=n).bound for n in (1, 2, 30)]
    best = textbook_best(obs, action)
    assert bounds[0] > best - 1e-3
    assert bounds[1] > best - 1e-3
    assert bounds[2] == pytest.approx(best, abs=1e-3)


def test_the_best_of_many_optima_is_found() -> None:
    """A gain whose sine moves the place: eight periods in the box, of which a grid knows the best."""

    def step(key: jax.Array, state: jax.Array, action: jax.Array, params: Drift) -> Outcome:
        return _step(key, state, action, Drift(jnp.sin(16 * jnp.pi * params.gain) + 0.2 * params.gain))

    env = DRIFT._replace(step=step)
    with jax.enable_x64(True):
        watched = models.watch(env, dict(env.box), NOISE)
    grid = np.linspace(LOW, HIGH, 20001)
    for seed, truth in enumerate(np.random.default_rng(0).uniform(LOW, HIGH, 10)):
        obs, action = drive(np.sin(16 * np.pi * truth) + 0.2 * truth, 12, seed=seed)
        guard = Guard(env, None, watched, None, NOISE, "", 0.01, None)
        feed(guard, obs, action)
        with jax.enable_x64(True):
            found = climb_to_likeliest(watched, guard._state.bank, guard._state.segment, in_box=True)
        each = textbook((np.sin(16 * np.pi * grid) + 0.2 * grid)[:, None], np.linspace(1, 1.5, 11), obs, action)
        assert found.bound > each.max() - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "swing_up", "acrobot", "mountain_car"])
def test_the_box_is_at_least_as_likely_as_the_truth(name: str) -> None:
    """All that the stated rate of false alarms needs of a climb, after as many passes as a check has."""
    part = ENVIRONMENTS.find(name, "env")
    env = part.make(part.settings())
    assert isinstance(env, Environment)
    noise, box = assumed_noise(env, name, 0.0, None, None)[0], dict(env.box)
    with jax.enable_x64(True):
        watched = models.watch(env, box, noise)
    guard = Guard(env, None, watched, None, noise, "", 0.01, None)
    draws, short = np.random.default_rng(0), []
    for seed in range(30):
        truth = {name: draws.choice(ends) if seed % 2 else draws.uniform(*ends) for name, ends in box.items()}
        log = played(env, truth, (80,), seed, process=0.001, sensor=0.01)
        guard.reset(forget=True)
        for t in range(80):
            said = guard.check(log.obs[0, t], log.action[0, t], log.obs[0, t + 1])
        assert not said.alarm
        state = guard._state
        with jax.enable_x64(True):
            found = climb_to_likeliest(watched, state.bank, state.segment, in_box=True, passes=passes_for(80))
            own = [np.log(t) if p else t for t, p in zip(truth.values(), watched.unknowns.positive, strict=True)]
            x = np.append(own, watched.noises)
            e, s = map(np.asarray, innovations_of(watched.unknowns)(jnp.asarray(x), as_data(log)))
        short.append(-0.5 * float(np.sum((np.log(2 * np.pi * s) + e**2 / s)[0, :80])) - found.bound)
    assert max(short) < 0.1


def test_a_new_segment_has_a_probability_as_weights(watched: models.Watched) -> None:
    guard = make(watched)
    feed(guard, *drive(1.2, 8, seed=3))
    with jax.enable_x64(True):
        begun = models.begin(watched, guard._state.bank, np.zeros(1))
    assert logsumexp(begun.weight) == pytest.approx(0.0, abs=1e-12)
    assert np.all(begun.weight >= np.log(0.1) + watched.first.weight - 1e-12)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_evidence_is_the_sum_over_all_starts(logs: list[float]) -> None:
    evidence = Evidence()
    for log in logs[:-1]:
        evidence = evidence.after(log)
    values, count = np.exp(logs), len(logs)
    expected = sum(np.prod(values[j - 1 :]) / (j * (j + 1)) for j in range(1, count + 1)) + 1 / (count + 1)
    assert np.exp(evidence.log_with(logs[-1])) == pytest.approx(expected)


# --- false alarms, and alarms ---------------------------------------------------------------------------------------


def test_ville_holds_for_the_evidence() -> None:
    """Of 500 paths of 30 e-values of mean 1, at most a tenth ever reaches 10."""
    draws, reached = np.random.default_rng(0), 0
    for logs in draws.normal(-0.32, 0.8, (500, 30)):  # log-normal, of mean exp(−0.32 + 0.8²/2) = 1
        evidence = Evidence()
        for log in logs:
            if evidence.log_with(log) >= np.log(10):
                reached += 1
                break
            evidence = evidence.after(log)
    assert 0 < reached <= 500 * 0.1


def alarms(watched: models.Watched, gains: list[float], false_alarm: float, sigma: float = SIGMA) -> int:
    guard, count = make(watched, false_alarm), 0
    for seed, gain in enumerate(gains):
        guard.reset(forget=True)
        for episode in range(2):
            feed(guard, *drive(gain, 10, seed=100 * seed + episode, sigma=sigma))
            guard.reset()
        count += guard._state.said.alarm
    return count


def test_false_alarms_are_as_rare_as_stated(watched: models.Watched) -> None:
    """At the ends of the box, where they are likeliest, and with a noise that is larger than stated."""
    found = alarms(watched, [LOW, HIGH] * 8, 0.2) + alarms(watched, [HIGH] * 4, 0.2, sigma=1.4 * SIGMA)
    assert stats.binomtest(found, 20, 0.2, alternative="greater").pvalue > 0.01


@pytest.mark.slow
def test_false_alarms_of_many_deployments(watched: models.Watched) -> None:
    found = alarms(watched, [LOW, HIGH, 1.0] * 200, 0.05)
    assert stats.binomtest(found, 600, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize(("gain", "steps"), [(2.4, 10), (-0.4, 10)])
def test_an_alarm_comes_soon_outside(watched: models.Watched, gain: float, steps: int) -> None:
    guard = make(watched)
    said = feed(guard, *drive(gain, 12, seed=5))
    assert said[steps - 1].alarm
    assert said[-1] == next(one for one in said if one.alarm)  # it stays
    assert "gain=" in said[-1].reason
    assert "(box 0.5 to 1.5)" in said[-1].reason


def test_errors_that_no_parameter_explains(watched: models.Watched) -> None:
    said = feed(make(watched), *drive(1.0, 12, seed=6, sigma=20 * SIGMA))[-1]
    assert said.alarm
    assert "times as large as the noise, which no parameters explain" in said.reason


def test_a_system_that_leaves_later_is_found_too(watched: models.Watched) -> None:
    """Episodes in the box before do not count against it for ever."""
    guard = make(watched)
    for episode in range(10):
        feed(guard, *drive(1.0, 6, seed=episode))
        guard.reset()
    assert not guard._state.said.alarm
    for episode in range(2):
        feed(guard, *drive(2.5, 12, seed=episode))
        guard.reset()
    assert guard._state.said.alarm


# --- episodes -------------------------------------------------------------------------------------------------------


def test_evidence_stays_over_episodes_until_it_is_forgotten(watched: models.Watched) -> None:
    guard = make(watched, false_alarm=1e-6)
    feed(guard, *drive(1.9, 6, seed=7))
    guard.reset()
    kept = guard._state.parameters
    assert kept.segments == 1
    guard.reset()  # nothing was seen since
    assert guard._state.parameters == kept
    guard.reset(forget=True)
    assert guard._state.parameters == Evidence()


def test_a_gap_and_a_long_episode_begin_anew(watched: models.Watched) -> None:
    guard = make(watched)
    obs, action = drive(1.0, 30, seed=8)
    feed(guard, obs, action)
    assert (guard._state.parameters.segments, guard._state.segment.steps) == (2, 6)  # of 12 steps each, the horizon
    guard.check(obs[:1] + 1.0, action[:1], obs[1:2])
    assert (guard._state.parameters.segments, guard._state.segment.steps) == (3, 1)


def test_a_rate_per_steps_begins_anew_after_so_many(watched: models.Watched) -> None:
    guard = make(watched, per=10)
    for episode in range(3):
        feed(guard, *drive(1.0, 6, seed=episode))
        guard.reset()
    assert (guard._state.parameters.segments, guard._state.steps) == (1, 6)
    assert "per 10 steps" in repr(guard)


def test_what_is_remembered_can_be_saved(watched: models.Watched, tmp_path: Path) -> None:
    """Another guard goes on from it to the same answers, bit for bit."""
    one, other = make(watched), make(watched)
    obs, action = drive(1.7, 20, seed=9)
    feed(one, obs[:8], action[:7])
    np.savez(tmp_path / "guard.npz", **one.to_dict())
    with np.load(tmp_path / "guard.npz", allow_pickle=False) as saved:
        other.from_dict(saved)
    assert feed(one, obs[7:], action[7:]) == feed(other, obs[7:], action[7:])
    with pytest.raises(
        DeeprokError, match=r"^saved is of no guard; it must be what to_dict of a guard of the same run"
    ):
        other.from_dict({})
    with pytest.raises(DeeprokError, match=r"^saved has no bank\.x; "):
        other.from_dict({"of": one.to_dict()["of"]})
    with pytest.raises(
        DeeprokError, match=r"^saved is of Guard\(.*false_alarm=0\.02.*; it must be .*false_alarm=0\.01"
    ):
        other.from_dict(make(watched, false_alarm=0.02).to_dict())
    with pytest.raises(DeeprokError, match=r"^saved has bank\.x of shape \(3,\), and this guard of \(\d+, 1\)"):
        other.from_dict({**one.to_dict(), "bank.x": np.zeros(3)})


# --- the uncertainty of Q -------------------------------------------------------------------------------------------


def test_the_rank_of_a_score_is_an_e_value_of_mean_one_at_most() -> None:
    """Over all ranks it is κ p^(κ−1), whose sum is below that of the integral."""
    simulated = np.arange(1.0, 100.0)[None]
    values = [np.exp(uncertainty.log_e_value(score, np.zeros(0), simulated)) for score in np.arange(0.5, 100.0)]
    assert len(values) == 100
    assert values == pytest.approx(0.2 * (np.arange(100, 0, -1) / 100) ** -0.8)
    assert np.mean(values) <= 1
    assert np.all(np.diff(values) > 0)


def test_a_model_with_large_scores_is_not_alarmed_for_them() -> None:
    """The p-value is that of the model for which it is largest."""
    calm, wild = np.arange(100.0), 10 * np.arange(100.0)
    both = uncertainty.log_e_value(200.0, np.zeros(0), np.stack([calm, wild]))
    assert both == uncertainty.log_e_value(200.0, np.zeros(0), wild[None])
    assert both < uncertainty.log_e_value(200.0, np.zeros(0), calm[None])


def test_large_deviations_of_q_are_an_alarm(watched: models.Watched) -> None:
    deviation = {"now": 0.5}
    simulated = np.random.default_rng(0).uniform(0, 1, (2, 100))
    env = DRIFT._replace(actions=Choices(("stay", "move")))
    values = _Values(lambda obs: np.array([0.0, deviation["now"]]), simulated)
    guard = Guard(env, None, watched, values, NOISE, "", 0.01, None)
    assert guard.threshold == 200
    for episode in range(10):
        deviation["now"] = 0.5 if episode < 3 else 2.0
        said = guard.check([0.0], 1, [1.0])
        guard.reset()
        if said.alarm:
            break
    assert 4 <= episode < 9
    assert said.uncertainty is not None
    assert said.uncertainty >= 200 > said.parameters
    assert said.reason.startswith("the policy is where it knows little: the standard deviation of Q reached 2 ")


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> deeprok.Run:
    """A policy with a posterior and a memory of 2 steps: 16 inputs, a unit, 2 outputs."""
    folder = tmp_path_factory.mktemp("guarded") / "run"
    weights = np.random.default_rng(0).normal(size=21).astype(np.float32)
    changes: dict[str, Any] = dict(
        box="pole_length=0.4:0.7", horizon=10, memory=2, input_scale=(1.0,), sensor_noise=0.02
    )
    return deeprok.load(write_run(folder, "deep_rok", weights, weights, spread=1e-3, **changes))


@pytest.fixture(scope="module")
def guard(run: deeprok.Run) -> deeprok.Guard:
    return run.guard()


def test_a_run_with_memory_and_a_posterior(run: deeprok.Run, guard: deeprok.Guard) -> None:
    """It keeps the past by itself: its deviations of Q are those of the run for the whole observation."""
    env, noise = cartpole(), np.random.default_rng(0).normal(size=(6, 4)) * 1e-3
    state, obs = env.reset(jax.random.key(0), env.nominal)
    seen, past, deviations = np.asarray(obs) + noise[0], None, []
    guard.reset(forget=True)
    for t in range(5):
        whole = np.concatenate([seen, np.zeros(12) if past is None else past])
        action, past = run.predict(seen, past)
        deviations.append(run.q_values(whole)[1][action])
        outcome = env.step(jax.random.key(0), state, jnp.int32(action), env.nominal)
        state, following = outcome.state, np.asarray(outcome.obs) + noise[t + 1]
        said = guard.check(seen, action, following)
        seen = following
    assert guard._state.score == pytest.approx(max(deviations), rel=1e-6)
    assert not said.alarm
    assert (said.threshold, guard.threshold) == (200, 200)
    assert guard._values
    assert guard._values.simulated.shape == (3, 100)  # the nominal model and the two ends
    assert np.all(guard._values.simulated > 0)


def test_the_noise_that_is_assumed_is_said(guard: deeprok.Guard) -> None:
    assert guard.noise.sensor == pytest.approx([0.048, 0.04, 0.004, 0.04])  # 2 %, as in training
    assert guard.noise.process == pytest.approx([0.0024, 0.002, 0.0002, 0.002])
    assert "sensor noise is assumed to be that of training, 2 % of each" in guard.assumes
    assert guard.assumes in repr(guard)
    assert "pole_length=0.4:0.7" in repr(guard)
    noise, said = assumed_noise(cartpole(), "cartpole", 0.0, None, None)
    assert noise.sensor == pytest.approx([0.024, 0.02, 0.002, 0.02])
    assert said.startswith("no noise was given: sensor noise is assumed to be 1 % of")


def test_the_noise_that_is_given(run: deeprok.Run, tmp_path: Path) -> None:
    four = [0.1, 0.2, 0.3, 0.4]
    assert assumed_noise(cartpole(), "cartpole", 0.0, four, None)[0] == Noise((0.0,) * 4, tuple(four))
    both = {"sensor": four, "process": [0.1] * 4}
    assert assumed_noise(cartpole(), "cartpole", 0.0, both, None)[0] == Noise((0.1,) * 4, tuple(four))
    fit = deeprok.Identified(
        *("cartpole", {}, 0.9, (), (), Noise((0.1,) * 4, tuple(four))),
        *(Fit(1, 1, 0.0, (), ()), {}, {}, {}, ()),
    )
    assert assumed_noise(cartpole(), "cartpole", 0.0, None, fit)[0] == fit.noise
    fit.save(tmp_path / "identified.json")
    with pytest.raises(DeeprokError, match=r"^identified is for env 'cartpole', but the run has 'pendulum'$"):
        assumed_noise(cartpole(), "pendulum", 0.0, None, fit)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"false_alarm": 0.0}, r"^false_alarm is 0\.0; it must be above 0 and below 1$"),
        ({"per": 0}, r"^per is 0; it must be a number of steps, at least 1$"),
        ({"noise": [0.1, 0.2]}, r"^noise has the sensor noise \[0\.1, 0\.2\]; it must be 4 standard deviations"),
        ({"noise": {"sensors": [0.1] * 4}}, r"^noise has 'sensors'; it may have sensor and process$"),
        ({"noise": [-1.0] * 4}, r"finite and not negative$"),
        ({"noise": [0.1] * 4, "identified": "x.json"}, r"^noise and identified are both given; give one of them$"),
        ({"identified": "missing.json"}, r"missing\.json"),
    ],
)
def test_what_a_guard_refuses(run: deeprok.Run, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DeeprokError, match=sentence):
        run.guard(**arguments)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (([0, 0, np.nan, 0], 0, [0] * 4), r"^obs is \[0\.0, 0\.0, nan, 0\.0\]; observations must be finite numbers"),
        (([0] * 4, 0, [np.inf] * 4), r"^next_obs is \[inf.*leave such a step out"),
        (([0] * 16, 0, [0] * 4), r"^obs has shape \(16,\); cartpole has 4 observations, so it must be \[4\]$"),
        (("ab", 0, [0] * 4), r"^obs is 'ab'; it must be 4 numbers$"),
        (([0] * 4, 2, [0] * 4), r"^action is 2; in cartpole it must be a whole number from 0 to 1$"),
        (([0] * 4, 0.5, [0] * 4), r"^action is 0\.5; "),
        (([0] * 4, None, [0] * 4), r"^action is None; "),
    ],
)
def test_steps_that_are_refused_change_nothing(guard: deeprok.Guard, step: tuple[Any, ...], sentence: str) -> None:
    before = guard._state
    with pytest.raises(DeeprokError, match=sentence):
        guard.check(*step)
    assert guard._state is before


def test_numbers_beyond_the_ends_are_no_actions(watched: models.Watched) -> None:
    with pytest.raises(DeeprokError, match=r"^action is \[1\.5\]; in drift it must be 1 numbers between the ends of"):
        make(watched).check([0.0], [1.5], [0.0])


def test_systems_that_can_not_be_watched() -> None:
    ferry = ENVIRONMENTS["ferry"]
    with pytest.raises(DeeprokError, match=r"^env is 'ferry', and its observation is not its state; a guard needs"):
        models.watch(ferry.make(ferry.settings()), {"current": (0.0, 1.0)}, NOISE)


def test_the_simulated_system_is_that_of_the_likelihood() -> None:
    """Process noise moves the state, sensor noise only what is seen of it."""
    env = with_noise(DRIFT, Noise((0.3,), (0.4,)))
    params = DRIFT.nominal
    keys = jax.random.split(jax.random.key(0), 4000)
    outcome = jax.vmap(lambda key: env.step(key, jnp.zeros(1), jnp.ones(1), params))(keys)
    assert np.std(np.asarray(outcome.state)) == pytest.approx(0.3, rel=0.05)
    assert np.std(np.asarray(outcome.obs - outcome.state)) == pytest.approx(0.4, rel=0.05)
    assert np.mean(np.asarray(outcome.obs)) == pytest.approx(1.0, abs=0.05)


# --- what was measured ----------------------------------------------------------------------------------------------


def test_the_page_has_what_was_measured() -> None:
    root = Path(__file__).parents[1]
    spec = spec_from_file_location("guard_benchmark", root / "benchmarks" / "guard.py")
    assert spec
    assert spec.loader
    benchmark = module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    stored = json.loads((root / "benchmarks" / "guard.json").read_text())
    assert benchmark.tables(stored) in (root / "docs" / "how-to" / "guard.md").read_text()
    assert list(stored["rows"]) == [task.env for task in benchmark.TASKS]
    for row in stored["rows"].values():
        assert row["deployments"] >= 200
        likely = stats.binomtest(row["alarms"], row["deployments"], stored["false_alarm"], alternative="greater")
        assert likely.pvalue > 0.01


@pytest.mark.parametrize(("box", "around"), [((0.89, 0.91), (0.45, 1.35)), ((0.4, 0.8), (0.04, 1.2))])
def test_models_around_a_narrow_range_are_far_from_it(box: tuple[float, float], around: tuple[float, float]) -> None:
    """As far as the range is wide, or half of its middle; but a tenth of its lower end at least."""
    with jax.enable_x64(True):
        watched = models.watch(cartpole(), {"pole_length": box}, Noise((0.01,) * 4, (0.01,) * 4))
    low, high = np.exp(watched.around.low[0]), np.exp(watched.around.high[0])
    assert (low, high) == pytest.approx(around, rel=0.2)
    outside = np.exp(watched.first.x[~watched.inside(watched.first.x)])
    assert outside.min() < 0.7 * box[0]
    assert outside.max() > 1.2 * box[1]
