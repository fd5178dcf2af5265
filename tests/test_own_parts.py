"""Parts of users, named module:object: they train, resume, evaluate, export and load as built-in ones do."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import own_parts
import pytest
from test_jobs import contents

import deeprok
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.evaluation.export import json_q_values
from deeprok.runs import folder as runs
from deeprok.runs.settings import make_config
from deeprok.training.loop import progress_of
from deeprok.uncertainty import SETS, cvar

#: Short chunks and many of them, so that there is time to stop a run half way.
SMALL = (
    *("--episodes", "300", "--chunk-steps", "20", "--models", "3", "--batch-size", "4", "--warm-up", "10"),
    *("--trial-every", "50", "--trial-models", "4", "--preset", "tuned"),
)
DRIFT = ("--env", "own_parts:DRIFT")
TINY = ("--hidden", "4")

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder of its own, which is not on Python's path yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(*words: str) -> None:
    assert main(words) == 0


def stopped(words: Sequence[str], folder: Path) -> int:
    """Trains until there are metrics, then asks it to stop, as a batch system does; the exit code."""
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.02):
            if any(path.stat().st_size for path in folder.glob("seed-*/metrics.jsonl")):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # should it come too late
    watcher = threading.Thread(target=stop)
    watcher.start()
    try:
        return main(words)
    finally:
        ended.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)


def check_life(words: Sequence[str], exported: bool, capsys: pytest.CaptureFixture[str], resumed_in: int = 2) -> None:
    """A part's whole life: two seeds in two processes, stopped and resumed, then all that is done with a run.

    Args:
      words: what follows `train`.
      exported: whether its network can be exported.
      capsys: the fixture.
      resumed_in: how many processes go on with it; one shares its compiled program with the reference.
    """
    several, alone = Path("several"), Path("alone")
    assert stopped(("train", *words, "--seeds", "2", "--jobs", "2", "--out", str(several)), several) == 130
    folders = runs.find(several)
    wanted = runs.read_config(folders[0]).episodes
    assert min(progress_of(folder)[1] for folder in folders) < wanted
    run("train", "--resume", str(several), "--jobs", str(resumed_in))
    for seed, folder in enumerate(folders):
        run("train", *words, "--seed", str(seed), "--out", str(alone / folder.name))
        assert progress_of(folder)[1] >= wanted
        assert contents(folder) == contents(alone / folder.name)
    assert contents(folders[0]) != contents(folders[1])
    assert (alone / "seed-0" / runs.CONFIG).read_bytes() == (folders[0] / runs.CONFIG).read_bytes()

    capsys.readouterr()
    run("evaluate", str(several), "--episodes", "5", "--json")
    evaluation = json.loads(capsys.readouterr().out)
    assert [one["seed"] for one in evaluation["per_seed"]] == [0, 1]
    assert np.isfinite(evaluation["mean_return"]).all()

    trained, obs = deeprok.load(several), [0.1]
    action = trained.act(obs)
    assert action == np.argmax(trained.network.apply(jnp.asarray(trained.weights), jnp.asarray(obs)))
    code = main(["export", str(several), "--out", "policy.json"])
    if exported:
        policy = json.loads(Path("policy.json").read_text())
        assert (code, action) == (0, json_q_values(policy, np.array([obs]))[0].argmax())
    else:
        assert (code, Path("policy.json").exists()) == (2, False)
        said = "deeprok: the network is a Polynomial; only the built-in multilayer perceptron can be exported"
        assert capsys.readouterr().err.strip() == said


ALL = ("--network", "own_parts:POLYNOMIAL", "--robust-set", "own_parts:HAZARD", *SMALL)


@pytest.mark.slow
def test_all_kinds_together_in_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    # Two of them by way of a module that is in the current folder alone.
    Path("mine.py").write_text("from own_parts import DRIFT, SOFT_SWAG\n")
    check_life(("mine:SOFT_SWAG", "--env", "mine:DRIFT", *ALL), exported=False, capsys=capsys, resumed_in=1)


#: kind -> a training whose part of that kind alone is a user's, and whether its policy can be exported.
KINDS = {
    "environment": (("rtd_dqn", *DRIFT, *TINY, *SMALL), True),
    "plain environment": (("rtd_dqn", "--env", "own_parts:CALM", *TINY, *SMALL), True),
    "ambiguity set": (("rtd_dqn", *DRIFT, "--robust-set", "own_parts:HAZARD", *TINY, *SMALL), True),
    "target": (("own_parts:SOFT_RTD", *DRIFT, *TINY, *SMALL), True),
    "estimator": (("own_parts:RTD_SWAG", *DRIFT, *TINY, *SMALL), True),
    "network": (("deep_rok", *DRIFT, "--network", "own_parts:POLYNOMIAL", *SMALL), False),
    "learner": (("own_parts:RANKED_EVOLUTION", *DRIFT, *TINY, "--episodes", "3200"), True),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_in_two_processes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_life(*KINDS[kind], capsys)


# --- parts make a difference ---------------------------------------------------------------------------

FEW = (*DRIFT, *TINY, *SMALL, "--episodes", "12", "--trial-every", "1")


def weights(*words: str) -> np.ndarray:
    out = Path("runs-" + "-".join(words).replace(":", "-"))
    run("train", "own_parts:SOFT_SWAG", *FEW, *words, "--out", str(out))
    return deeprok.load(out, keep="last").weights


@pytest.mark.slow
def test_own_settings_and_sets_reach_the_weights_and_the_policy_is_exported() -> None:
    base = weights()
    for words in (("--averaging", "0.3"), ("--robust-set", "cvar")):
        assert not np.array_equal(weights(*words), base), words
    run("export", "runs-", "--out", "policy.json")
    obs = np.linspace(-1, 1, 9)[:, None]
    policy = json.loads(Path("policy.json").read_text())
    assert policy["env"] == "drift"
    np.testing.assert_array_equal(json_q_values(policy, obs).argmax(axis=1), deeprok.load("runs-").act(obs))
    # Its posterior serves a lower confidence bound.
    assert deeprok.evaluate("runs-", episodes=2, policy="lcb").mean_return.shape == (7,)


def test_an_own_learner_trains_and_improves() -> None:
    words = ("own_parts:RANKED_EVOLUTION", *DRIFT, *TINY, "--episodes", "800", "--seeds", "2", "--out", "evolved")
    run("train", *words, "--jobs", "1")
    for folder in runs.find(Path("evolved")):
        returns = deeprok.load(folder).metrics.returns
        assert returns[-80:].mean() > returns[:80].mean() + 0.5
    assert deeprok.load("evolved").act([0.9]) in (0, 1)


def test_a_plain_environment_has_a_horizon_to_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lost.py").write_text("from own_parts import CALM\n")
    words = ("dqn", "--env", "lost:CALM", *TINY, *SMALL, "--episodes", "5", "--horizon", "9", "--out", "calm")
    run("train", *words)
    trained = deeprok.load("calm", keep="last")
    assert (trained.env.name, trained.env.horizon, trained.settings.environment.horizon) == ("calm", 9, 9)
    assert trained.metrics.returns.max() == 9
    assert make_config("dqn", "tuned", env="own_parts:CALM").environment.horizon == own_parts.CALM.horizon
    # What it is called by must stay where it was.
    Path("lost.py").unlink()
    del sys.modules["lost"]
    capsys.readouterr()
    assert main(["evaluate", "calm"]) == 2
    said = (
        "calm/config.json: env is 'lost:CALM', but there is no module 'lost' in the current folder or on Python's path"
    )
    assert capsys.readouterr().err.strip() == f"deeprok: {said}"


def test_an_environment_may_be_a_function_of_the_horizon() -> None:
    """So that what depends on it is right for each; of an `Environment` only the horizon itself is replaced."""
    envs = {
        name: make_config("dqn", "tuned", env=f"own_parts:{name}", horizon=10).make_env() for name in ("calm", "CALM")
    }
    assert [env.horizon for env in envs.values()] == [10, 10]
    assert [env.success_return for env in envs.values()] == [9.0, 18.0]
    usual = make_config("dqn", "tuned", env="own_parts:calm").make_env()
    assert (usual.horizon, usual.success_return) == (20, 18.0)


def test_presets_of_own_parts_are_used() -> None:
    tuned = make_config("own_parts:SOFT_SWAG", "tuned", env="own_parts:DRIFT")
    assert (tuned.estimator.learning_rate, tuned.target.omega, tuned.target.robust_set) == (0.05, 8, "own_parts:HAZARD")
    assert (tuned.discount, tuned.learner.warm_up) == (0.95, 10)  # which suit the environment
    paper = make_config("own_parts:SOFT_SWAG", "paper", env="own_parts:DRIFT")  # they have none of this name
    assert (paper.estimator.learning_rate, paper.target.omega, paper.target.robust_set) == (1e-3, 5, "minimum")
    default = make_config("own_parts:SOFT_SWAG", env="own_parts:DRIFT")  # nor of this: theirs are the tuned ones then
    assert (default.estimator, default.target) == (tuned.estimator, tuned.target)
    assert (default.discount, default.learner.warm_up) == (0.995, 1000)  # and the same whatever the environment
    for config in (tuned, paper, default):  # the algorithm's own, whatever the preset
        assert (config.estimator.averaging, config.learner.batch_size) == (0.1, 4)


def test_help_lists_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "own_parts:SOFT_SWAG", *DRIFT, "--network", "own_parts:POLYNOMIAL", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for said in (
        "both of them.",
        "--averaging FLOAT Rate of the moving averages of the weights. (default: 0.1)",
        "--omega FLOAT Sharpness of the soft maximum. (default: 8.0)",
        "--width FLOAT From the middle of the lane to its edge, in metres. (default: 1.0)",
        "--degree INT Highest power of an observation. (default: 3)",
    ):
        assert said in told


def test_the_own_set_is_one() -> None:
    """It holds p alone at its nominal level, and is between the mean and the minimum at others."""
    p, values = jnp.array([0.2, 0.0, 0.5, 0.3]), jnp.array([1.0, -9.0, 0.0, 4.0])
    np.testing.assert_allclose(own_parts.hazard(p, values, 0.0).distribution, p, atol=1e-7)
    for level in (0.5, 3.0):
        value, q = SETS["own_parts:HAZARD"].worst_case(p, values, level)
        np.testing.assert_allclose(jnp.sum(q), 1.0, rtol=1e-6)
        assert q[1] == 0
        assert 0.0 < value < p @ values
        assert abs(value - cvar(p, values, 1 / (1 + level)).value) > 0.1


def test_tables_are_solved_with_the_own_set(capsys: pytest.CaptureFixture[str]) -> None:
    def values(*words: str) -> np.ndarray:
        run("solve", "machine_replacement", *words, "--json")
        return np.array(json.loads(capsys.readouterr().out)["values"])

    own = ("--set", "own_parts:HAZARD", "--radius")
    nominal = values("--objective", "nominal")
    np.testing.assert_allclose(values(*own, "0"), nominal, rtol=1e-6)
    assert (values(*own, "0.3") < nominal).all()


# --- mistakes ------------------------------------------------------------------------------------------


def said_of(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence, where nothing else is left behind."""
    before = {*Path().rglob("*")}
    assert main(["train", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert {path for path in Path().rglob("*") if "__pycache__" not in path.parts} == before
    return captured.err.strip().removeprefix("deeprok: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("dqn", "--env", "own_parts:NOTHING"),
            "env is 'own_parts:NOTHING', but the module 'own_parts' has no 'NOTHING'",
        ),
        (
            ("dqn", "--env", "own_parts:SWAG"),
            "env is 'own_parts:SWAG', but that object is of type EstimatorPart; it must be an Environment, a "
            "HostEnvironment, a gymnasium.Env class or an EnvironmentPart",
        ),
        (
            ("dqn", "--env", "own_parts:drift"),
            "env is 'own_parts:drift', but that object is a function; its one argument must be horizon, with a "
            "default, or, where it makes a gymnasium.vector.VectorEnv, num_envs",
        ),
        (
            ("rtd_dqn", "--robust-set", "own_parts:DRIFT"),
            "robust_set is 'own_parts:DRIFT', but that object is of type EnvironmentPart; it must be an AmbiguitySet",
        ),
        (
            ("dqn", "--network", "own_parts:Polynomial"),
            "network is 'own_parts:Polynomial', but that object is of type type; it must be a NetworkPart",
        ),
        (
            ("own_parts:SWAG",),
            "algorithm is 'own_parts:SWAG', but that object is of type EstimatorPart; it must be an Algorithm",
        ),
        (
            ("nowhere:ROW",),
            "algorithm is 'nowhere:ROW', but there is no module 'nowhere' in the current folder or on Python's path",
        ),
        (
            ("own_parts.inner:ROW",),
            "algorithm is 'own_parts.inner:ROW', but there is no module 'own_parts.inner' in the current folder or on "
            "Python's path",
        ),
        (
            ("needy:ROW",),
            "algorithm is 'needy:ROW', but the module 'needy' can't be imported: "
            "ModuleNotFoundError: No module named 'no_such_package'",
        ),
        (
            ("unhappy:ROW",),
            "algorithm is 'unhappy:ROW', but the module 'unhappy' can't be imported: ImportError: not today",
        ),
        *(
            (
                ("dqn", "--env", f"{module}:ENV"),
                f"env is '{module}:ENV', but the module '{module}' ends the process while it is imported (SystemExit: "
                f"{code}), as sys.exit() and argparse do; put what is for the command line under if __name__ == "
                '"__main__"',
            )
            for module, code in (("leaving", 0), ("asking", 2))
        ),
        (
            ("unclosed:ROW",),
            "algorithm is 'unclosed:ROW', but the module 'unclosed' can't be imported: "
            "SyntaxError: '(' was never closed (unclosed.py, line 1)",
        ),
        (
            ("rows:NO_TARGET",),
            "target is 'own_parts:NOTHING', but the module 'own_parts' has no 'NOTHING'",
        ),
        (
            ("rows:NO_ESTIMATOR",),
            "estimator is 'own_parts:HAZARD', but that object is of type AmbiguitySet; it must be an EstimatorPart",
        ),
        (
            ("rows:MIXED",),
            "algorithm 'rows:MIXED' has the learner own_parts:EVOLUTION and the target worst_case, which is one of "
            "q_learning",
        ),
        (("own_parts:SOFT_SWAG", "--averaging", "1.5"), "averaging is 1.5; it must be above 0 and below 1"),
        (("own_parts:SOFT_SWAG", "--averaging", "much"), "--averaging is 'much'; it must be a number"),
        (
            ("own_parts:SOFT_SWAG", "--averagign", "0.2"),
            "unknown option '--averagign': did you mean '--averaging'? 'deeprok train own_parts:SOFT_SWAG --help' "
            "lists them all",
        ),
        (
            ("dqn", *DRIFT, "--widht", "2"),
            "unknown option '--widht': did you mean '--width'? 'deeprok train dqn --help' lists them all",
        ),
        (("own_parts:SOFT_SWAG", "--omega", "0"), "omega is 0.0; it must be a positive number"),
        (
            ("own_parts:SOFT_SWAG", "--robust-level=-1"),
            "robust_level is -1; for the set hazard it must be a radius of at least 0",
        ),
        (
            ("own_parts:SOFT_SWAG", *FEW, "--confidence", "spread"),
            "confidence is 'spread', but the estimator has no health.gain; use 'time' instead",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_leave_nothing(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("needy.py").write_text("import no_such_package\n")
    Path("unhappy.py").write_text("raise ImportError('not today')\n")
    Path("leaving.py").write_text("import sys\nsys.exit(0)\n")
    Path("asking.py").write_text("raise SystemExit(2)  # as argparse does\n")
    Path("unclosed.py").write_text("ROW = (\n")
    Path("rows.py").write_text(
        "from deeprok.agents.algorithms import Algorithm\n"
        "NO_TARGET = Algorithm('', target='own_parts:NOTHING')\n"
        "NO_ESTIMATOR = Algorithm('', target='nominal', estimator='own_parts:HAZARD')\n"
        "MIXED = Algorithm('', target='worst_case', learner='own_parts:EVOLUTION')\n"
    )
    assert said_of((*words, "--out", "out"), capsys) == said


@pytest.mark.parametrize("name", [7, None, ["own_parts:DRIFT"], {}])
def test_names_are_text(name: Any) -> None:
    with pytest.raises(DeeprokError, match="it must be a name, or module:object"):
        make_config("dqn", "tuned", env=name)
    with pytest.raises(DeeprokError, match="it must be a name, or module:object"):
        make_config("rtd_dqn", "tuned", robust_set=name)


def test_a_part_that_was_changed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook that reloads its module."""
    assert make_config("rtd_dqn", "tuned", env="own_parts:CALM").make_env().name == "calm"
    monkeypatch.setattr(own_parts, "CALM", own_parts.CALM._replace(name="changed"))
    assert make_config("rtd_dqn", "tuned", env="own_parts:CALM").make_env().name == "changed"
