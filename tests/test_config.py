from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from deeprok.agents.policy.settings import PolicyConfig
from deeprok.core.errors import DeeprokError
from deeprok.estimators import BackpropConfig, GradientConfig, KalmanConfig, LangevinConfig, UnscentedConfig
from deeprok.runs.settings import ALGORITHMS, FORMAT, PARTS, PRESETS, Config, from_json, make_config

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@every_algorithm
@pytest.mark.parametrize("preset", PRESETS)
def test_json_round_trip(algorithm: str, preset: str) -> None:
    config = make_config(algorithm, preset, seed=3, hidden=(7, 5, 3), box="gravity=1:20", discount=0.5)
    assert from_json(config.to_json(), "config.json") == config


@pytest.mark.parametrize("prior", [2.0, (1.0, 2.0), ((2.0, 0.5), (0.5, 1.0))])
def test_prior_survives_json(prior: Any) -> None:
    n = make_config("deep_rok", hidden=(1,)).make_network(make_config("deep_rok").make_world()).num_weights
    if isinstance(prior, tuple):
        block = np.asarray(prior)
        full = np.eye(n) if block.ndim == 2 else np.ones(n)
        full[tuple(slice(2) for _ in block.shape)] = block
        prior = tuple(map(tuple, full.tolist())) if block.ndim == 2 else tuple(full.tolist())
    config = make_config("deep_rok", hidden=(1,), prior_covariance=prior)
    assert from_json(config.to_json(), "config.json") == config


@pytest.mark.parametrize("algorithm", [name for name, row in ALGORITHMS.items() if row.estimator != "policy"])
def test_preset_paper(algorithm: str) -> None:
    config = make_config(algorithm, "paper")
    world = config.make_world()
    assert config.make_network(world).num_weights == (142 if config.online else 562)
    assert config.make_network(world).sizes == ((4, 20, 2) if config.online else (4, 20, 20, 2))
    assert config.activation == "tanh"
    assert (config.discount, config.episodes, config.horizon) == (0.9, 700, 200)
    assert config.batch_size == (1 if config.online else 10)
    assert (config.models, config.draw, config.robust_set) == (5, "pairs", "minimum")
    assert config.make_box(world) == {"pole_length": (0.2, 1.4), "cart_mass": (0.1, 7.0)}
    assert config.failing_reward == 0.0
    if ALGORITHMS[algorithm].estimator == "gradient":
        assert config.estimator == GradientConfig(learning_rate=1e-3, optimizer="adam")
    if ALGORITHMS[algorithm].estimator == "kalman":
        assert config.estimator == KalmanConfig(
            observation_noise=0.001, process_noise=0.01, prior_covariance=1.0, batching="averaged", learning_rate=1.0
        )


def test_tuned_shares_all_but_the_estimators() -> None:
    own = {"algorithm", "estimator", "double", "acting"}
    replay = {"batch_size", "hidden", "replay_size"}  # on line there is none, and every weight is dear
    learners = {name: row for name, row in ALGORITHMS.items() if row.estimator != "policy"}
    configs = [dataclasses.asdict(make_config(algorithm, "tuned")) for algorithm in learners]
    shared = [{k: v for k, v in config.items() if k not in own | replay} for config in configs]
    assert all(config == shared[0] for config in shared)
    sizes = {a: tuple(c[name] for name in sorted(replay)) for a, c in zip(learners, configs, strict=True)}
    online = {"ktd_q", "ktd_rtd"}
    assert all(size == ((1, (20,), 1) if a in online else (10, (20, 20), 150_000)) for a, size in sizes.items())
    for kind in PARTS:
        of_kind = [c["estimator"] for c, a in zip(configs, learners.values(), strict=True) if a.estimator == kind]
        if kind == "unscented":  # the robust twin has a noise of its own
            assert [estimator.pop("observation_noise") for estimator in of_kind] == [0.01, 0.1]
        assert all(estimator == of_kind[0] for estimator in of_kind)


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_differ_as_the_table_says(preset: str) -> None:
    rows = {a: make_config(a, preset) for a in ALGORITHMS}
    assert {a for a, c in rows.items() if c.double} == {"ddqn", "ddqn_dr"}
    robust = {"rtd_dqn", "deep_rok", "bbb_rtd", "psgld_rtd", "ktd_rtd", "epopt", "robust_pg"}
    assert {a for a, c in rows.items() if c.row.robust} == robust
    kinds = {
        GradientConfig: {"dqn", "ddqn", "ddqn_dr", "rtd_dqn"},
        KalmanConfig: {"ekf_dqn", "deep_rok"},
        BackpropConfig: {"bbb_dqn", "bbb_rtd"},
        LangevinConfig: {"psgld_dqn", "psgld_rtd"},
        UnscentedConfig: {"ktd_q", "ktd_rtd"},
        PolicyConfig: {"pg", "epopt", "robust_pg"},
    }
    for kind, names in kinds.items():
        assert {a for a, c in rows.items() if isinstance(c.estimator, kind)} == names
    assert (rows["ddqn"].acting, rows["ddqn_dr"].acting) == ("nominal", "sampled")


def test_changes_reach_the_settings_and_the_estimator() -> None:
    config = make_config("deep_rok", batch_size=3, process_noise=0.5, batching="joint")
    assert config.batch_size == 3
    assert isinstance(config.estimator, KalmanConfig)
    assert (config.estimator.process_noise, config.estimator.batching) == (0.5, "joint")


def test_made_from_settings() -> None:
    config = make_config("rtd_dqn", nominal="cart_mass=2,gravity=5", horizon=50, draw="product", models=3)
    world = config.make_world()
    assert (float(world.nominal.cart_mass), float(world.nominal.gravity)) == (2.0, 5.0)
    assert float(world.nominal.pole_length) == 0.5
    assert world.horizon == 50
    assert config.make_models(world).size == 9
    fixed = make_config("rtd_dqn", fixed_models="pole_length=1;pole_length=2:3:4")
    assert fixed.make_models(world).size == 5


NAN, INF = float("nan"), float("inf")
NUMBERS: dict[str, list[Any]] = {
    "seed": [-1, 2**32, 0.5, "1", True],
    "episodes": [0, -3, 1.5, NAN, INF, None, "7"],
    "failing_reward": [NAN, INF, "0"],
    "horizon": [0, 2.5],
    "models": [0, 2.5],
    "discount": [1.0, -0.1, NAN, 2],
    "batch_size": [0, 1.5],
    "replay_size": [0],
    "warm_up": [-1, 0.5],
    "train_every": [0],
    "target_period": [0],
    "epsilon_start": [1.1, -0.1, NAN],
    "epsilon_end": [2],
    "epsilon_steps": [-1],
    "chunk_steps": [0],
    "snapshot_every": [-1],
    "trial_every": [0],
    "trial_models": [0],
    "trial_epsilon": [1.5],
    "learning_rate": [0.0, -1.0, NAN],
    "observation_noise": [0.0, -1.0, INF],
    "process_noise": [-1e-9, NAN],
    "prior_covariance": [0.0, -1.0, NAN, INF],
    "rank": [0, 2.5],
    "fading": [1.0, -0.1, NAN],
    "variance_cap": [0.0, -1.0, INF],
    "noise_updates": [-1, 0.5],
    "observation_noise_end": [0.0, NAN],
    "process_noise_end": [0.0, -1.0],
    "adapt_noise": [1.5, -0.1],
    "iterations": [0, 1.5],
    "robust_level": [NAN, INF],
    "level_start": [NAN],
    "level_steps": [0],
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
    "adversary": [-0.1, 1.5],
    "source_spread": [-1.0],
    "adapt_every": [0],
    "target_trajectories": [0],
    "particles": [9],
    "target_noise": [0.0],
}

#: An algorithm for each record of settings, whose fields that are numbers follow.
RECORDS: dict[str, Any] = {next(a for a, row in ALGORITHMS.items() if row.estimator == kind): part.settings
                           for kind, part in PARTS.items()}  # fmt: skip
FIELDS = [("deep_rok", f.name) for f in dataclasses.fields(Config) if type(f.default) in (int, float)]
FIELDS += [
    (algorithm, f.name)
    for algorithm, record in RECORDS.items()
    for f in dataclasses.fields(record)
    if type(f.default) in (int, float) or f.default is None
]


@pytest.mark.parametrize(("algorithm", "field", "value"), [(a, f, v) for a, f in FIELDS for v in NUMBERS[f]])
def test_bad_numbers_are_named(algorithm: str, field: str, value: Any) -> None:
    with pytest.raises(DeeprokError, match=rf"^{field} is {value!r}") as error:
        make_config(algorithm, **{field: value})
    assert "must be" in str(error.value)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e39, -1e39, 10**39, 10**400, 2**40 + 0.5, "1", True, [1.0], {}])
def test_no_number_of_any_record_is_without_bounds(value: Any) -> None:
    assert set(RECORDS.values()) == {part.settings for part in PARTS.values()}
    for algorithm, field in FIELDS:
        if value == 2**40 + 0.5 and type(getattr(Config, field, None)) is not int:
            continue  # a large number, but no count
        with pytest.raises(DeeprokError, match=rf"^{field} (is|has) "):
            make_config(algorithm, **{field: value})


IN_PRECISION: dict[str, tuple[str, dict[str, Any]]] = {
    "a number": ("deep_rok", {"prior_covariance": 1e39}),
    "a vector": ("deep_rok", {"hidden": (1,), "process_noise": (1e39,) * 9}),
    "a matrix": ("deep_rok", {"hidden": (1,), "prior_covariance": tuple(map(tuple, (1e39 * np.eye(9)).tolist()))}),
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
    network = make_config("deep_rok", hidden=(7, 5)).make_network(make_config("deep_rok").make_world())
    blocks = {"full": (slice(0, network.num_weights),), "layer": network.slices, "neuron": network.neurons}[covariance]
    squares = sum(len(range(network.num_weights)[block]) ** 2 for block in blocks)
    settings = KalmanConfig(covariance=covariance)  # type: ignore[arg-type]
    assert PARTS["kalman"].memory(settings, network).numbers == squares + 4 * network.num_weights


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world": "cartpol"}, "world 'cartpol': did you mean 'cartpole'"),
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
        ({"confidence": "times"}, "confidence 'times': did you mean 'time'"),
        ({"precision": "float16"}, "precision 'float16'.*float32"),
        (
            {"covariance": "diagonal", "hidden": (1,), "prior_covariance": np.eye(9).tolist()},
            "prior_covariance is a matrix",
        ),
        ({"covariance": "low_rank", "hidden": (1,), "process_noise": np.eye(9).tolist()}, "process_noise is a matrix"),
        ({"hidden": (1,), "process_noise": (-np.eye(9)).tolist()}, "process_noise is not positive semidefinite"),
        ({"hidden": (2000, 2000)}, "covariance full of 4016002 weights would take .* GB"),
        ({"noise_updates": 10}, "noise_updates is 10.*observation_noise_end"),
        ({"observation_noise_end": 0.1}, "noise_updates is 0.*observation_noise_end"),
        (
            {"process_noise": 0.0, "process_noise_end": 0.1, "noise_updates": 5},
            "process_noise must be a positive number",
        ),
        ({"confidence": "time", "level_start": 2.0}, "level_start is 2"),
        ({"box": 3}, "box.*3"),
        ({"box": "pole_lenght=1:2"}, "did you mean 'pole_length'"),
        ({"box": "pole_length=2:1"}, "box.*reversed"),
        ({"box": "cart_mass=0:1"}, "cart_mass the value 0"),
        ({"nominal": "cart_mass=-1"}, "nominal gives cart_mass the value -1"),
        ({"fixed_models": "cart_mass"}, "fixed_models: 'cart_mass' can't be read"),
        ({"train_every": 4, "chunk_steps": 3}, "chunk_steps is 3"),
        ({"estimator": GradientConfig()}, "estimator"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeeprokError, match=said) as error:
        make_config("deep_rok", **changes)
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
        make_config("deep_rok", hidden=(1,), prior_covariance=prior)


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


def edited(**changes: Any) -> str:
    fields = {**json.loads(make_config("deep_rok").to_json()), **changes}
    return json.dumps({name: value for name, value in fields.items() if value != "drop"})


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
        (edited(format=FORMAT - 1), f"format {FORMAT - 1}.*format {FORMAT}"),
        (edited(format="drop"), "format None"),
        (edited(algorithm="deep_rock"), "did you mean 'deep_rok'"),
        (edited(algorithm="drop"), "algorithm"),
        (edited(algorithm=["dqn"]), "algorithm"),
        (edited(colour="blue"), "colour"),
        (edited(discount="drop"), "discount"),
        (edited(estimator="drop"), "lacks"),
        (edited(estimator={"learning_rate": 1.0}), "process_noise"),
        (edited(estimator=[1]), "lacks"),
        (edited(discount=3), "discount is 3"),
        (edited(hidden=nested(400)), "hidden is "),
        (edited(box="x" * 10_000), "box: 'x{53}…x{26}' can't be read"),
        (edited(batch_size=2.5), "batch_size is 2.5"),
        (edited(algorithm="dqn"), "optimizer"),
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
    "world": "another",
    "integrator": "semi-implicit",
    "nominal": "gravity=5",
    "box": "gravity=1:2",
    "draw": "product",
    "fixed_models": "gravity=1",
    "acting": "member",
    "robust_set": "minimum",
    "double": True,
    "hidden": (3,),
    "activation": "relu",
    "input_scale": (1.0, 1.0, 1.0, 2.0),
    "estimator": KalmanConfig(process_noise=0.3),
    "confidence": "time",
    "prior": "another",
    "precision": "float64",
    "explore": "ucb",
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Config)])
def test_digest_is_of_everything_but_the_seed(field: str) -> None:
    config = make_config("deep_rok")
    changed = dataclasses.replace(config, **{field: OTHER.get(field, getattr(config, field))})
    if field not in OTHER:
        changed = dataclasses.replace(config, **{field: getattr(config, field) + 1})
    assert changed != config
    assert (changed.digest() == config.digest()) == (field == "seed")


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(KalmanConfig)])
def test_digest_is_of_every_estimator_setting(field: str) -> None:
    config = make_config("deep_rok")
    new = {"batching": "joint", "covariance": "layer", "rank": 3, "noise_updates": 3, "iterations": 3}.get(field, 0.123)
    changed = dataclasses.replace(config, estimator=dataclasses.replace(config.estimator, **{field: new}))
    assert changed.digest() != config.digest()


RISKS: dict[str, tuple[dict[str, Any], bool]] = {
    "tuned": ({}, False),
    "paper": ({"preset": "paper"}, False),
    "tiny noise": ({"observation_noise": 1e-12, "process_noise": 0.0, "prior_covariance": 1.0}, True),
    "tiny noise in float64": (
        {"observation_noise": 1e-8, "process_noise": 0.0, "prior_covariance": 1.0, "precision": "float64"}, False
    ),
    "the same in float32": ({"observation_noise": 1e-8, "process_noise": 0.0, "prior_covariance": 1.0}, True),
    "diagonal": ({"observation_noise": 1e-12, "process_noise": 0.0, "covariance": "diagonal"}, False),
    "noise that falls": ({"observation_noise_end": 1e-9, "noise_updates": 10, "process_noise": 0.0}, True),
    "gradient": ({"algorithm": "rtd_dqn"}, False),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "risky"), RISKS.values(), ids=RISKS)
def test_unsafe_settings_are_warned_of(changes: dict[str, Any], risky: bool) -> None:
    config = make_config(**{"algorithm": "deep_rok", **changes})
    warning = config.warning()
    assert (warning is not None) == risky
    if warning:
        assert "--precision float64" in warning
        assert f"{changes.get('observation_noise_end', changes.get('observation_noise')):g}" in warning
