"""What the tests share: hypothesis settings, double precision, and a small trainer."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

# Programs of the tests run for a moment; compiled with the least effort they are ready in a quarter of the time.
if "--xla_backend_optimization_level" not in (given := os.environ.get("XLA_FLAGS", "")):
    least = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {least} {given}"
# The processes that tests start share what one of them has compiled, for as long as the tests run. This process does
# not: it compiles little twice, and writing takes a tenth of its time.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="deeprok-tests-")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
# Where no bytecode is to be written each of them would compile the source of JAX first, which takes longer than the
# rest of its start; so it is written where it goes with the tests.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = tempfile.mkdtemp(prefix="deeprok-bytecode-")
    sys.dont_write_bytecode = False
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
os.environ["DEEPROK_CACHE"] = "off"  # tests leave the user's own cache alone

import jax
import jax.numpy as jnp
import numpy as np
import probe_envs
import pytest
from hypothesis import settings

from deeprok.environments import ENVIRONMENTS
from deeprok.runs.settings import Config
from deeprok.training import loop
from deeprok.training.scan import Program, RunState, make_program

if "deeprok-tests-" in os.environ["JAX_COMPILATION_CACHE_DIR"]:
    jax.config.update("jax_enable_compilation_cache", False)
# What is compiled is kept for all tests, and is no garbage: it need not be looked through again and again.
gc.freeze()
gc.set_threshold(100_000, 20, 100)

settings.register_profile("deeprok", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("deeprok")


#: The files that take longest, begun first so that the workers end together.
LONGEST = (
    *("tutorials", "training_scan", "trainer", "actor_critic", "host", "gymnasium", "jobs", "posterior", "cli"),
    *(
        "settings",
        "start_up",
        "own_parts",
        "agents",
        "memory",
        "tabular_srect",
        "load",
        "policy",
        "evaluation",
        "balls",
    ),
    *("tabular_solve", "wheel", "wiring", "processors", "estimators", "covariance", "ktd", "kalman_numerics"),
    *("damaged_files", "correction", "bootstrap", "policy_critic", "defaults_study", "robustness_study"),
    *("filters_study", "experiments", "uncertainty", "calibration", "scaling", "policy_steps"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {f"test_{name}.py": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision within one test."""
    with jax.enable_x64(True):
        yield


class Trained(NamedTuple):
    """A run after each of its chunks, as numpy arrays with a first axis of seeds."""

    history: list[RunState]
    logs: list[Any]

    @property
    def last(self) -> RunState:
        return self.history[-1]

    @property
    def theta(self) -> np.ndarray:
        return self.last.agent.belief.theta


class Built(NamedTuple):
    program: Program
    start: Callable[[jax.Array], RunState]


@functools.cache
def _build(config: Config) -> Built:
    program = make_program(config)
    return Built(program, jax.jit(lambda seeds: jax.vmap(program.init)(jax.vmap(jax.random.key)(seeds))))


@pytest.fixture(scope="session")
def build() -> Callable[[Config], Built]:
    """Programs, each built (and so compiled) once."""
    return _build


@pytest.fixture(scope="session")
def train() -> Callable[..., Trained]:
    """`train(config, seeds=(0,), chunks=1)` -> `Trained`."""

    def train(config: Config, seeds: Sequence[int] = (0,), chunks: int = 1) -> Trained:
        built = _build(config)
        states = built.start(jnp.asarray(seeds))
        history, logs = [], []
        for chunk in range(chunks):
            states, log = built.program.advance(states, chunk)
            # Copied, since the next chunk may write over the buffers it is given.
            history.append(jax.tree.map(np.array, states))
            logs.append(jax.tree.map(np.array, log))
        return Trained(history, logs)

    return train


@pytest.fixture(scope="module")
def compiled_once() -> Iterator[None]:
    """Trainings of a module whose settings differ by their seed only share compiled functions."""
    make_program, make_trial, make_spread = loop.make_program, loop.make_trial, loop.make_spread
    program = functools.cache(make_program)
    trial = functools.cache(lambda config, trials: make_trial(config, program(config), trials))
    spreads: dict[int, Any] = {}  # by the learner, which is kept

    def without_seed(config: Config) -> Config:
        return dataclasses.replace(config, seed=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "make_program", lambda config: program(without_seed(config)))
        patch.setattr(loop, "make_trial", lambda config, _, trials: trial(without_seed(config), trials))
        patch.setattr(loop, "make_spread", lambda made: spreads.setdefault(id(made), make_spread(made)))
        yield


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the probe environments known by name."""
    for name, part in probe_envs.PROBES.items():
        monkeypatch.setitem(ENVIRONMENTS._entries, name, part)
