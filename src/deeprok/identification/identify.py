"""Parameters from logs: an estimate, ranges that hold the truth, plausible models, and whether the simulator fits."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.core.errors import DeeprokError, unknown
from deeprok.environments.base import AnyEnvironment
from deeprok.environments.host import HostEnvironment
from deeprok.environments.registry import usual_environment
from deeprok.identification import result, words
from deeprok.identification.checks import check_fit
from deeprok.identification.dynamics import make_dynamics
from deeprok.identification.fit import DIFFERENT, Bounds, Likelihood, Point, climb, maximise
from deeprok.identification.likelihood import Innovations, Unknowns, as_data, innovations_of
from deeprok.identification.log import Log, Table, read_log
from deeprok.identification.region import (
    MoreLikelyError,
    Range,
    Region,
    bootstrap_estimates,
    covariance_of,
    degrees_of_freedom,
    directions,
    information_of,
    plausible_models,
    profile_range,
    simultaneous_quantile,
    student_levels,
)
from deeprok.identification.surrogate import Asker, FailsError, Surrogate, ask, check_simulator

#: Steps that each unknown needs at least.
_STEPS_EACH = 2
#: Episodes that a bootstrap needs at least.
_EPISODES = 5
#: How often a better estimate that a profile finds is taken.
_RESTARTS = 5
#: A parameter outside the box is searched from a tenth of its nominal value to ten times that.
_FACTOR = 10.0
#: A simulator is asked again, for models nearer to the estimate, if polynomials of its answers are this wrong, as a
#: share of what is not predicted; how much nearer, but at least so many standard deviations; and how often.
_WRONG, _NEARER, _NEAR, _ROUNDS = 0.1, 1 / 3, 8.0, 6
#: It is asked again as well if the sensors are so many times as noisy as how far from an observation it was asked.
_NOISIER = 2.0
#: How often the search is halved, towards the nominal model, where a simulator fails.
_HALVED = 6


def identify(
    env: str | AnyEnvironment,
    data: str | Path | Table,
    parameters: str | Sequence[str] | None = None,
    confidence: float = 0.9,
    bootstrap: int = 50,
    models: int = 100,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
) -> result.Identified:
    """Finds the parameters of a system from a log of it.

    The log's likelihood is that of an extended Kalman filter over the observations, with process and sensor noise as
    further unknowns. It is maximised from many starts. The range of a parameter is where its profile likelihood is not
    too small, at a level by which all ranges together hold the true parameters with the stated confidence.

    Args:
      env: an environment, its name, or `module:object`. Of a simulator the observations must determine the state.
      data: the log, as `read_log` takes it.
      parameters: which parameters are unknown, as names or as text, a,b; by default those of the environment's box. The
        others are nominal.
      confidence: the probability that the ranges hold all true parameters.
      bootstrap: how often episodes are resampled for the ranges to compare with, of 5 episodes or more; 0 for none.
      models: how many plausible models to draw.
      seed: seed of all random numbers.
      advance: called with the fraction of the work done since its last call.

    Example:
      >>> found = deeprok.identify("cartpole", "log.csv", parameters="pole_length,cart_mass")
      >>> found.box
      {'pole_length': (0.571, 0.634), 'cart_mass': (1.41, 1.58)}
      >>> found.save("identified.json")
    """
    _check(confidence, bootstrap, models, seed)
    name, made = named_environment(env)
    chosen = _chosen(made, name, parameters)
    log = read_log(data, made)
    report = advance or (lambda part: None)
    with jax.enable_x64(True):
        asking = isinstance(made, HostEnvironment)
        unknowns, bounds, nominal = _search(
            made, chosen, log, os.fspath(data) if isinstance(data, str | os.PathLike) else "a log"
        )
        found = _asked(made, unknowns, bounds, nominal, log, None, seed, lambda part: report(0.3 * part))
        bounds = found.likelihood.bounds
        best, optima = maximise(found.likelihood, nominal, seed, lambda part: report((0.1 if asking else 0.4) * part))
        for _ in range(_ROUNDS if asking else 0):
            good = np.all(_wrong(found, best) < _WRONG) and np.all(_sensor(unknowns, best) < _NOISIER * found.shift)
            if good and not _at_own_end(found.likelihood, best, bounds):
                break
            before, nearer, sensor = _wrong(found, best).max(), _nearer(found, best, bounds), _sensor(unknowns, best)
            found = _asked(made, unknowns, nearer, best.x[: len(chosen)], log, sensor, seed, lambda part: None)
            best, optima = climb(found.likelihood.at, best.x, found.likelihood.bounds), []
            if before / 2 < _wrong(found, best).max() > _WRONG:  # it is not smooth
                break
        likelihood = found.likelihood
        region = _region(likelihood, best, optima, nominal, confidence, lambda part: report(0.3 * part))
        unidentified = [each for each, one in zip(chosen, region.ranges, strict=True) if not one.closed]
        times = bootstrap if len(log.length) >= _EPISODES else 0
        again = bootstrap_estimates(likelihood, region.best, times, seed, lambda part: report(0.2 * part))
        box = {each: ends for i, each in enumerate(chosen) if (ends := _box(made, likelihood, region, i))}
        width, searched = likelihood.bounds.width[: len(chosen)], list(zip(*likelihood.bounds, strict=True))
        limits = [box[each] if each in unidentified and each in box else searched[i] for i, each in enumerate(chosen)]
        spread = covariance_of(information_of(region.best, likelihood), width, largest=1.0)
        freedom = float(region.freedom.min())
        plausible = plausible_models(likelihood, region.best, spread, limits, confidence, freedom, models, seed)
        innovations = innovations_of(likelihood.unknowns)(jnp.asarray(region.best.x), likelihood.data)
        checks = check_fit(Innovations(*map(np.asarray, innovations)), log)  # type: ignore[arg-type]
        process, sensor = (np.sqrt(each) for each in likelihood.unknowns.noise(jnp.asarray(region.best.x)))
        told = likelihood.alone(region.best.x).log_likelihood
        report(0.1 if times else 0.3)

    def natural(x: np.ndarray) -> dict[str, float]:
        """Parameters as users know them."""
        return dict(zip(chosen, np.asarray(likelihood.unknowns.theta(x)).tolist(), strict=True))

    low, high = (natural(np.array([getattr(one, end) for one in region.ranges])) for end in ("low", "high"))
    estimate = natural(region.best.x[: len(chosen)])
    half = region.levels * again.std(axis=0, ddof=1) if times > 1 else np.zeros(len(chosen))
    lower, upper = (natural(region.best.x[: len(chosen)] + sign * half) for sign in (-1, 1))
    return result.Identified(
        env=name,
        parameters={each: result.Estimate(estimate[each], low[each], high[each]) for each in chosen},
        confidence=confidence,
        unidentified=tuple(unidentified),
        combinations=tuple(words.combinations(region.flat * width[:, None], chosen, likelihood.unknowns.positive)),
        noise=result.Noise(tuple(process.tolist()), tuple(sensor.tolist())),
        fit=result.Fit(
            episodes=len(log.length),
            steps=log.steps,
            log_likelihood=float(told),
            optima=tuple(natural(point.x) for point in region.optima),
            checks=checks,
        ),
        bootstrap={each: (lower[each], upper[each]) for each in chosen if times > 1 and each not in unidentified},
        models={each: tuple(natural(x)[each] for x in plausible) for each in chosen},
        box={each: _natural(ends, likelihood.unknowns.positive[chosen.index(each)]) for each, ends in box.items()},
        notes=(
            *(check.sentence for check in checks if check.misfit),
            *words.notes(made.box, likelihood, region, half),
            *_inexact(_wrong(found, region.best)),
            *([f"only {len(plausible)} of {models} plausible models were found"] if len(plausible) < models else ()),
        ),
    )


def _natural(ends: tuple[float, float], positive: bool) -> tuple[float, float]:
    return (float(np.exp(ends[0])), float(np.exp(ends[1]))) if positive else ends


def _check(confidence: float, bootstrap: int, models: int, seed: int) -> None:
    if not 0.5 <= confidence < 1:
        raise DeeprokError(f"confidence is {confidence:g}; it must be at least 0.5 and below 1")
    if bootstrap < 0:
        raise DeeprokError(f"bootstrap is {bootstrap}; it must be at least 0")
    if models < 1:
        raise DeeprokError(f"models is {models}; it must be at least 1")
    if not 0 <= seed < 2**32:
        raise DeeprokError(f"seed is {seed}; it must be from 0 to 4294967295")


def named_environment(env: str | AnyEnvironment) -> tuple[str, AnyEnvironment]:
    """Its name, by which a run names it too, and the environment."""
    return (env, usual_environment(env)) if isinstance(env, str) else (env.name, env)


def _chosen(env: AnyEnvironment, name: str, parameters: str | Sequence[str] | None) -> tuple[str, ...]:
    """The parameters that are unknown."""
    known = [field.name for field in dataclasses.fields(env.nominal)]
    if parameters is None:
        if not env.box:
            raise DeeprokError(f"{name} has no box of uncertain parameters; give parameters, of {', '.join(known)}")
        return tuple(env.box)
    listed = [each.strip() for each in (parameters.split(",") if isinstance(parameters, str) else parameters)]
    if missing := [each for each in listed if each not in known]:
        raise unknown("parameter in parameters", missing[0], known)
    if twice := [each for each in listed if listed.count(each) > 1]:
        raise DeeprokError(f"parameters names {twice[0]} twice; give each parameter once")
    if not listed:
        raise DeeprokError(f"parameters is empty; give some of {', '.join(known)}")
    return tuple(listed)


def _search(env: AnyEnvironment, names: tuple[str, ...], log: Log, source: str) -> tuple[Unknowns, Bounds, np.ndarray]:
    """The unknowns, where they are searched, and the nominal parameters as x has them."""
    positive = tuple(is_positive(env, name) for name in names)
    if isinstance(env, HostEnvironment):
        check_simulator(env)
        unknowns = Unknowns(Surrogate(names, positive, tuple(env.observation_scale)), positive)
    else:
        unknowns = Unknowns(make_dynamics(env, names), positive)
    count = unknowns.parameters + len(unknowns.noise_ends()[0])
    if log.steps * len(env.observation_scale) < _STEPS_EACH * count:
        size = len(env.observation_scale)
        raise DeeprokError(
            f"data is {source} with {log.steps} steps; {len(names)} parameters and the noises of {size} observations "
            f"need {-(-_STEPS_EACH * count // size)} at least"
        )
    ends = np.array([search_ends(env, name, positive) for name, positive in zip(names, unknowns.positive, strict=True)])
    noise_low, noise_high = unknowns.noise_ends()
    bounds = Bounds(np.concatenate([ends[:, 0], noise_low]), np.concatenate([ends[:, 1], noise_high]))
    nominal = np.array([float(getattr(env.nominal, name)) for name in names])
    with np.errstate(invalid="ignore", divide="ignore"):
        return unknowns, bounds, np.where(unknowns.positive, np.log(nominal), nominal)


def is_positive(env: AnyEnvironment, name: str) -> bool:
    """Whether a parameter can't be 0 or negative. Of a simulator's attributes nobody says; its values have to do."""
    (field,) = (field for field in dataclasses.fields(env.nominal) if field.name == name)
    values = [float(getattr(env.nominal, name)), *env.box.get(name, ())]
    return bool(field.metadata["positive"]) or (isinstance(env, HostEnvironment) and min(values) > 0)


class _Found(NamedTuple):
    """The likelihood of a log, and how wrong the predictions are that it rests on."""

    likelihood: Likelihood
    error: np.ndarray  # [D] root of the mean square; 0 for environments in JAX
    shift: np.ndarray  # [D] how far from an observation a simulator was asked; 0 for environments in JAX


def _asked(
    env: AnyEnvironment,
    unknowns: Unknowns,
    bounds: Bounds,
    middle: np.ndarray,
    log: Log,
    sensor: np.ndarray | None,
    seed: int,
    advance: Callable[[float], None],
) -> _Found:
    """The likelihood of a log. A simulator is asked about each of its steps, nearer to the middle if it fails."""
    if not isinstance(env, HostEnvironment):
        none = np.zeros(len(env.observation_scale))
        return _Found(Likelihood(unknowns, bounds, as_data(log)), none, none)
    assert isinstance(unknowns.dynamics, Surrogate)
    for _ in range(_HALVED):
        low, high = (ends[: len(middle)] for ends in bounds)
        try:
            asker = Asker(env, unknowns.dynamics, low, high, seed, sensor)
            tables = ask(asker, unknowns.dynamics, log, advance)
            error = np.sqrt(np.sum(tables.error, axis=(0, 1)) / log.steps)
            return _Found(Likelihood(unknowns, bounds, as_data(log, tables)), error, asker.shift)
        except FailsError:
            halved = [np.concatenate([(ends[: len(middle)] + middle) / 2, ends[len(middle) :]]) for ends in bounds]
            bounds = Bounds(*halved)
    raise DeeprokError(
        f"{env.name} fails in a state of the log, under models that are close to the nominal one; check the units of "
        "its observations"
    )


def _wrong(found: _Found, best: Point) -> np.ndarray:
    """[D] how wrong polynomials and lines of a simulator's answers are, as a share of what is not predicted."""
    noise = found.likelihood.unknowns.noise(jnp.asarray(best.x))
    return np.asarray(found.error / np.sqrt(noise.process + 2 * noise.sensor))


def _sensor(unknowns: Unknowns, best: Point) -> np.ndarray:
    """[D] standard deviations of the sensors."""
    return np.asarray(jnp.sqrt(unknowns.noise(jnp.asarray(best.x)).sensor))


def _nearer(found: _Found, best: Point, whole: Bounds) -> Bounds:
    """Ends of the next search, around the estimate: as wide as the last where its polynomials were good."""
    likelihood, count = found.likelihood, found.likelihood.unknowns.parameters
    width = likelihood.bounds.width[:count]
    covariance = covariance_of(information_of(best, likelihood), width, largest=1.0)
    share = _NEARER if np.any(_wrong(found, best) > _WRONG) else 1.0
    reach = np.maximum(share * width / 2, _NEAR * np.sqrt(np.diag(covariance)))
    reach = np.concatenate([reach, np.full(len(best.x) - count, np.inf)])
    return Bounds(np.maximum(whole.low, best.x - reach), np.minimum(whole.high, best.x + reach))


def _at_own_end(likelihood: Likelihood, best: Point, whole: Bounds) -> bool:
    """Whether a parameter is at an end of a search that was nearer than the whole."""
    count = likelihood.unknowns.parameters
    return bool(np.any((likelihood.bounds.at(best.x) & ~whole.at(best.x))[:count]))


def _inexact(wrong: np.ndarray) -> list[str]:
    """What a user should know of a simulator that polynomials and lines do not describe."""
    return [
        f"what the simulator predicts of obs_{i} is no smooth function of parameters and state: it was interpolated "
        f"with an error of {100 * share:.0f} % of the noise, which counts as noise"
        for i, share in enumerate(wrong)
        if share > _WRONG
    ]


def search_ends(env: AnyEnvironment, name: str, positive: bool) -> tuple[float, float]:
    """Between which values a parameter is searched, as x has them: its range, widened by its own width."""
    nominal = float(getattr(env.nominal, name))
    if name in env.box:
        low, high = env.box[name]
        low, high = (max(low - (high - low), low / _FACTOR) if positive else low - (high - low)), 2 * high - low
    elif positive:
        low, high = nominal / _FACTOR, nominal * _FACTOR
    else:
        low, high = nominal - _FACTOR * (abs(nominal) or 1.0), nominal + _FACTOR * (abs(nominal) or 1.0)
    return (float(np.log(low)), float(np.log(high))) if positive else (low, high)


def _region(
    likelihood: Likelihood,
    best: Point,
    optima: list[Point],
    nominal: np.ndarray,
    confidence: float,
    advance: Callable[[float], None],
) -> Region:
    """The estimate, of equally likely ones the nearest to the nominal model, and the ranges around it."""
    count = likelihood.unknowns.parameters
    width = likelihood.bounds.width[:count]
    for attempt in range(_RESTARTS + 1):
        deviations, vectors = directions(information_of(best, likelihood), width)
        if np.any(deviations > 1):
            best = _nearest(likelihood, best, nominal, vectors[:, deviations > 1])
        information = information_of(best, likelihood)
        deviations, vectors = directions(information, width)
        covariance = covariance_of(information, width)
        freedom = degrees_of_freedom(best, likelihood)
        levels = student_levels(simultaneous_quantile(covariance, confidence), freedom)
        ranges: list[Range] = []
        try:
            for i in range(count):
                ranges.append(profile_range(likelihood, best, i, covariance, levels[i], patient=attempt < _RESTARTS))
                if attempt == 0:
                    advance(1 / count)
            break
        except MoreLikelyError as error:
            best = climb(likelihood.at, error.point.x, likelihood.bounds)
    flat = vectors[:, deviations > 1]
    optima = [point for point in optima if _apart((point.x - best.x)[:count] / width, flat)]
    within = [p.x for p in optima if 2 * (best.score.log_likelihood - p.score.log_likelihood) <= levels.max() ** 2]
    for i, (low, high, closed) in enumerate(ranges):  # a region in two parts is as wide as both
        others = [x[i] for x in within]
        ranges[i] = Range(min([low, *others]), max([high, *others]), closed)
    return Region(best, optima, ranges, flat, levels, freedom)


def _apart(difference: np.ndarray, flat: np.ndarray) -> bool:
    """Whether two optima are different ones: not merely places of a ridge that the log does not tell apart."""
    return bool(np.abs(difference - flat @ (flat.T @ difference)).max() > DIFFERENT)


def _nearest(likelihood: Likelihood, best: Point, nominal: np.ndarray, flat: np.ndarray) -> Point:
    """Along directions that the log does not tell, the nearest point to the nominal model."""
    count = len(nominal)
    width = likelihood.bounds.width[:count]
    start = best.x.copy()
    start[:count] += width * (flat @ (flat.T @ ((nominal - best.x[:count]) / width)))
    found = climb(likelihood.at, start, likelihood.bounds)
    return found if found.score.log_likelihood > best.score.log_likelihood - 0.01 else best


def _box(env: AnyEnvironment, likelihood: Likelihood, region: Region, i: int) -> tuple[float, float] | None:
    """The range of a parameter to train for, as x has it; None if there is none.

    Where the log does not end a range, the environment's own does; unless the log contradicts that as a whole.
    """
    name, (low, high, closed) = likelihood.unknowns.dynamics.names[i], region.ranges[i]
    if closed:
        return low, high
    if name not in env.box:
        return None
    own = words.own_ends(env.box[name], likelihood.unknowns.positive[i])
    return (max(low, own[0]), min(high, own[1])) if words.overlap(region.ranges[i], own) else (low, high)
