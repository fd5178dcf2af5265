"""What to try next, and what to train for longer: a sampler and a pruner of Optuna.

T. Akiba, S. Sano, T. Yanase, T. Ohta and M. Koyama, "Optuna: a next-generation hyperparameter optimization framework",
  KDD 2019.
J. Bergstra, R. Bardenet, Y. Bengio and B. Kégl, "Algorithms for hyper-parameter optimization", NeurIPS 2011 (TPE).
L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, M. Hardt, B. Recht and A. Talwalkar, "A system for massively parallel
  hyperparameter tuning", MLSys 2020 (asynchronous successive halving).
S. Watanabe, A. Bansal and F. Hutter, "PED-ANOVA: efficiently quantifying hyperparameter importance in arbitrary
  subspaces", IJCAI 2023.

Optuna stores nothing. Its study is made anew of our own records, and each proposal has random numbers of its own, so
that it depends on the records, the seed and its number alone: a tuning that was killed proposes the same again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deeprok.core.errors import extra_missing
from deeprok.core.search import Range, Searched
from deeprok.tuning.record import TrialRecord

#: One of so many is promoted from a rung to the next.
KEPT = 3

_FIRST = 10  # proposals that are drawn at random, before there is something to learn from
_DIGITS = 6  # of a number that is proposed
_LEAST = 20  # scores that an importance is computed from: of fewer the best tenth is one or two


def optuna() -> Any:
    """The package, or a sentence that says how to install it."""
    try:
        import optuna as found
    except ImportError as error:
        raise extra_missing("tuning needs", "tune") from error
    found.logging.set_verbosity(found.logging.ERROR)
    return found


class Axis(NamedTuple):
    """A setting as Optuna sees it."""

    searched: Searched
    whole: bool

    def distribution(self) -> Any:
        """What Optuna draws from. Values in an order are numbered, so that it may learn from their neighbours."""
        distributions = optuna().distributions
        if isinstance(self.searched, Range):
            low, high, log = self.searched
            if self.whole:
                return distributions.IntDistribution(int(low), int(high), log=log)
            return distributions.FloatDistribution(low, high, log=log)
        last = len(self.searched) - 1
        if all(isinstance(value, int | float | tuple) and not isinstance(value, bool) for value in self.searched):
            return distributions.IntDistribution(0, last)
        return distributions.CategoricalDistribution(list(range(last + 1)))

    def value(self, drawn: float) -> Any:
        """The setting's value for what Optuna has drawn."""
        if not isinstance(self.searched, Range):
            return self.searched[int(drawn)]
        return int(drawn) if self.whole else float(f"{drawn:.{_DIGITS}g}")

    def drawn(self, value: Any) -> float:
        """What Optuna would have drawn for a value."""
        if isinstance(self.searched, Range):
            return min(max(value, self.searched.low), self.searched.high)
        return float(self.searched.index(value)) if value in self.searched else 0.0


class Sampler:
    """Proposes settings, and decides which are trained for longer.

    Args:
      space: what is tried.
      whole: the settings that are whole numbers.
      rungs: how many there are.
      seed: decides all proposals.
      start: the settings that are proposed first.
      trials: what has been tried already.
    """

    def __init__(
        self,
        space: Mapping[str, Searched],
        whole: Sequence[str],
        rungs: int,
        seed: int,
        start: Mapping[str, Any],
        trials: Sequence[TrialRecord] = (),
    ) -> None:
        self._axes = {name: Axis(searched, name in whole) for name, searched in space.items()}
        self._distributions = {name: axis.distribution() for name, axis in self._axes.items()}
        self._rungs, self._seed, self._start = rungs, seed, start
        package = optuna()
        self._study = package.create_study(
            direction="maximize",
            sampler=package.samplers.RandomSampler(seed=0),  # for what is only repeated
            pruner=package.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=KEPT),
        )
        self._trials: dict[int, Any] = {}
        results = sorted(
            (scored.round, trial.number, rung) for trial in trials for rung, scored in enumerate(trial.rungs)
        )
        by_number = {trial.number: trial for trial in trials}
        for number in sorted(by_number):  # in the order in which they were proposed
            self._propose(by_number[number].settings)
        for _, number, rung in results:
            trial = by_number[number]
            self.tell(number, rung, trial.rungs[rung].mean, trial.state == "pruned" and rung == len(trial.rungs) - 1)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """The number of a new trial, and its settings."""
        number = len(self._trials)
        if number == 0:
            return self._propose(self._start)
        seed = int(np.random.default_rng([self._seed, number]).integers(2**32))
        self._study.sampler = optuna().samplers.TPESampler(seed=seed, n_startup_trials=_FIRST, multivariate=True)
        return self._propose(None)

    def _propose(self, settings: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if settings is not None:
            fixed = {name: axis.drawn(settings[name]) for name, axis in self._axes.items()}
            self._study.enqueue_trial(
                {name: int(x) if self._is_whole(name) else x for name, x in fixed.items()}, skip_if_exists=False
            )
        trial = self._study.ask(self._distributions)
        self._trials[trial.number] = trial
        return trial.number, {name: axis.value(trial.params[name]) for name, axis in self._axes.items()}

    def _is_whole(self, name: str) -> bool:
        return not isinstance(self._axes[name].searched, Range) or self._axes[name].whole

    def tell(self, number: int, rung: int, score: float | None, pruned: bool | None = None) -> bool:
        """Takes a score into account; whether the trial is trained at the next rung.

        Args:
          number: of the trial.
          rung: which it was trained at.
          score: the larger, the better; None if it failed, which counts as the worst.
          pruned: what was decided before, where it is only repeated.
        """
        trial, states = self._trials[number], optuna().trial.TrialState
        last = rung == self._rungs - 1
        trial.report(-np.inf if score is None else score, KEPT**rung)
        promotable = not trial.should_prune()
        if last and score is not None:
            self._study.tell(trial, score)
            return False
        promoted = score is not None and (promotable if pruned is None else not pruned)
        if not promoted:
            self._study.tell(trial, state=states.PRUNED)
        return promoted


def importances(
    space: Mapping[str, Searched], whole: Sequence[str], trials: Sequence[TrialRecord]
) -> dict[str, float] | None:
    """How much each setting matters for the score at the first rung, where all were trained alike; PED-ANOVA.

    They are shares, which add up to 1. None where there are too few scores, or too many are equal.
    """
    scores = {trial.number: trial.rungs[0].mean for trial in trials if trial.rungs}
    known = [score for score in scores.values() if score is not None]
    if len(known) < _LEAST or min(known) == max(known):
        return None
    package, worst = optuna(), min(known)
    axes = {name: Axis(searched, name in whole) for name, searched in space.items()}
    study = package.create_study(direction="maximize")
    distributions = {name: axis.distribution() for name, axis in axes.items()}
    for trial in trials:
        if trial.number in scores:
            score = scores[trial.number]
            params = {
                name: int(x) if not isinstance(axis.searched, Range) or axis.whole else x
                for name, axis in axes.items()
                for x in [axis.drawn(trial.settings[name])]
            }
            made = package.trial.create_trial(
                params=params, distributions=distributions, value=worst if score is None else score
            )
            study.add_trial(made)
    evaluator = package.importance.PedAnovaImportanceEvaluator()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            found = package.importance.get_param_importances(study, evaluator=evaluator)
        except UserWarning:  # so many scores are equal that the best are all of them
            return None
    return {name: float(share) for name, share in found.items() if np.isfinite(share)} or None
