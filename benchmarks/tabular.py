"""Robust dynamic programming against numpy, and against linear and convex programs of scipy.

craam2 (C++) is quoted, not measured: 140 ms a sweep and 0.75 s for its partial policy iteration on such a
dense problem, 0.36 s to read it in.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from functools import partial

import numpy as np
from harness import BenchmarkError, Measure, Progress, Ratio, Result, clock, race

STATES, ACTIONS, RADIUS, DISCOUNT, TOL = 1000, 10, 0.2, 0.9, 1e-6
SHARED_ACTIONS, OUTCOMES = 100, 100
BUDGET = {"l1": 1.0, "kl": 1.0}
MILLION = 1_000_000

CRAAM_SWEEP, CRAAM_SOLUTION, CRAAM_READING = 0.140, 0.75, 0.36

#: Budgets of whole solutions whose actions share one.
SHARED_STATES = 200
SHARED = {"kl": 0.1, "l1": 0.2, "chi2": 0.1, "burg": 0.1, "linf": 0.02, "l2": 0.1, "contamination": 0.1}


def dense_model() -> tuple[np.ndarray, np.ndarray]:
    """Rows [S, A, S] without zeros, and rewards [S, A]."""
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.ones(STATES), (STATES, ACTIONS)), rng.random((STATES, ACTIONS))


def numpy_sweep(p: np.ndarray, reward: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One sweep by sorting: rows [S·A, S] in the order of the values, mass taken from the best."""
    order = np.argsort(-values)
    best_first, ordered = values[order], np.take(p, order, axis=1)
    taken = np.cumsum(ordered, axis=1)
    np.subtract(RADIUS / 2 + ordered, taken, out=taken)  # what is left to take at each
    np.clip(taken, 0, ordered, out=taken)
    worst = p @ values - taken @ best_first + RADIUS / 2 * best_first[-1]
    return (reward.reshape(-1) + DISCOUNT * worst).reshape(STATES, ACTIONS).max(1)


def row_program(p: np.ndarray, values: np.ndarray) -> float:
    """The worst case of one row as a linear program in what is added and what is taken away."""
    from scipy.optimize import linprog

    n = len(p)
    solved = linprog(
        np.concatenate([values, -values]),
        A_ub=np.ones((1, 2 * n)),
        b_ub=[RADIUS],
        A_eq=np.concatenate([np.ones(n), -np.ones(n)])[None],
        b_eq=[0.0],
        bounds=np.concatenate([np.tile([0, np.inf], (n, 1)), np.stack([np.zeros(n), p], 1)]),
        method="highs",
    )
    return float(p @ values + solved.fun)


def our_sweeps() -> Measure:
    """Value iteration, checked against numpy; seconds a sweep."""
    import jax
    import jax.numpy as jnp

    from deeprok.tabular import from_arrays
    from deeprok.tabular.setting import make_game
    from deeprok.tabular.solvers import iterate_values

    p, reward = dense_model()
    with jax.enable_x64(True):
        game = make_game(from_arrays(p, reward), False, set="l1", radius=RADIUS, discount=DISCOUNT)
        zeros, some = jnp.zeros(STATES), jnp.asarray(np.random.default_rng(1).random(STATES))
        found = iterate_values(game.operator, DISCOUNT, None, some, 0.0, limit=1).backup.values
    _check(np.asarray(found), numpy_sweep(p.reshape(-1, STATES), reward, np.asarray(some)))

    def measure() -> float:
        with jax.enable_x64(True):
            began = clock()
            sweeps = int(iterate_values(game.operator, DISCOUNT, None, zeros, 0.0, limit=5).backups)
            return (clock() - began) / sweeps

    return measure


def their_sweeps() -> Measure:
    """numpy; seconds a sweep."""
    p, reward = dense_model()
    rows, values = p.reshape(-1, STATES), np.random.default_rng(1).random(STATES)

    def measure() -> float:
        began = clock()
        numpy_sweep(rows, reward, values)
        return clock() - began

    return measure


def programs() -> Measure:
    """A linear program a row, of which a few are solved; seconds a sweep."""
    p, _ = dense_model()
    values = np.random.default_rng(1).random(STATES)
    rows = iter(p.reshape(-1, STATES))

    def measure() -> float:
        began = clock()
        row_program(next(rows), values)
        return (clock() - began) * STATES * ACTIONS

    return measure


def our_solution(method: str) -> Measure:
    """A whole solution, with the problem laid out anew; seconds."""
    from deeprok.tabular import from_arrays, solve

    problem = from_arrays(*dense_model())
    settings = dict(set="l1", radius=RADIUS, discount=DISCOUNT, tol=TOL, method=method)
    if not solve(problem, **settings).error_bound <= TOL:
        raise BenchmarkError("the solution is not exact enough")

    def measure() -> float:
        began = clock()
        solve(problem, **settings)
        return clock() - began

    return measure


def reading() -> Measure:
    """A dense model from its arrays; seconds."""
    from deeprok.tabular import from_arrays

    p, reward = dense_model()
    from_arrays(p, reward)

    def measure() -> float:
        began = clock()
        from_arrays(p, reward)
        return clock() - began

    return measure


def shared_solution(name: str) -> Measure:
    """A whole solution whose actions share a budget, its policy certified; seconds."""
    from deeprok.tabular import from_arrays, solve

    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(SHARED_STATES), (SHARED_STATES, ACTIONS))
    problem = from_arrays(p, rng.random((SHARED_STATES, ACTIONS)))
    settings = dict(set=name, radius=SHARED[name], discount=DISCOUNT, tol=TOL, rect="s")
    if not solve(problem, **settings).error_bound <= 2 * TOL:
        raise BenchmarkError("the solution is not exact enough")

    def measure() -> float:
        began = clock()
        solve(problem, **settings)
        return clock() - began

    return measure


# --- one state whose actions share a budget ------------------------------------------------------------


def shared_problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.ones(OUTCOMES), SHARED_ACTIONS), rng.random((SHARED_ACTIONS, OUTCOMES))


def our_backup(name: str) -> Measure:
    """Checked against scipy; seconds a backup."""
    import jax
    import jax.numpy as jnp

    from deeprok.uncertainty import SETS

    p, values = shared_problem()
    with jax.enable_x64(True):
        arguments = (*map(jnp.asarray, (p, values)), jnp.ones(len(p), bool), jnp.asarray(BUDGET[name]))
        backup = jax.jit(SETS[name].shared.best_policy)
        found = float(backup(*arguments).value)
    _check(found, shared_l1_program(p, values) if name == "l1" else shared_kl_dual(p, values))

    def measure() -> float:
        with jax.enable_x64(True):
            began = clock()
            for _ in range(20):
                jax.block_until_ready(backup(*arguments))
            return (clock() - began) / 20

    return measure


def shared_l1_program(p: np.ndarray, values: np.ndarray) -> float:
    """min u such that no action exceeds it: a sparse linear program in u, the rows, and their distances."""
    from scipy import sparse
    from scipy.optimize import linprog

    n, one = p.size, sparse.eye(p.size)
    each = sparse.kron(sparse.eye(len(p)), np.ones((1, p.shape[1])))
    expectations = sparse.block_diag(values[:, None, :])
    above = [[-np.ones((len(p), 1)), expectations, None], [None, one, -one], [None, -one, -one]]
    above.append([None, None, np.ones((1, n))])
    equal = sparse.hstack([sparse.csr_array((len(p), 1)), each, sparse.csr_array((len(p), n))])
    solved = linprog(
        np.concatenate([[1.0], np.zeros(2 * n)]),
        sparse.block_array(above, format="csc"),
        np.concatenate([np.zeros(len(p)), p.reshape(-1), -p.reshape(-1), [BUDGET["l1"]]]),
        equal.tocsc(),
        np.ones(len(p)),
        [(None, None)] + [(0, None)] * (2 * n),
        method="highs",
    )
    return float(solved.fun)


def shared_kl_program(p: np.ndarray, values: np.ndarray) -> float:
    """min u such that no action exceeds it, in u and the rows, by the method of scipy for sparse problems.

    It is stopped after 500 iterations, and is then still far from the optimum: its time is a lower bound.
    """
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, minimize

    n, flat = p.size, p.reshape(-1)
    each = sparse.kron(sparse.eye(len(p)), np.ones((1, p.shape[1])))
    rows = sparse.hstack([sparse.csr_array((len(p), 1)), each]).tocsr()
    expectations = sparse.hstack([-np.ones((len(p), 1)), sparse.block_diag(values[:, None, :])]).tocsr()

    def logs(x: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(x[1:], 1e-300) / flat)

    entropy = NonlinearConstraint(
        lambda x: np.sum(x[1:] * logs(x)),
        -np.inf,
        BUDGET["kl"],
        jac=lambda x: sparse.csr_array(np.concatenate([[0.0], logs(x) + 1])[None]),
        hess=lambda x, v: sparse.diags(v[0] * np.concatenate([[0.0], 1 / np.maximum(x[1:], 1e-12)])),
    )
    solved = minimize(
        lambda x: x[0],
        np.concatenate([[np.sum(p * values, axis=1).max()], flat]),
        jac=lambda x: np.eye(1, n + 1)[0],
        hess=lambda x: sparse.csr_array((n + 1, n + 1)),
        method="trust-constr",
        bounds=Bounds(np.concatenate([[-np.inf], np.zeros(n)]), np.inf),
        constraints=[LinearConstraint(rows, 1, 1), LinearConstraint(expectations, -np.inf, 0), entropy],
        options={"sparse_jacobian": True, "gtol": 1e-6, "xtol": 1e-9, "maxiter": 500},
    )
    return float(solved.fun)


def shared_kl_dual(p: np.ndarray, values: np.ndarray) -> float:
    """Its dual, with pen and paper: a concave program in the policy and the price of the budget alone."""
    from scipy.optimize import minimize

    least = values.min(1)
    above = values - least[:, None]

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        policy, price = x[:-1], x[-1]
        tilted = p * np.exp(-policy[:, None] * above / price)
        mass = tilted.sum(1)
        logs, mean = np.log(mass).sum(), (tilted * above).sum(1) / mass
        gradient = np.concatenate([-mean - least, [BUDGET["kl"] + logs + policy @ mean / price]])
        return price * (BUDGET["kl"] + logs) - policy @ least, gradient

    total = {"type": "eq", "fun": lambda x: x[:-1].sum() - 1, "jac": lambda x: np.append(np.ones(len(p)), 0.0)}
    solved = minimize(
        negative,
        np.append(np.full(len(p), 1 / len(p)), 1.0),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * len(p) + [(1e-4, None)],
        constraints=total,
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return -float(solved.fun)


def their_backup(name: str) -> Measure:
    """scipy; seconds a backup."""
    p, values = shared_problem()
    program = {"l1": shared_l1_program, "kl": shared_kl_program, "kl dual": shared_kl_dual}[name]

    def measure() -> float:
        began = clock()
        program(p, values)
        return clock() - began

    return measure


# --- a million states ----------------------------------------------------------------------------------


def solve_million() -> None:
    """Prints seconds, the peak of memory in GiB, reports of progress and the error bound, as JSON."""
    from deeprok.tabular import from_successors, solve

    rng = np.random.default_rng(0)
    p = rng.random((MILLION, 2, 1))
    successor = rng.integers(0, MILLION, (MILLION, 2, 2))
    problem = from_successors(successor, np.concatenate([p, 1 - p], 2), rng.random((MILLION, 2)))
    del p, successor
    reports: list[float] = []
    began = time.process_time()
    solution = solve(problem, "l1", RADIUS, 0.99, tol=TOL, advance=reports.append)
    print(
        json.dumps(
            {
                "transitions": len(problem.reward),
                "seconds": time.process_time() - began,
                "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "reports": len(reports),
                "error_bound": solution.error_bound,
                "iterations": solution.iterations,
            }
        )
    )


def _check(found: np.ndarray | float, expected: np.ndarray | float) -> None:
    if not np.allclose(found, expected, atol=1e-7):
        raise BenchmarkError("results disagree")


def run(repeats: int, progress: Progress) -> Result:
    """Measures."""
    size = f"S = {STATES}, A = {ACTIONS}, dense"
    ours, numpys, lps = f"L1 sweep, {size}: deeprok", f"L1 sweep, {size}: numpy", f"L1 sweep, {size}: an LP a row"
    ppi, vi = (f"L1 solution to {TOL:g}, {size}: deeprok, {method}" for method in ("ppi", "vi"))
    read = f"reading, {size}: deeprok"
    contenders = {
        ours: our_sweeps,
        numpys: their_sweeps,
        lps: programs,
        ppi: partial(our_solution, "ppi"),
        vi: partial(our_solution, "vi"),
        read: reading,
    }
    mixed = {name: f"s-rectangular solution to {TOL:g}, S = {SHARED_STATES}, A = {ACTIONS}: {name}" for name in SHARED}
    contenders |= {label: partial(shared_solution, name) for name, label in mixed.items()}
    backup = f"s-rectangular backup, {SHARED_ACTIONS} × {OUTCOMES}"
    for name in BUDGET:
        contenders[f"{name} {backup}: deeprok"] = partial(our_backup, name)
    contenders[f"l1 {backup}: HiGHS"] = partial(their_backup, "l1")
    contenders[f"kl {backup}: SLSQP on the dual"] = partial(their_backup, "kl dual")
    times = race(contenders, repeats, progress)
    progress("the convex program, once, for a minute")
    primal = f"kl {backup}: trust-constr, 500 iterations"
    times |= race({primal: partial(their_backup, "kl")}, 1, progress)

    progress("a million states")
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"a million states: {done.stderr.strip().splitlines()[-1]}")
    million = json.loads(done.stdout)
    large = f"L1 solution to {TOL:g}, {MILLION:,} states, {million['transitions']:,} transitions: deeprok, ppi"
    times[large] = [million["seconds"]]

    result = Result("Robust dynamic programming (a step is a sweep, a solution or a backup)", times)
    result.compare("L1 sweep: times as fast as numpy", numpys, ours, ">=", 10)
    result.compare("L1 sweep: times as fast as a linear program a row", lps, ours, ">=", 1000)
    # No bars: times that are quoted, and a program that is not solved, are no rivals.
    for method, name in (("ppi", ppi), ("vi", vi)):
        result.ratios.append(
            Ratio(
                f"{method}: craam2's {CRAAM_SOLUTION} s, as quoted, over ours",
                CRAAM_SOLUTION / result.best(name),
                "",
                None,
            )
        )
    result.ratios.append(
        Ratio(f"sweep: craam2's {CRAAM_SWEEP} s, as quoted, over ours", CRAAM_SWEEP / result.best(ours), "", None)
    )
    result.ratios.append(
        Ratio(f"reading: craam2's {CRAAM_READING} s, as quoted, over ours", CRAAM_READING / result.best(read), "", None)
    )
    for name in list(SHARED)[1:]:
        result.compare(f"s-rectangular {name}: time over that of kl", mixed[name], mixed["kl"], "<=", 10)
    result.compare(
        "s-rectangular L1: times as fast as HiGHS", f"l1 {backup}: HiGHS", f"l1 {backup}: deeprok", ">=", 100
    )
    result.compare(
        "s-rectangular KL: times as fast as 500 iterations of the convex program",
        primal,
        f"kl {backup}: deeprok",
    )
    result.compare(
        "s-rectangular KL: times as fast as its dual by SLSQP",
        f"kl {backup}: SLSQP on the dual",
        f"kl {backup}: deeprok",
    )
    result.ratios.append(Ratio("a million states: peak of memory in GiB", million["gib"], "<=", 4.0))
    result.ratios.append(
        Ratio("a million states: error bound over the tolerance", million["error_bound"] / TOL, "<=", 1.0)
    )
    result.ratios.append(Ratio("a million states: reports of progress", million["reports"], ">=", 3))
    return result


if __name__ == "__main__":
    solve_million()
