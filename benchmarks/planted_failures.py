"""Searches for planted failures: how often each of several optimisers finds them with the same number of models.

    pip install cma==4.5.0 nevergrad==1.0.12
    python benchmarks/planted_failures.py

A policy that works on all models of a 4-D cube but for a planted failure is played for 32 episodes on each model, with
common random numbers. A search has found the failure if the model that it thinks worst is one on which the policy
succeeds in a tenth of the episodes at most. `deeprok stress` is the row that the others are compared with; contenders
whose package is not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import differential_evolution
from scipy.stats import qmc

from deeprok.evaluation.stress.player import EPISODES, SEARCH, Scores
from deeprok.evaluation.stress.search import make_design, make_merit, sample_size, search
from deeprok.evaluation.stress.space import Dimension, Space

DIMENSIONS = 4
SPACE = Space(tuple(Dimension(f"x{i}", "", (0.0, 1.0), 0.0, 1.0, False) for i in range(DIMENSIONS)))
FOUND = 0.1  # success at most, on the worst model of a search that has found the failure

#: `models [N, D] -> (success [N], mean return [N])`.
Policy = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
#: `places [N, D] -> merits [N]`, which are to be made small.
Merit = Callable[[np.ndarray], np.ndarray]


# --- failures -----------------------------------------------------------------------------------------------------


def _cube(rng: np.random.Generator, share: float) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The middle of a cube of this share of the unit cube, and what tells whether models lie in it."""
    side = share ** (1 / DIMENSIONS)
    middle = side / 2 + rng.random(DIMENSIONS) * (1 - side)
    return middle, lambda models: np.abs(models - middle).max(axis=1) <= side / 2


def pocket(rng: np.random.Generator, share: float) -> Policy:
    """Fails in a cube; nothing leads there."""
    _, inside = _cube(rng, share)
    return lambda models: (np.where(inside(models), 0.0, 1.0), np.zeros(len(models)))


def funnel(rng: np.random.Generator) -> Policy:
    """Fails in a cube of 0.02 %, to which returns lead from everywhere."""
    middle, inside = _cube(rng, 2e-4)
    return lambda models: (np.where(inside(models), 0.0, 1.0), np.linalg.norm(models - middle, axis=1))


def ridge(rng: np.random.Generator) -> Policy:
    """Fails along a thin oblique band of two parameters, if a third is large."""
    a, b, c = rng.permutation(DIMENSIONS)[:3]

    def policy(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        off = np.abs(models[:, a] - 0.5 * models[:, b] - 0.3)
        success = np.maximum(np.clip(off / 0.02 - 0.2, 0, 1), np.clip((0.8 - models[:, c]) / 0.1, 0, 1))
        return success, success

    return policy


def corner(rng: np.random.Generator) -> Policy:
    """Success falls smoothly towards a corner, and below a half on 0.1 % of the models."""
    at = rng.integers(0, 2, DIMENSIONS).astype(float)

    def policy(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        success = 1 / (1 + np.exp(-(np.abs(models - at).max(axis=1) - 0.001 ** (1 / DIMENSIONS)) / 0.02))
        return success, success

    return policy


def decoy(rng: np.random.Generator) -> Policy:
    """Does a little worse in a large ball, to whose middle returns lead, and fails in a cube of 0.3 % elsewhere."""
    _, inside = _cube(rng, 3e-3)
    middle = rng.random(DIMENSIONS)

    def policy(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        distance = np.linalg.norm(models - middle, axis=1)
        return np.where(inside(models), 0.0, np.where(distance < 0.45, 0.8, 1.0)), distance

    return policy


FAILURES: dict[str, Callable[[np.random.Generator], Policy]] = {
    "pocket of 1 %": lambda rng: pocket(rng, 0.01),
    "pocket of 0.1 %": lambda rng: pocket(rng, 0.001),
    "funnel": funnel,
    "ridge": ridge,
    "corner": corner,
    "decoy": decoy,
}


# --- searches -----------------------------------------------------------------------------------------------------


class BudgetError(Exception):
    """The budget is used up."""


class Player:
    """Plays a policy on as many models as the budget has, and remembers the worst."""

    def __init__(self, policy: Policy, budget: int, seed: int) -> None:
        self.policy, self.budget, self.left, self.seed = policy, budget, budget, seed
        self.chances = np.random.default_rng((seed, 1)).random(EPISODES)
        self.merit_of = make_merit(Scores(np.ones(3), np.array([0.0, 0.5, 1.0])))
        self.worst = (np.inf, np.zeros(DIMENSIONS))

    def play(self, models: np.ndarray, purpose: int = SEARCH, blocks: int = 1) -> Scores:
        """The scores of models; raises where there are more than the budget has."""
        some = models[: self.left]
        self.left -= len(some)
        success, mean_return = self.policy(some)
        scores = Scores((self.chances < success[:, None]).mean(axis=1), mean_return)
        merits = self.merit_of(scores)
        if len(some) and merits.min() < self.worst[0]:
            self.worst = float(merits.min()), some[merits.argmin()]
        if len(some) < len(models):
            raise BudgetError
        return scores

    def merits(self, places: np.ndarray) -> np.ndarray:
        """The merits of places, which are models here."""
        return self.merit_of(self.play(np.clip(places, 0, 1)))


def stress(player: Player) -> None:
    """What `deeprok stress` does."""
    search(SPACE, player.play, player.budget, player.seed)


def uniform(player: Player) -> None:
    """Models drawn at random."""
    player.merits(np.random.default_rng(player.seed).random((player.budget, DIMENSIONS)))


def sobol(player: Player) -> None:
    """A Sobol sequence."""
    player.merits(qmc.Sobol(DIMENSIONS, rng=player.seed).random(player.budget))


def evolution(player: Player) -> None:
    """Differential evolution alone, from 32 models, and again."""
    rng = np.random.default_rng(player.seed)
    while True:
        differential_evolution(
            lambda columns: player.merits(columns.T),
            [(0.0, 1.0)] * DIMENSIONS,
            init=rng.random((32, DIMENSIONS)),
            maxiter=player.budget,
            tol=1e-4,
            polish=False,
            updating="deferred",
            vectorized=True,
            rng=rng,
        )


def _evolve_normal(player: Player, starts: Iterator[np.ndarray], sigma: float) -> None:
    """CMA-ES from each start, four at a time."""
    cma, running = import_module("cma"), list[Any]()
    options = {"bounds": [0, 1], "popsize": 16, "verbose": -9}
    for number in range(player.budget):
        while len(running) < 4:
            own = {"seed": 1 + number + len(running) + 97 * player.seed}
            running.append(cma.CMAEvolutionStrategy(next(starts), sigma, options | own))
        asked = [np.array(each.ask()) for each in running]
        merits = np.split(player.merits(np.concatenate(asked)), len(running))
        for each, places, found in zip(running, asked, merits, strict=True):
            each.tell(list(places), list(found))
        running = [each for each in running if not each.stop()]


def cma_es(player: Player) -> None:
    """CMA-ES from random models, and again."""
    rng = np.random.default_rng(player.seed)
    _evolve_normal(player, (rng.random(DIMENSIONS) for _ in itertools.count()), 0.3)


def cma_es_from_design(player: Player) -> None:
    """The design of `deeprok stress`, then CMA-ES from the worst of it."""
    rng = np.random.default_rng(player.seed)
    places = make_design(sample_size(player.budget, DIMENSIONS), DIMENSIONS, rng)
    order = np.argsort(player.merits(places), kind="stable")
    _evolve_normal(player, iter(places[order]), 0.1)


def nevergrad(player: Player) -> None:
    """Nevergrad's TwoPointsDE; its NGOpt does not run with numpy 2.4."""
    ng = import_module("nevergrad")
    array = ng.p.Array(init=np.full(DIMENSIONS, 0.5)).set_bounds(0, 1)
    array.random_state = np.random.RandomState(player.seed)
    optimiser = ng.optimizers.registry["TwoPointsDE"](parametrization=array, budget=player.budget, num_workers=32)
    while True:
        asked = [optimiser.ask() for _ in range(32)]
        for each, merit in zip(asked, player.merits(np.array([each.value for each in asked])), strict=True):
            optimiser.tell(each, float(merit))


#: Contender -> its search, and the package that it needs.
SEARCHES: dict[str, tuple[Callable[[Player], None], str]] = {
    "`deeprok stress`: design, then differential evolution": (stress, "scipy"),
    "the same design, then CMA-ES": (cma_es_from_design, "cma"),
    "CMA-ES with restarts": (cma_es, "cma"),
    "differential evolution with restarts": (evolution, "scipy"),
    "nevergrad's TwoPointsDE": (nevergrad, "nevergrad"),
    "Sobol sequence": (sobol, "scipy"),
    "uniform draws": (uniform, "scipy"),
}


def tries_found(run: Callable[[Player], None], failure: str, budget: int, tries: int) -> int:
    """In how many tries a search finds a failure that is planted anew in each."""
    found = 0
    for seed in range(tries):
        policy = FAILURES[failure](np.random.default_rng((seed, *failure.encode())))
        player = Player(policy, budget, seed)
        with contextlib.suppress(BudgetError):
            run(player)
        found += int(policy(player.worst[1][None])[0][0] <= FOUND)
    return found


def table(results: dict[str, Any]) -> str:
    """The results as a table in Markdown."""
    lines = ["| search | " + " | ".join(FAILURES) + " | s |", "|---|" + "---:|" * (len(FAILURES) + 1)]
    for name, row in results["searches"].items():
        counts = " | ".join(str(row["found"][failure]) for failure in FAILURES)
        lines.append(f"| {name} | {counts} | {row['seconds']:g} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="How often searches find planted failures.")
    parser.add_argument("names", nargs="*", metavar="WORD", help="searches whose names hold one of these; all if none")
    parser.add_argument("--budget", type=int, default=1024, help="models of each try")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_suffix(".json"),
        help="JSON file to write; of searches that are not run it keeps what it has",
    )
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    sizes = {"budget": options.budget, "tries": options.tries}
    rows = kept["searches"] if {name: kept.get(name) for name in sizes} == sizes else {}
    for name, (run, package) in SEARCHES.items():
        if options.names and not any(word in name for word in options.names):
            continue
        if find_spec(package) is None:
            print(f"{name}: {package} is not installed")
            continue
        began = time.process_time()
        found = {failure: tries_found(run, failure, options.budget, options.tries) for failure in FAILURES}
        seconds = (time.process_time() - began) / (options.tries * len(FAILURES))
        rows[name] = {"found": found, "seconds": float(f"{seconds:.1g}")}
        print(name, found, f"{seconds:.1g} s a try", flush=True)
        ordered = {name: rows[name] for name in SEARCHES if name in rows}
        results = {**sizes, "searches": ordered}
        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"\nof {options.tries} tries, {options.budget} models each:\n\n{table(results)}")


if __name__ == "__main__":
    main()
