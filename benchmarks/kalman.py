"""The full-covariance Kalman step, gradients included, against a C loop, numpy with BLAS in place, and dynamax."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from harness import BenchmarkError, Measure, Prepare, Progress, Result, clock, race
from numpy.typing import NDArray

SIZES = (4, 20, 20, 2)
BATCH = 10
STEPS = 200
DYNAMAX_STEPS = 10
PROCESS_NOISE = 1e-6
OBSERVATION_NOISE = 30.0

SOURCE = Path(__file__).with_name("kalman.c")
BUILD = Path(__file__).with_name("build")

Batching = Literal["averaged", "joint"]
Floats = NDArray[np.float32]


class Problem(NamedTuple):
    """The same mini-batches for every contender."""

    theta: Floats  # [n]
    obs: Floats  # [STEPS, BATCH, 4]
    action: NDArray[np.int32]  # [STEPS, BATCH]
    label: Floats  # [STEPS, BATCH]


def make_problem() -> Problem:
    """Random mini-batches for random weights."""
    rng = np.random.default_rng(0)
    shapes = list(pairwise(SIZES))
    parts = [x for i, o in shapes for x in (rng.uniform(-1, 1, i * o) / np.sqrt(i), np.zeros(o))]
    return Problem(
        theta=np.concatenate(parts).astype(np.float32),
        obs=rng.normal(size=(STEPS, BATCH, SIZES[0])).astype(np.float32),
        action=rng.integers(0, SIZES[-1], (STEPS, BATCH)).astype(np.int32),
        label=rng.uniform(0, 10, (STEPS, BATCH)).astype(np.float32),
    )


def deeprok_filter(batching: Batching) -> tuple[Any, Any]:
    """deeprok's estimator, and `(belief, batches) -> belief`, jitted: its own update inside a scan."""
    import jax

    from deeprok.agents.network import MLP
    from deeprok.estimators import ekf

    network = MLP(SIZES, "tanh", (1.0,) * SIZES[0])
    noise = OBSERVATION_NOISE * (BATCH if batching == "joint" else 1)
    estimator = ekf(noise, PROCESS_NOISE, 1.0, batching)

    def h(theta: jax.Array, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        obs, action = x
        return network.apply(theta, obs)[action]

    def step(belief: Any, batch: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        obs, action, label = batch
        return estimator.update(belief, h, (obs, action), label)

    def scan(belief: Any, batches: tuple[jax.Array, ...]) -> Any:
        return jax.lax.scan(step, belief, batches)[0]

    return estimator, jax.jit(scan, donate_argnums=0)


def ours(batching: Batching) -> Measure:
    """deeprok, checked against the numpy filter below."""
    import jax
    import jax.numpy as jnp

    problem = make_problem()
    estimator, scan = deeprok_filter(batching)
    theta, P = problem.theta.copy(), np.eye(problem.theta.size, dtype=np.float32)
    batches = tuple(jnp.asarray(leaf) for leaf in problem[1:])
    belief = jax.block_until_ready(scan(estimator.init(jnp.asarray(theta)), batches))
    theta, P = NumpyFilter(batching).run(theta, P, problem)
    _check("numpy", theta, np.asarray(belief.theta), 1e-2)
    _check("numpy", P, np.asarray(estimator.posterior.covariance(belief)), 1e-2)

    def measure() -> float:
        nonlocal belief
        start = clock()
        belief = jax.block_until_ready(scan(belief, batches))
        return (clock() - start) / STEPS

    return measure


class NumpyFilter:
    """The same filter by numpy and BLAS: nothing of the size of P is ever allocated."""

    def __init__(self, batching: Batching) -> None:
        n = sum((i + 1) * o for i, o in pairwise(SIZES))
        self.batching = batching
        self.H = np.zeros((BATCH, n), np.float32)
        self.HP = np.zeros((BATCH, n), np.float32)

    def gradients(self, theta: Floats, obs: Floats, action: NDArray[np.int32]) -> Floats:
        """Q(s, a) of a mini-batch, its gradients written to H: backpropagation by hand."""
        units, layers, start = [obs], [], 0
        for i, o in pairwise(SIZES):
            middle, end = start + i * o, start + (i + 1) * o
            layers.append((start, middle, end, theta[start:middle].reshape(i, o)))
            units.append(units[-1] @ layers[-1][3] + theta[middle:end])
            if end < theta.size:
                np.tanh(units[-1], out=units[-1])
            start = end
        rows = np.arange(BATCH)
        values = units[-1][rows, action]
        delta = np.zeros((BATCH, SIZES[-1]), np.float32)
        delta[rows, action] = 1.0
        for (start, middle, end, weights), x in zip(layers[::-1], units[-2::-1], strict=True):
            shape = (BATCH, x.shape[1], delta.shape[1])
            np.multiply(x[:, :, None], delta[:, None, :], out=self.H[:, start:middle].reshape(shape))
            self.H[:, middle:end] = delta
            if start:
                delta = (delta @ weights.T) * (1 - x * x)
        return values

    def run(self, theta: Floats, P: Floats, problem: Problem) -> tuple[Floats, Floats]:
        """Takes all the problem's steps; P is overwritten."""
        from scipy.linalg import solve_triangular
        from scipy.linalg.blas import sgemm

        diagonal = np.einsum("ii->i", P)
        H, HP = self.H, self.HP
        identity = np.eye(BATCH, dtype=np.float32)
        for obs, action, label in zip(*problem[1:], strict=True):
            innovation = label - self.gradients(theta, obs, action)
            np.matmul(H, P, out=HP)  # the fastest of all forms of gemm and symm that were tried
            HP += np.float32(PROCESS_NOISE) * H
            if self.batching == "averaged":
                variance = np.einsum("bn,bn->b", HP, H) + np.float32(OBSERVATION_NOISE)
                theta = theta + (innovation / variance / BATCH) @ HP
                HP /= np.sqrt(BATCH * variance)[:, None]
                W = HP
            else:
                L = np.linalg.cholesky(HP @ H.T + np.float32(BATCH * OBSERVATION_NOISE) * identity)
                inverse = solve_triangular(L, identity, lower=True, check_finite=False)
                W = inverse @ HP
                theta = theta + (inverse @ innovation) @ W
            # BLAS counts columns first: of the transpose, which it can write to in place.
            sgemm(-1.0, W.T, W.T, beta=1.0, c=P.T, trans_b=1, overwrite_c=1)
            diagonal += np.float32(PROCESS_NOISE)
        return theta, P


def in_numpy(batching: Batching) -> Measure:
    """numpy."""
    problem = make_problem()
    kalman = NumpyFilter(batching)
    theta, P = kalman.run(problem.theta, np.eye(problem.theta.size, dtype=np.float32), problem)

    def measure() -> float:
        nonlocal theta, P
        start = clock()
        theta, P = kalman.run(theta, P, problem)
        return (clock() - start) / STEPS

    return measure


def in_dynamax() -> Measure:
    """dynamax's filter, the mini-batch as one emission of B dimensions; checked against ours."""
    import jax
    import jax.numpy as jnp
    from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter

    from deeprok.agents.network import MLP

    problem = Problem(*(leaf[:DYNAMAX_STEPS] if i else leaf for i, leaf in enumerate(make_problem())))
    n = problem.theta.size
    network = MLP(SIZES, "tanh", (1.0,) * SIZES[0])

    def emit(theta: jax.Array, inputs: jax.Array) -> jax.Array:
        obs, action = inputs[:, :-1], inputs[:, -1].astype(int)
        return network.apply(theta, obs)[jnp.arange(BATCH), action]

    inputs = jnp.concatenate([problem.obs, problem.action[..., None]], axis=-1)
    process = PROCESS_NOISE * jnp.eye(n)

    def run(theta: jax.Array, fields: tuple[str, ...]) -> Any:
        params = ParamsNLGSSM(
            initial_mean=theta,
            initial_covariance=jnp.eye(n) + process,  # of the first state: dynamax predicts after an update
            dynamics_function=lambda theta, inputs: theta,
            dynamics_covariance=process,
            emission_function=emit,
            emission_covariance=BATCH * OBSERVATION_NOISE * jnp.eye(BATCH),
        )
        return extended_kalman_filter(params, jnp.asarray(problem.label), inputs, output_fields=list(fields))

    # Only the means are asked for: keeping a covariance for each step would cost time.
    means = jax.jit(partial(run, fields=("filtered_means",)))
    whole = run(jnp.asarray(problem.theta), ("filtered_means", "filtered_covariances"))
    estimator, scan = deeprok_filter("joint")
    belief = scan(estimator.init(jnp.asarray(problem.theta)), tuple(jnp.asarray(leaf) for leaf in problem[1:]))
    _check("dynamax", np.asarray(whole.filtered_means[-1]), np.asarray(belief.theta), 1e-4)
    covariance = np.asarray(estimator.posterior.covariance(belief))
    _check("dynamax", np.asarray(whole.filtered_covariances[-1]), covariance, 1e-4)
    theta = jnp.asarray(problem.theta)
    _check("dynamax", np.asarray(means(theta).filtered_means[-1]), np.asarray(belief.theta), 1e-4)

    def measure() -> float:
        start = clock()
        jax.block_until_ready(means(theta).filtered_means)
        return (clock() - start) / DYNAMAX_STEPS

    return measure


def in_c() -> Measure:
    """The two passes over P in C, for given gradients; checked against numpy."""
    library = ctypes.CDLL(str(compile_c()))
    lanes: int = library.lanes()
    if library.batch() != BATCH:
        raise BenchmarkError(f"{SOURCE.name} is written for another batch than {BATCH}")
    problem = make_problem()
    kalman = NumpyFilter("averaged")
    n = problem.theta.size
    width = -(-n // (2 * lanes)) * 2 * lanes
    H = _aligned(STEPS, BATCH, width)
    for step in range(STEPS):
        kalman.gradients(problem.theta, problem.obs[step], problem.action[step])
        H[step, :, :n] = kalman.H
    P, Ht, W = _aligned(n + n % 2, width), _aligned(n, BATCH), _aligned(BATCH, width)
    P[:n, :n] = np.eye(n)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (H, P, Ht, W)]

    def steps(count: int) -> None:
        noises = ctypes.c_float(PROCESS_NOISE), ctypes.c_float(OBSERVATION_NOISE)
        library.filter(count, n, width, *noises, *pointers)

    steps(20)
    expected = np.eye(n)
    for h in H[:20, :, :n].astype(float):
        hp = h @ expected + PROCESS_NOISE * h
        w = hp / np.sqrt(BATCH * (np.sum(hp * h, axis=1) + OBSERVATION_NOISE))[:, None]
        expected += PROCESS_NOISE * np.eye(n) - w.T @ w
    _check("C", P[:n, :n], expected, 1e-4)

    def measure() -> float:
        start = clock()
        steps(STEPS)
        return (clock() - start) / STEPS

    return measure


def compile_c() -> Path:
    """Compiles `kalman.c` for this machine."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BenchmarkError("no C compiler was found; install gcc, or name one in the environment variable CC")
    BUILD.mkdir(exist_ok=True)
    library = BUILD / "libkalman.so"
    flags = ["-O3", "-march=native", "-ffast-math", "-std=gnu11", "-shared", "-fPIC"]
    command = [compiler, *flags, str(SOURCE), "-lm", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{SOURCE.name} does not compile:\n{done.stderr}")
    return library


def _aligned(*shape: int) -> Floats:
    """Zeros that start at a multiple of 64 bytes."""
    size = 4 * int(np.prod(shape))
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)


def _check(name: str, found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not error < tolerance:
        raise BenchmarkError(f"the filter in {name} differs from its reference by {error:.2g} of its size")


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    contenders: dict[str, Prepare] = {
        "C, two passes over P": in_c,
        "deeprok, averaged": partial(ours, "averaged"),
        "deeprok, joint": partial(ours, "joint"),
        "numpy, averaged": partial(in_numpy, "averaged"),
        "numpy, joint": partial(in_numpy, "joint"),
        "dynamax, joint": in_dynamax,
    }
    result = Result("Kalman step, n = 562, B = 10", race(contenders, repeats, progress))
    for batching in ("averaged", "joint"):
        mine = f"deeprok, {batching}"
        result.compare(f"{batching}: time over that of C", mine, "C, two passes over P", "<=", 4)
        result.compare(f"{batching}: times as fast as numpy", f"numpy, {batching}", mine, ">=", 1.5)
    result.compare("joint: times as fast as dynamax", "dynamax, joint", "deeprok, joint", ">=", 20)
    return result
