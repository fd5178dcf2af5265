from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from deeprok.agents.algorithms import ALGORITHMS
from deeprok.agents.learner import LEARNERS
from deeprok.agents.network import NETWORKS
from deeprok.agents.targets import TARGETS
from deeprok.core.errors import DeeprokError
from deeprok.environments import ENVIRONMENTS
from deeprok.estimators import (
    ESTIMATORS,
    BayesByBackpropConfig,
    GradientConfig,
    KalmanConfig,
    PSGLDConfig,
    UnscentedConfig,
)
from deeprok.runs import format3
from deeprok.runs.parts import SECTIONS
from deeprok.runs.run_settings import PRESETS, RunSettings
from deeprok.runs.settings import FORMAT, check, from_json, make_config

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@every_algorithm
@pytest.mark.parametrize("preset", PRESETS)
def test_json_round_trip(algorithm: str, preset: str) -> None:
    config = make_config(algorithm, preset, seed=3, hidden=(7, 5, 3), box="gravity=1:20", discount=0.5)
    assert from_json(config.to_json(), "config.json") == config


@pytest.mark.parametrize("prior", [2.0, (1.0, 2.0), ((2.0, 0.5), (0.5, 1.0))])
def test_prior_survives_json(prior: Any) -> None:
    n = make_config("deep_rok", hidden=(1,)).make_network(make_config("deep_rok").make_env()).num_weights
    if isinstance(prior, tuple):
        block = np.asarray(prior)
        full = np.eye(n) if block.ndim == 2 else np.ones(n)
        full[tuple(slice(2) for _ in block.shape)] = block
        prior = tuple(map(tuple, full.tolist())) if block.ndim == 2 else tuple(full.tolist())
    config = make_config("deep_rok", hidden=(1,), covariance="full", prior_covariance=prior)
    assert from_json(config.to_json(), "config.json") == config


Q_LEARNERS = [name for name, row in ALGORITHMS.items() if row.learner == "q_learning"]
KTD = ("ktd_q", "ktd_rtd")


@pytest.mark.parametrize("algorithm", Q_LEARNERS)
def test_preset_paper(algorithm: str) -> None:
    config = make_config(algorithm, "paper")
    settings, env, ktd = config.flat(), config.make_env(), algorithm in KTD
    assert config.make_network(env).num_weights == (142 if ktd else 562)
    assert config.make_network(env).sizes == ((4, 20, 2) if ktd else (4, 20, 20, 2))
    assert settings["activation"] == "tanh"
    assert config.input_scale == (1.0,) * 4
    assert (config.discount, config.episodes, config.environment.horizon) == (0.9, 700, 200)
    assert config.learner.batch_size == (1 if ktd else 10)
    assert (config.models, config.draw, settings.get("robust_set", "minimum")) == (5, "pairs", "minimum")
    assert ("robust_set" in settings) == config.robust
    assert config.make_box(env) == {"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)}
    assert config.environment.failing_reward == 0.0
    if ALGORITHMS[algorithm].estimator == "gradient":
        assert config.estimator == GradientConfig(learning_rate=1e-3, optimizer="adam")
    if ALGORITHMS[algorithm].estimator == "kalman":
        assert config.estimator == KalmanConfig(
            observation_noise=0.001, process_noise=0.01, prior_covariance=1.0, batching="averaged", learning_rate=1.0
        )


def test_tuned_shares_all_but_the_estimators() -> None:
    configs = {algorithm: make_config(algorithm, "tuned") for algorithm in Q_LEARNERS}
    own = {"algorithm", "double", "acting"}
    replay = ("batch_size", "hidden", "replay_size")  # KTD has no replay, and each of its weights is dear
    shared: dict[str, Any] = {}
    for algorithm, config in configs.items():
        settings = config.flat()
        sizes = tuple(settings.pop(name) for name in replay)
        assert sizes == ((1, (20,), 1) if algorithm in KTD else (10, (20, 20), 150_000))
        for name in own | {field.name for field in dataclasses.fields(config.estimator)}:
            settings.pop(name, None)
        for name, value in settings.items():
            assert shared.setdefault(name, value) == value
    assert set(shared) >= {"robust_set", "target_period", "models", "epsilon_steps"}
    for kind in ESTIMATORS:
        of_kind = [dataclasses.asdict(c.estimator) for c in configs.values() if c.row.estimator == kind]
        if kind == "unscented":  # the robust twin has a noise of its own
            assert [estimator.pop("observation_noise") for estimator in of_kind] == [0.01, 0.1]
        assert all(estimator == of_kind[0] for estimator in of_kind)


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_differ_as_the_table_says(preset: str) -> None:
    rows = {a: make_config(a, preset) for a in ALGORITHMS}
    assert {a for a, c in rows.items() if c.flat().get("double")} == {"ddqn", "ddqn_dr"}
    robust = {"rtd_dqn", "deep_rok", "bbb_rtd", "psgld_rtd", "boot_rtd", "ktd_rtd", "epopt", "robust_pg"}
    robust |= {"rtd_td3", "rok_td3"}
    assert {a for a, c in rows.items() if c.robust} == robust
    kinds = {
        GradientConfig: {"dqn", "ddqn", "ddqn_dr", "rtd_dqn", "boot_dqn", "boot_rtd", "td3", "td3_dr", "rtd_td3"},
        KalmanConfig: {"ekf_dqn", "deep_rok", "rok_td3"},
        BayesByBackpropConfig: {"bbb_dqn", "bbb_rtd"},
        PSGLDConfig: {"psgld_dqn", "psgld_rtd"},
        UnscentedConfig: {"ktd_q", "ktd_rtd"},
        type(None): {"pg", "epopt", "robust_pg"},
    }
    for kind, names in kinds.items():
        assert {a for a, c in rows.items() if isinstance(c.estimator, kind)} == names
    assert {a for a, c in rows.items() if c.has_posterior} == {
        a for kind in (KalmanConfig, BayesByBackpropConfig, PSGLDConfig, UnscentedConfig) for a in kinds[kind]
    }
    for nominal, randomised in (("ddqn", "ddqn_dr"), ("td3", "td3_dr")):
        assert (rows[nominal].acting, rows[randomised].acting) == ("nominal", "sampled")
    assert {a for a, c in rows.items() if c.env == "pendulum"} == {"td3", "td3_dr", "rtd_td3", "rok_td3"}


def test_changes_reach_the_settings_and_the_estimator() -> None:
    config = make_config("deep_rok", batch_size=3, process_noise=0.5, batching="joint")
    assert config.learner.batch_size == 3
    assert isinstance(config.estimator, KalmanConfig)
    assert (config.estimator.process_noise, config.estimator.batching) == (0.5, "joint")


def test_made_from_settings() -> None:
    config = make_config("rtd_dqn", nominal="cart_mass=2,gravity=5", horizon=50, draw="product", models=3)
    env = config.make_env()
    assert (float(env.nominal.cart_mass), float(env.nominal.gravity)) == (2.0, 5.0)
    assert float(env.nominal.pole_length) == 0.5
    assert env.horizon == 50
    assert config.make_models(env).size == 9
    fixed = make_config("rtd_dqn", fixed_models="pole_length=1;pole_length=2:3:4")
    assert fixed.make_models(env).size == 5


NAN, INF = float("nan"), float("inf")
NUMBERS: dict[str, list[Any]] = {
    "seed": [-1, 2**32, 0.5, "1", True],
    "episodes": [-3, 1.5, NAN, INF, None, "7"],
    "steps": [-1, 1.5, "7"],
    "failing_reward": [NAN, INF, "0"],
    "horizon": [0, 2.5],
    "action_seed": [-1, 2**32, 0.5],
    "models": [0, 2.5],
    "sensor_noise": [-0.1, NAN, INF, "1"],
    "action_delay": [-1, 101, 1.5, "1"],
    "memory": [-1, 1.5, 201, "1"],
    "simulators": [0, 257, 1.5, "2"],
    "edges": [1.0, -0.1, NAN],
    "discount": [1.0, -0.1, NAN, 2],
    "batch_size": [0, 1.5],
    "replay_size": [0],
    "warm_up": [-1, 0.5],
    "train_every": [0],
    "updates": [0, 1.5],
    "target_period": [0],
    "target_rate": [0.0, 1.1, NAN],
    "epsilon_start": [1.1, -0.1, NAN],
    "epsilon_end": [2],
    "epsilon_steps": [-1],
    "epsilon_fraction": [1.1, -0.1, NAN],
    "longest_repeat": [0, 1.5],
    "averaging": [1.0, -0.1, NAN],
    "final_rate": [1.1, -0.1, NAN],
    "chunk_steps": [0],
    "snapshot_every": [-1],
    "trial_every": [0],
    "trial_models": [0],
    "trial_episodes": [0, 1.5],
    "trial_epsilon": [1.5],
    "trial_tail": [0.0, 1.1, NAN],
    "refine_from": [-0.1, 1.1, NAN],
    "learning_rate": [0.0, -1.0, NAN],
    "observation_noise": [0.0, -1.0, INF],
    "process_noise": [-1e-9, NAN],
    "prior_covariance": [0.0, -1.0, NAN, INF],
    "rank": [0, 2.5],
    "remembered": [0.0, 1.1, NAN],
    "window": [-1, 0.5],
    "noise_share": [-0.1, NAN],
    "robust_level": [NAN, INF],
    "level_start": [NAN],
    "level_steps": [0],
    "level_fraction": [1.1, -0.1, NAN],
    "explore_scale": [-1.0, NAN],
    "initial_deviation": [0.0],
    "prior_variance": [0.0],
    "narrow_variance": [0.0],
    "wide_share": [0.0, 1.0],
    "samples": [0],
    "decay": [-0.5],
    "decay_updates": [0.0],
    "smoothing": [1.0, -0.1],
    "damping": [0.0],
    "burn_in": [-1],
    "thinning": [0],
    "members": [0],
    "mask": [0.0, 1.1, NAN],
    "prior_scale": [-1.0, NAN, INF],
    "policy_delay": [0, -1, 1.5],
    "actor_rate": [0.0, -1.0, NAN],
    "actor_final_rate": [-0.1, 1.1, NAN],
    "action_noise": [-0.1, INF],
    "smoothing_noise": [-0.1, NAN],
    "smoothing_clip": [-0.1, INF],
    "adaptive_noise": [-0.1],
    "kappa": [-1.0],
    "trajectories": [1],
    "clip": [0.0, 1.0],
    "epochs": [0],
    "minibatches": [0],
    "entropy": [-0.1],
    "kl_bound": [0.0],
    "gae_lambda": [1.5],
    "trajectory_level": [NAN],
    "level_iterations": [-1],
    "adversary": [-0.1, 1.5, NAN],
    "source_spread": [-1.0],
    "adapt_every": [0],
    "target_trajectories": [0],
    "particles": [9],
    "target_noise": [0.0],
    "critic_updates": [0, 1.5],
    "critic_batch": [0],
    "critic_rate": [0.0, -1.0, NAN],
    "critic_noise": [0.0, INF],
    "critic_drift": [1.0, -0.1, NAN],
}


def first_with_each_record() -> dict[tuple[str, str], list[str]]:
    """(algorithm, environment) -> fields that are numbers: each field of each record once."""
    seen: set[tuple[type, str]] = set()
    fields: dict[tuple[str, str], list[str]] = {}
    pairs = [(algorithm, row.env) for algorithm, row in ALGORITHMS.items()] + [("epopt", env) for env in ENVIRONMENTS]
    for algorithm, env in pairs:
        config = make_config(algorithm, env=env)
        for record in (RunSettings(), *(getattr(config, section) for section in SECTIONS)):
            for field in dataclasses.fields(record) if record is not None else ():
                if type(field.default) in (int, float) or field.default is None:
                    if (type(record), field.name) not in seen:
                        fields.setdefault((algorithm, env), []).append(field.name)
                    seen.add((type(record), field.name))
    registries: tuple[Any, ...] = (ENVIRONMENTS, NETWORKS, LEARNERS, TARGETS, ESTIMATORS)
    named = {part.settings for registry in registries for part in registry.values()}
    numbers = {kind for kind in named if any(type(f.default) in (int, float) for f in dataclasses.fields(kind))}
    assert {kind for kind, _ in seen} == {RunSettings} | numbers
    return fields


FIELDS = [(algorithm, env, field) for (algorithm, env), names in first_with_each_record().items() for field in names]


@pytest.mark.parametrize(("algorithm", "env", "field", "value"), [(*f, v) for f in FIELDS for v in NUMBERS[f[-1]]])
def test_bad_numbers_are_named(algorithm: str, env: str, field: str, value: Any) -> None:
    with pytest.raises(DeeprokError, match=rf"^{field} is {value!r}") as error:
        make_config(algorithm, env=env, **{field: value})
    assert "must be" in str(error.value)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e39, -1e39, 10**39, 10**400, 2**40 + 0.5, "1", True, [1.0], {}])
def test_no_number_of_any_record_is_without_bounds(value: Any) -> None:
    for algorithm, env, field in FIELDS:
        if value == 2**40 + 0.5 and type(make_config(algorithm, env=env).flat()[field]) is not int:
            continue  # a large number, but no count
        with pytest.raises(DeeprokError, match=rf"^{field} (is|has) "):
            make_config(algorithm, env=env, **{field: value})


FULL: dict[str, Any] = {"hidden": (1,), "covariance": "full"}
IN_PRECISION: dict[str, tuple[str, dict[str, Any]]] = {
    "a number": ("deep_rok", {"prior_covariance": 1e39}),
    "a vector": ("deep_rok", {"hidden": (1,), "process_noise": (1e39,) * 9}),
    "a matrix": ("deep_rok", {**FULL, "prior_covariance": tuple(map(tuple, (1e39 * np.eye(9)).tolist()))}),
    "too small": ("deep_rok", {"prior_covariance": 1e-60}),
    "a rate": ("dqn", {"learning_rate": 1e39}),
    "a noise": ("ktd_q", {"process_noise": 1e39}),
    "a discount": ("dqn", {"discount": 1 - 1e-12}),
    "scales": ("dqn", {"input_scale": (1.0, 1.0, 1.0, 1e-60)}),
}


@pytest.mark.parametrize(("algorithm", "changes"), IN_PRECISION.values(), ids=IN_PRECISION)
def test_numbers_must_be_right_in_the_precision_of_the_run(algorithm: str, changes: dict[str, Any]) -> None:
    with pytest.raises(DeeprokError, match=rf"^{list(changes)[-1]} .* float32"):
        make_config(algorithm, **changes)
    make_config(algorithm, **changes, precision="float64")


@pytest.mark.parametrize("text", ["box", "nominal", "fixed_models"])
def test_quantities_are_finite(text: str) -> None:
    with pytest.raises(DeeprokError, match=rf"{text} gives gravity the value 1e\+39, which must be .*finite"):
        make_config("rtd_dqn", **{text: "gravity=1:1e39" if text == "box" else "gravity=1e39"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": 100_000, "draw": "product"}, "10000000000 models"),
        ({"fixed_models": "gravity=1:2:1e9"}, "fixed_models has 1e[+]09 models; at most 1,000,000"),
        ({"fixed_models": "gravity=1:2:1e300,cart_mass=1:2:-1"}, "fixed_models has 1e[+]300 models"),
        ({"hidden": (2**31 - 1,)}, "weights would take .* GB"),
    ],
)
def test_what_no_memory_holds_is_refused_before_it_is_made(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        make_config("rtd_dqn", **changes)


@pytest.mark.parametrize("covariance", ["full", "layer", "neuron"])
def test_memory_is_counted_by_blocks(covariance: str) -> None:
    network = make_config("deep_rok", hidden=(7, 5)).make_network(make_config("deep_rok").make_env())
    blocks = {"full": (slice(0, network.num_weights),), "layer": network.slices, "neuron": network.neurons}[covariance]
    squares = sum(len(range(network.num_weights)[block]) ** 2 for block in blocks)
    settings = KalmanConfig(covariance=covariance)  # type: ignore[arg-type]
    assert ESTIMATORS["kalman"].memory(settings, network).numbers == squares + 4 * network.num_weights


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "cartpol"}, "env 'cartpol': did you mean 'cartpole'"),
        ({"integrator": "eular"}, "integrator 'eular': did you mean 'euler'"),
        ({"draw": "pair"}, "draw 'pair': did you mean 'pairs'"),
        ({"acting": "nominel"}, "acting 'nominel': did you mean 'nominal'"),
        ({"robust_set": "cvarr"}, "robust_set 'cvarr': did you mean 'cvar'"),
        ({"activation": "tan"}, "activation 'tan': did you mean 'tanh'"),
        ({"batching": "jont"}, "batching 'jont': did you mean 'joint'"),
        ({"acting": ["nominal"]}, "acting.*nominal"),
        ({"robust_set": "cvar", "robust_level": 0.0}, "robust_level is 0"),
        ({"robust_set": "cvar", "robust_level": 1.5}, "robust_level is 1.5"),
        ({"robust_level": NAN}, "robust_level is nan"),
        ({"hidden": ()}, r"hidden is \(\)"),
        ({"hidden": (20, 0)}, r"hidden is \(20, 0\)"),
        ({"hidden": (2.5,)}, r"hidden is \(2.5,\)"),
        ({"hidden": 5}, "hidden is .*5"),
        ({"input_scale": (1.0, 1.0)}, r"input_scale is \(1.0, 1.0\).*4"),
        ({"input_scale": (1.0, 0.0, 1.0, 1.0)}, "input_scale is .*0.0"),
        ({"input_scale": (1.0, NAN, 1.0, 1.0)}, "input_scale is .*nan"),
        ({"input_scale": 1.0}, "input_scale is .*1.0"),
        ({"double": "yes"}, "double is 'yes'"),
        ({"box": ","}, "box: '' can't be read"),
        ({"covariance": "ful"}, "covariance 'ful': did you mean 'full'"),
        ({"explore": "thomson"}, "explore 'thomson': did you mean 'thompson'"),
        ({"prior_part": "men"}, "prior_part 'men': did you mean 'mean'"),
        ({"confidence": "times"}, "confidence 'times': did you mean 'time'"),
        ({"precision": "float16"}, "precision 'float16'.*float32"),
        (
            {"covariance": "diagonal", "hidden": (1,), "prior_covariance": np.eye(9).tolist()},
            "prior_covariance is a matrix",
        ),
        ({"covariance": "low_rank", "hidden": (1,), "process_noise": np.eye(9).tolist()}, "process_noise is a matrix"),
        ({"hidden": (1,), "process_noise": (-np.eye(9)).tolist()}, "process_noise is not positive semidefinite"),
        ({"hidden": (2000, 2000)}, "covariance full of 4016002 weights would take .* GB"),
        ({"confidence": "time", "level_start": 2.0}, "level_start is 2"),
        ({"box": 3}, "box.*3"),
        ({"box": "pole_lenght=1:2"}, "did you mean 'pole_length'"),
        ({"box": "pole_length=2:1"}, "box.*reversed"),
        ({"box": "cart_mass=0:1"}, "cart_mass the value 0"),
        ({"nominal": "cart_mass=-1"}, "nominal gives cart_mass the value -1"),
        ({"fixed_models": "cart_mass"}, "fixed_models: 'cart_mass' can't be read"),
        ({"train_every": 4, "chunk_steps": 3}, "chunk_steps is 3"),
        ({"replay_size": 9}, "batch_size is 10; it must be at most replay_size, which is 9, or a mini-batch would"),
        ({"estimator": GradientConfig()}, "estimator"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        make_config("deep_rok", "tuned", **changes)
    assert "\n" not in str(error.value)


def test_bad_optimizer_is_named() -> None:
    with pytest.raises(DeeprokError, match="optimizer 'adamm': did you mean 'adam'"):
        make_config("dqn", optimizer="adamm")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("deep_rock",), "algorithm 'deep_rock': did you mean 'deep_rok'"),
        (("xyzzy",), "algorithm 'xyzzy': known are"),
        (("dqn", "tunned"), "preset 'tunned': did you mean 'tuned'"),
    ],
)
def test_unknown_algorithm_or_preset(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(DeeprokError, match=said):
        make_config(*arguments)


def test_unknown_setting_has_the_nearest_match() -> None:
    with pytest.raises(DeeprokError, match="setting 'batchsize': did you mean 'batch_size'"):
        make_config("dqn", batchsize=3)
    with pytest.raises(DeeprokError, match="process_noise"):
        make_config("dqn", process_noise=0.1)  # an estimator's setting that this algorithm lacks


N = 9  # weights of the network 4-1-2


def spoilt(at: tuple[int, int], value: float) -> np.ndarray:
    P = np.eye(N)
    P[at] = value
    return P


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        (0.0, "prior_covariance .*0"),
        (-1.0, "prior_covariance .*-1"),
        (NAN, "prior_covariance .*nan"),
        (INF, "prior_covariance .*inf"),
        ("one", "prior_covariance"),
        ((1.0,) * (N - 1), rf"shape \({N - 1},\).*{N}"),
        ((1.0,) * (N - 1) + (0.0,), "variance of 0"),
        (((1.0,) * N,) * 2, rf"shape \(2, {N}\)"),
        (((1.0, 2.0), (1.0,)), "unequal"),
        (spoilt((0, 1), 0.5), "not symmetric"),
        (spoilt((0, 0), -1.0), "not positive definite"),
        (np.ones((N, N)) - 0.1 * np.eye(N), "not positive definite"),
        (spoilt((0, 0), NAN), "prior_covariance"),
        (spoilt((0, 0), INF), "prior_covariance"),
    ],
)
def test_bad_priors(prior: Any, said: str) -> None:
    if isinstance(prior, np.ndarray):
        prior = tuple(map(tuple, prior.tolist()))
    with pytest.raises(DeeprokError, match=said):
        make_config("deep_rok", hidden=(1,), covariance="full", prior_covariance=prior)


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


def edited(**changes: Any) -> str:
    """`config.json` of Deep-RoK with some settings replaced, wherever they stand, or dropped."""
    fields = json.loads(make_config("deep_rok").to_json())
    for name, value in changes.items():
        place = next((section for section in (fields[s] for s in SECTIONS) if name in (section or {})), fields)
        place[name] = value
        if value == "drop":
            del place[name]
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON object"),
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        (b"\xff{}", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"a": 1' + "0" * 5000 + "}", "not a JSON object"),
        ('"text"', "not a JSON object"),
        (edited(format=2), f"format 2; .* reads formats 3 and {FORMAT}"),
        (edited(format=FORMAT + 1), f"format {FORMAT + 1}; .* reads formats 3 and {FORMAT}"),
        (edited(format=str(FORMAT)), f"format '{FORMAT}'; .* reads formats 3 and {FORMAT}"),
        (edited(format="drop"), "format None"),
        (edited(algorithm="deep_rock"), "did you mean 'deep_rok'"),
        (edited(algorithm="drop"), "algorithm"),
        (edited(algorithm=["dqn"]), "algorithm"),
        (edited(env="drop"), "env"),
        (edited(env=None), "env"),
        (edited(network=3), "network"),
        (edited(colour="blue"), "colour"),
        (edited(discount="drop"), "discount"),
        (edited(estimator="drop"), "lacks"),
        (edited(estimator={"learning_rate": 1.0}), "process_noise"),
        (edited(estimator=[1]), "lacks"),
        (edited(estimator=None), "lacks"),
        (edited(batch_size="drop"), "batch_size"),
        (edited(learner={"trajectories": 3}), "trajectories"),
        (edited(environment="drop"), "lacks"),
        (edited(target=None), "lacks"),
        (edited(discount=3), "discount is 3"),
        (edited(hidden=nested(400)), "hidden is "),
        (edited(box="x" * 10_000), "box: 'x{53}…x{26}' can't be read"),
        (edited(batch_size=2.5), "batch_size is 2.5"),
        (edited(algorithm="rtd_dqn"), "optimizer"),
        (edited(algorithm="dqn"), "robust_set"),
        (edited(env="ferry"), "integrator"),
        (edited(env="nosuch:thing"), "no module 'nosuch'"),
    ],
)
def test_bad_json(text: str | bytes, said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        from_json(text, "here/config.json")
    if "is" not in said and "box" not in said:
        assert "here/config.json" in str(error.value)


def test_whole_numbers_written_with_a_point_are_made_whole_or_refused() -> None:
    try:
        config = from_json(edited(episodes=20.0), "config.json")
    except DeeprokError as error:
        assert "episodes is 20.0" in str(error)  # noqa: PT017
    else:
        assert type(config.episodes) is int


OTHER: dict[str, Any] = {
    "algorithm": "ekf_dqn",
    "preset": "paper",
    "env": "another",
    "integrator": "semi-implicit",
    "nominal": "gravity=5",
    "parameter_noise": "gravity=1",
    "box": "gravity=1:2",
    "draw": "product",
    "fixed_models": "gravity=1",
    "acting": "member",
    "robust_set": "minimum",
    "double": True,
    "hidden": (3,),
    "activation": "relu",
    "input_scale": (1.0, 1.0, 1.0, 2.0),
    "network": "another",
    "batching": "averaged",
    "covariance": "layer",
    "confidence": "spread",
    "prior": "another",
    "prior_part": "mean",
    "precision": "float64",
    "explore": "ucb",
    "adversary": "stress",
}


@pytest.mark.parametrize("field", make_config("deep_rok").flat())
def test_digest_is_of_everything_but_the_seed(field: str) -> None:
    config = make_config("deep_rok")
    value = config.flat()[field]
    new = OTHER[field] if field in OTHER else value + 1
    place = next((s for s in SECTIONS if hasattr(getattr(config, s), field)), None)
    change = {field: new} if place is None else {place: dataclasses.replace(getattr(config, place), **{field: new})}
    changed = dataclasses.replace(config, **change)
    assert changed != config
    assert (changed.digest() == config.digest()) == (field == "seed")


#: Noise that follows the innovations is not known before, and so not warned of.
FIXED = {"covariance": "full", "noise_share": 0.0, "window": 0}
RISKS: dict[str, tuple[dict[str, Any], bool]] = {
    "default": ({}, False),
    "default without forgetting": (FIXED | {"observation_noise": 1e-3, "remembered": 1.0}, True),
    "tuned": ({"preset": "tuned"}, False),
    "paper": ({"preset": "paper"}, False),
    "tiny noise": (FIXED | {"observation_noise": 1e-12, "process_noise": 0.0, "prior_covariance": 1.0}, True),
    "tiny noise in float64": (
        FIXED | {"observation_noise": 1e-8, "process_noise": 0.0, "prior_covariance": 1.0, "precision": "float64"},
        False,
    ),
    "the same in float32": (FIXED | {"observation_noise": 1e-8, "process_noise": 0.0, "prior_covariance": 1.0}, True),
    "diagonal": (FIXED | {"observation_noise": 1e-12, "process_noise": 0.0, "covariance": "diagonal"}, False),
    "gradient": ({"algorithm": "rtd_dqn"}, False),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "risky"), RISKS.values(), ids=RISKS)
def test_unsafe_settings_are_warned_of(changes: dict[str, Any], risky: bool) -> None:
    config = make_config(**{"algorithm": "deep_rok", **changes})
    warning = config.make_learner().warning
    assert (warning is not None) == risky
    if warning:
        assert "--precision float64" in warning
        assert f"{changes['observation_noise']:g}" in warning


# --- settings by name --------------------------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize("preset", PRESETS)
def test_flat_and_replace_are_inverse(algorithm: str, preset: str) -> None:
    config = make_config(algorithm, preset)
    settings = config.flat()
    assert config.replace() == config
    assert config.replace(**settings) == config
    assert make_config(**settings) == config
    other = make_config(algorithm, "paper" if preset == "tuned" else "tuned", seed=5)
    assert config.replace(**other.flat()) == other


@every_algorithm
def test_flat_names_no_setting_twice(algorithm: str) -> None:
    config = make_config(algorithm)
    records = [RunSettings(), *(getattr(config, section) for section in SECTIONS)]
    names = [field.name for record in records if record is not None for field in dataclasses.fields(record)]
    assert sorted(config.flat()) == sorted(names)
    assert len(set(names)) == len(names)


@every_algorithm
def test_every_setting_can_be_replaced_alone(algorithm: str) -> None:
    config = make_config(algorithm)
    for name, value in config.flat().items():
        assert config.replace(**{name: value}) == config
        bound = name in ("replay_size", "trajectories", "minibatches", "horizon", "critic_updates", "critic_batch")
        if type(value) is int and value > 1 and not bound:
            changed = config.replace(**{name: 2 * value})
            assert changed.flat() == {**config.flat(), name: 2 * value}


def test_replaced_settings_are_checked() -> None:
    config = make_config("deep_rok")
    with pytest.raises(DeeprokError, match=r"^batch_size is 0"):
        config.replace(batch_size=0)
    with pytest.raises(DeeprokError, match="setting 'bach_size': did you mean 'batch_size'"):
        config.replace(bach_size=3)
    with pytest.raises(DeeprokError, match="setting 'trajectories'"):
        config.replace(trajectories=3)
    assert config == make_config("deep_rok")


def test_sections_can_be_replaced_whole() -> None:
    config = make_config("deep_rok")
    chosen = KalmanConfig(process_noise=0.3)
    assert config.replace(estimator=chosen) == make_config("deep_rok", **dataclasses.asdict(chosen))
    assert config.replace(estimator=chosen, rank=3).estimator == dataclasses.replace(chosen, rank=3)


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_of_another_kind_are_refused(section: str) -> None:
    config, other = make_config("deep_rok"), make_config("epopt", env="ferry")
    record = getattr(other, section)
    if section == "layers":
        record = object()
    with pytest.raises(DeeprokError, match=section):
        config.replace(**{section: record})
    with pytest.raises(DeeprokError, match=f"{section} is a .*; deep_rok takes a "):
        check(dataclasses.replace(config, **{section: record}))


@every_algorithm
def test_settings_that_an_algorithm_does_not_read_are_unknown(algorithm: str) -> None:
    known = set(make_config(algorithm).flat())
    for name in {name for other in ALGORITHMS for name in make_config(other).flat()} - known:
        with pytest.raises(DeeprokError, match=f"unknown setting '{name}'"):
            make_config(algorithm, **{name: 1})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"box": {"gravity": (8, 11.5), "cart_mass": np.array([0.1, 7.0])}}, "gravity=8.0:11.5,cart_mass=0.1:7.0"),
        ({"nominal": {"cart_mass": 1.2, "gravity": np.float32(5)}}, "cart_mass=1.2,gravity=5.0"),
        ({"nominal": {}}, ""),
        ({"fixed_models": [{"gravity": 5}, {"cart_mass": 0.1 + 0.2}]}, "gravity=5.0; cart_mass=0.30000000000000004"),
    ],
)
def test_dictionaries_are_the_same_as_text(given: dict[str, Any], text: str) -> None:
    (name,) = given
    config = make_config("rtd_dqn", **given)
    assert config.flat()[name] == text
    assert config == make_config("rtd_dqn", **{name: text}) == make_config("rtd_dqn").replace(**given)
    assert from_json(config.to_json(), "config.json") == config


def test_box_from_a_dictionary_reaches_the_run() -> None:
    config = make_config("rtd_dqn", box={"gravity": (8, 11)}, nominal={"gravity": 9})
    env = config.make_env()
    assert config.make_box(env) == {"gravity": (8.0, 11.0)}
    assert float(env.nominal.gravity) == 9.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"box": {"pole_lenght": (1, 2)}}, "box 'pole_lenght': did you mean 'pole_length'"),
        ({"box": {"gravity": (11, 8)}}, "box.*reversed"),
        ({"box": {"gravity": 8}}, "box: 'gravity=8' can't be read"),
        ({"box": {"gravity": ("a", "b")}}, "box: .* can't be read"),
        ({"box": {}}, "box: '' can't be read"),
        ({"box": [("gravity", 8, 11)]}, "box is .*; it must be text"),
        ({"nominal": {"cart_mass": -1}}, "nominal gives cart_mass the value -1"),
        ({"nominal": 3}, "nominal is 3; it must be text"),
        ({"fixed_models": {"gravity": 5}}, "fixed_models is .*; it must be text"),
        ({"fixed_models": [{"gravty": 5}]}, "fixed_models 'gravty': did you mean 'gravity'"),
    ],
)
def test_bad_dictionaries(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        make_config("rtd_dqn", **changes)
    assert "\n" not in str(error.value)


def test_one_input_scale_is_for_all_observations() -> None:
    assert make_config("dqn", input_scale=(2.0,)).input_scale == (2.0,) * 4
    assert make_config("dqn").replace(input_scale=(2.0,)) == make_config("dqn", input_scale=(2.0,))
    sizes = make_config("dqn").make_env().observation_scale
    assert make_config("dqn", input_scale=()).input_scale == tuple(1 / size for size in sizes)


# --- parts of one's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["env", "network", "robust_set"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nosuch:thing", "there is no module 'nosuch'"),
        ("deeprok.nosuch:thing", "there is no module 'deeprok.nosuch'"),
        ("deeprok:nothing", "the module 'deeprok' has no 'nothing'"),
        ("deeprok:train.nothing", "the module 'deeprok' has no 'train.nothing'"),
        ("deeprok:", "the module 'deeprok' has no ''"),
        (":thing", "'' is no name of a module"),
        (".cartpole:thing", "'.cartpole' is no name of a module"),
        ("my file.py:thing", "'my file.py' is no name of a module"),
        ("math:pi", "that object is of type float; it must be "),
    ],
)
def test_own_parts_that_are_not_there(field: str, name: str, said: str) -> None:
    with pytest.raises(DeeprokError) as error:
        make_config("deep_rok", **{field: name})
    assert str(error.value).startswith(f"{field} is '{name}', but {said}")


def test_own_algorithm_that_is_not_there() -> None:
    with pytest.raises(DeeprokError, match=r"^algorithm is 'nosuch:thing', but there is no module 'nosuch'"):
        make_config("nosuch:thing")
    with pytest.raises(DeeprokError, match=r"^algorithm is 'math:pi', but that object is of type float; it must be"):
        make_config("math:pi")


@pytest.mark.parametrize("field", ["algorithm", "env", "network", "robust_set"])
@pytest.mark.parametrize("value", [None, 3, ["cartpole"], {}])
def test_names_of_parts_are_text(field: str, value: Any) -> None:
    with pytest.raises(DeeprokError, match=f"^{field} is .*; it must be a name, or module:object"):
        make_config(**{"algorithm": "rtd_dqn", field: value})


# --- format 3 ----------------------------------------------------------------------------------------------------

#: As format 3 had the settings of every run, here with the preset `tuned`.
OLD: dict[str, Any] = {
    "format": 3, "preset": "tuned", "seed": 0, "episodes": 700, "world": "cartpole", "integrator": "euler",
    "failing_reward": 0.0, "horizon": 200, "nominal": "", "box": "", "models": 20, "draw": "pairs", "fixed_models": "",
    "acting": "sampled", "robust_set": "cvar", "robust_level": 0.15, "confidence": "fixed", "level_start": 1.0,
    "level_steps": 30000, "discount": 0.9, "double": False, "hidden": [20, 20], "activation": "tanh",
    "input_scale": [0.5, 0.5, 5.0, 0.5], "prior": "", "precision": "float32", "batch_size": 10, "replay_size": 150000,
    "warm_up": 100, "train_every": 1, "target_period": 2000, "epsilon_start": 1.0, "epsilon_end": 0.1,
    "epsilon_steps": 30000, "explore": "epsilon", "explore_scale": 1.0, "chunk_steps": 2000, "snapshot_every": 20,
    "trial_every": 2, "trial_models": 64, "trial_epsilon": 0.1,
}  # fmt: skip
OLD_PAPER = {
    "preset": "paper", "models": 5, "acting": "nominal", "robust_set": "minimum", "robust_level": 0.4,
    "input_scale": [], "target_period": 1000, "epsilon_steps": 10000,
}  # fmt: skip
OLD_KALMAN = {
    "observation_noise": 0.12, "process_noise": 4e-9, "prior_covariance": 0.004, "batching": "averaged",
    "learning_rate": 1.0, "covariance": "full", "rank": 10, "fading": 0.0, "variance_cap": None, "noise_updates": 0,
    "observation_noise_end": None, "process_noise_end": None, "adapt_noise": 0.0, "iterations": 1,
}  # fmt: skip
OLD_POLICY = {
    "inner": "ppo", "trajectories": 60, "learning_rate": 0.001, "clip": 0.2, "epochs": 10, "minibatches": 2,
    "entropy": 0.0, "kl_bound": 0.01, "gae_lambda": 0.97, "trajectory_set": "cvar", "trajectory_level": 0.1,
    "level_iterations": 10, "weigh": "trajectories", "adversary": 0.0, "source_spread": 0.0, "target": "",
    "adapt_every": 10, "target_trajectories": 2, "particles": 500, "target_noise": 0.01,
}  # fmt: skip
OLD_UNSCENTED = {
    "observation_noise": 0.01, "prior_covariance": 0.1, "adaptive_noise": 0.0, "process_noise": 0.0, "kappa": 0.0,
}  # fmt: skip
OLD_PRIOR = [2.0, *[1.0] * 8]

#: What -> format 3, and what `make_config` makes the same settings of.
OLD_RUNS: dict[str, tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]] = {
    "gradient": (
        {"algorithm": "rtd_dqn", "estimator": {"learning_rate": 1e-4, "optimizer": "adam"}},
        ("rtd_dqn", "tuned"), {},
    ),
    "double": (
        {"algorithm": "ddqn", "acting": "nominal", "double": True, "seed": 7, "precision": "float64",
         "estimator": {"learning_rate": 0.5, "optimizer": "sgd"}},
        ("ddqn", "tuned"), {"seed": 7, "precision": "float64", "learning_rate": 0.5, "optimizer": "sgd"},
    ),
    "observations as they are": (
        {**OLD_PAPER, "algorithm": "dqn", "estimator": {"learning_rate": 1e-3, "optimizer": "adam"}},
        ("dqn", "paper"), {"input_scale": (1.0,) * 4},
    ),
    "kalman": (
        {"algorithm": "deep_rok", "estimator": OLD_KALMAN, "explore": "ucb", "confidence": "spread"},
        ("deep_rok", "tuned"), {"explore": "ucb", "confidence": "spread"},
    ),
    "a covariance": (
        {"algorithm": "ekf_dqn", "hidden": [1], "estimator": {**OLD_KALMAN, "prior_covariance": OLD_PRIOR}},
        ("ekf_dqn", "tuned"), {"hidden": (1,), "prior_covariance": tuple(OLD_PRIOR)},
    ),
    "an environment": (
        {"algorithm": "deep_rok", "integrator": "semi-implicit", "failing_reward": -1.0, "horizon": 50,
         "nominal": "cart_mass=2", "box": "gravity=8:11", "estimator": OLD_KALMAN},
        ("deep_rok", "tuned"), {"integrator": "semi-implicit", "failing_reward": -1.0, "horizon": 50,
                        "nominal": "cart_mass=2", "box": "gravity=8:11"},
    ),
    "another environment": (
        {"algorithm": "deep_rok", "world": "ferry", "horizon": 40, "episodes": 2000, "target_period": 200,
         "epsilon_steps": 5000, "input_scale": [], "estimator": OLD_KALMAN},
        ("deep_rok", "tuned"), {"env": "ferry", "input_scale": (1.0,)},
    ),
    "unscented": (
        {"algorithm": "ktd_rtd", "hidden": [20], "batch_size": 1, "replay_size": 1,
         "estimator": {**OLD_UNSCENTED, "observation_noise": 0.1}},
        ("ktd_rtd", "tuned"), {},
    ),
    "policy": (
        {"algorithm": "epopt", "discount": 0.99, "episodes": 3000, "snapshot_every": 60, "models": 5,
         "estimator": OLD_POLICY},
        ("epopt", "tuned"), {},
    ),
    "adversary": (
        {"algorithm": "robust_pg", "discount": 0.99, "episodes": 3000, "snapshot_every": 60, "models": 5,
         "estimator": {**OLD_POLICY, "trajectory_set": "kl", "trajectory_level": 0.5, "adversary": 0.25,
                       "target": "gravity=5"}},
        ("robust_pg", "tuned"), {"target": "gravity=5"},
    ),
    "mean return": (
        {"algorithm": "pg", "discount": 0.99, "episodes": 3000, "snapshot_every": 60, "models": 5,
         "estimator": {**OLD_POLICY, "trajectory_level": 1.0, "epochs": 3}},
        ("pg", "tuned"), {"epochs": 3},
    ),
}  # fmt: skip


def old_json(**changes: Any) -> str:
    fields = {**OLD, "algorithm": "deep_rok", "estimator": OLD_KALMAN, **changes}
    return json.dumps({name: value for name, value in fields.items() if value != "drop"})


@pytest.mark.parametrize(("old", "arguments", "changes"), OLD_RUNS.values(), ids=OLD_RUNS)
def test_format_3_is_read(old: dict[str, Any], arguments: tuple[Any, ...], changes: dict[str, Any]) -> None:
    config = from_json(old_json(**old), "config.json")
    assert config == make_config(*arguments, **changes)
    assert from_json(config.to_json(), "config.json") == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fading", 0.01),
        ("variance_cap", 1.0),
        ("noise_updates", 5),
        ("observation_noise_end", 0.1),
        ("process_noise_end", 0.0),
        ("adapt_noise", 0.1),
        ("iterations", 3),
    ],
)
def test_settings_that_runs_no_longer_have_are_refused(name: str, value: Any) -> None:
    text = old_json(estimator={**OLD_KALMAN, name: value})
    with pytest.raises(DeeprokError, match=f"^here/config.json sets {name}, which runs no longer have") as error:
        from_json(text, "here/config.json")
    assert "\n" not in str(error.value)
    assert name in format3.DROPPED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (old_json(algorithm="drop"), "algorithm"),
        (old_json(algorithm="deep_rock"), "algorithm in here/config.json 'deep_rock': did you mean 'deep_rok'"),
        (old_json(algorithm="os:path"), "algorithm in here/config.json 'os:path'"),
        (old_json(algorithm=["dqn"]), "algorithm"),
        (old_json(world="drop"), "world"),
        (old_json(world="cartpol"), "'cartpol': did you mean 'cartpole'"),
        (old_json(world="os:path"), "'os:path'"),
        (old_json(world=None), "world"),
        (old_json(world={"a": 1}), "world"),
        (old_json(estimator="drop"), "here/config.json lacks .*process_noise"),
        (old_json(estimator=3), "here/config.json lacks .*process_noise"),
        (old_json(estimator={**OLD_KALMAN, "colour": 1}), "here/config.json lacks or has unknown settings: colour"),
        (old_json(discount="drop"), "here/config.json lacks or has unknown settings: discount"),
        (old_json(batch_size="drop"), "here/config.json lacks or has unknown settings: batch_size"),
        (old_json(colour=3), "here/config.json lacks or has unknown settings: colour"),
        (old_json(batch_size=0), "^batch_size is 0"),
        (old_json(input_scale=3), "^input_scale is 3"),
        (old_json(hidden=nested(400)), "^hidden is "),
        (old_json(box=3), "box"),
    ],
)
def test_bad_format_3(text: str, said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        from_json(text, "here/config.json")
    assert "\n" not in str(error.value)
