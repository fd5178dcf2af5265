"""The loop over chunks: metrics, trials, checks, checkpoints and interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from deeprok.agents.clock import Clock
from deeprok.agents.correction import Correction, no_correction
from deeprok.agents.learner import Budget
from deeprok.core.errors import DeeprokError, DivergedError
from deeprok.core.pytree import select
from deeprok.environments.checks import refuse_wrong_shapes
from deeprok.environments.host import HostEnvironment
from deeprok.evaluation.calibration import make_correction
from deeprok.runs import checkpoint
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.tracking.track import Report as Report
from deeprok.training import host, scan
from deeprok.training.adversary import StoppedError, make_adversary, on_found
from deeprok.training.best import (
    EXAM,
    TRIAL,
    Best,
    better_in_exam,
    chosen,
    make_trial,
    present_weights,
    with_early,
    with_trial,
)
from deeprok.training.found import news
from deeprok.training.health import breakdown, make_spread, metrics_line
from deeprok.training.scan import Program, RunState

#: Called with 1 when a training is first asked to stop, which it does after the chunk, with 2 the next time, …
OnInterrupt = Callable[[int], None]

T = TypeVar("T")

CHECKPOINT_SECONDS = 30.0


def templates(program: Program) -> tuple[RunState, Best]:
    """Shapes of what a checkpoint of this program holds."""
    run = program.shapes()
    theta = jax.eval_shape(program.learner.view.mean, run.agent.belief)
    best = Best(
        belief=run.agent.belief,
        trial_return=jax.ShapeDtypeStruct((), theta.dtype),  # type: ignore[arg-type]
        steps=run.steps,
        progress=run.held,
    )
    return run, with_early(best)


def train_together(
    folders: Sequence[Path], report: Report | None = None, on_interrupt: OnInterrupt | None = None
) -> None:
    """Trains runs that differ by their seeds only, in step, until each has used up its budget.

    Starts each from its checkpoint or from nothing. Writes a checkpoint every half minute, at the
    end, and when interrupted (Ctrl-C or SIGTERM), after which it raises `KeyboardInterrupt`.
    A run that breaks down stops at its last good checkpoint; the others go on, and a
    `DivergedError` is raised at the end.

    Rounding depends on how many seeds share a program and on a seed's place among them. So the runs
    begun together are a group: `group.json` names its seeds, and a run that is trained on keeps its
    place, whichever of the others are there, have finished or stand at another step.

    Args:
      folders: run folders with equal settings but for the seed, of one group or of none yet.
      report: called after each chunk, for each run that took part in it.
      on_interrupt: called when the training is interrupted, at once.
    """
    configs = [runs.read_config(folder) for folder in folders]
    own = [config.seed for config in configs]
    seeds = runs.read_group(folders[0])
    if seeds is None:
        seeds = tuple(own)
        for folder in folders:
            runs.write_group(folder, seeds)
    if len(set(seeds)) < len(seeds) or not set(own) <= set(seeds):
        raise DeeprokError(
            f"{folders[0] / runs.GROUP} names the seeds {list(seeds)}; the seeds {own} must be among them, each once"
        )
    with configs[0].arithmetic(), contextlib.closing(make_program(configs[0])) as program:
        _train_group(program, seeds, dict(zip(own, folders, strict=True)), configs[0], report, on_interrupt)


def _train_group(
    program: Program,
    seeds: Sequence[int],
    folders: Mapping[int, Path],
    config: Config,
    report: Report | None,
    on_interrupt: OnInterrupt | None,
) -> None:
    """Trains the runs of a group whose folders are given; the others only keep their places.

    Args:
      program: that of the settings.
      seeds: the group's.
      folders: seed -> the folder of its run.
      config: the settings, whatever the seed.
      report: called after each chunk, for each run that took part in it.
      on_interrupt: called when the training is interrupted, at once.
    """
    members = [_read_member(folders.get(seed), seed, program, config.budget) for seed in seeds]
    places = {i: folders[seed] for i, seed in enumerate(seeds) if seed in folders}
    # Stacked on the host and copied to the device, so that no two donated buffers are the same.
    states, best = jax.tree.map(lambda *leaves: jnp.array(np.stack(leaves)), *members)
    trial, exam = (make_trial(config, program, trials) for trials in (TRIAL, EXAM))
    measure, go_back = make_spread(program.learner), _make_return(program)
    correct = make_correction(config, program.learner.view) if program.learner.corrected else None
    box = config.make_box(program.learner.view.env)
    search_all = make_adversary(config, program, trial) if config.searches else None
    broken: dict[int, str] = {}
    steps = np.array(states.steps)  # a copy, as the states are donated
    done = program.chunks_done(states)
    # Those that a kill left behind the others go first. Until they have come to where those are, what the
    # program makes of the others is not used: each then takes its place as its checkpoint has it.
    unfinished = [i for i in _unfinished(states, config) if i in places]
    chunk = min((int(done[i]) for i in unfinished), default=0)
    ahead = {i: (int(done[i]), members[i]) for i in unfinished if done[i] > chunk}
    del members
    saved = time.monotonic()
    with interruptions(on_interrupt) as interrupted:
        while True:
            for i in [i for i, (index, _) in ahead.items() if index == chunk]:
                states, best = _put((states, best), ahead.pop(i)[1], i)
            active = [i for i in _unfinished(states, config) if i in places and i not in broken and i not in ahead]
            if not active and ahead:
                chunk = min(index for index, _ in ahead.values())
                continue
            if not active:
                break
            began, used = time.monotonic(), time.process_time()
            try:
                if search_all:
                    states, best = search_all(states, best, {i: seeds[i] for i in active}, interrupted.is_set)
                states, log = program.advance(states, chunk)
            except StoppedError:
                for i in active:
                    _save(places[i], states, best, i)
                raise KeyboardInterrupt from None
            except DeeprokError as error:  # of a simulator: what was done before this chunk is not lost
                begun = [places[i] for i in active if steps[i]]
                for i in active:
                    if steps[i]:
                        _save(places[i], states, best, i)
                said = f"{error}; resume with: deeprok train --resume {begun[0]}" if begun else str(error)
                raise DeeprokError(said) from error
            chunk += 1
            unfinished = _unfinished(states, config)
            # Each run is tried when it would be if it ran alone: regularly, and when it has finished.
            due = [i for i in active if chunk % config.trial_every == 0 or i not in unfinished]
            returns = np.zeros(len(seeds), bool)
            if due:
                try_out, examine = (on_found(each, states.found) for each in (trial, exam))
                scores = try_out(states.agent.belief)
                progress = np.asarray(config.budget.progress(np.asarray(states.episodes), np.asarray(states.steps)))
                present = present_weights(states, scores, progress)
                tried = np.isin(np.arange(len(seeds)), due)
                best, present = with_trial(config, best, present, tried)
                ended = np.isin(np.arange(len(seeds)), [i for i in due if i not in unfinished])
                if config.settle and ended.any():
                    best, result = better_in_exam(best, examine, ended)
                    goes_back = ended & np.asarray(result > examine(states.agent.belief))
                    best = chosen(best, present, ended & ~goes_back)
                    states = go_back(states, best, goes_back)
                late = tried & ~ended & (progress >= config.refine_from)
                returns = late & np.asarray(states.held < 0).any(axis=1)
                if returns.any():
                    states = go_back(states, best, returns)
                if correct and ended.any():
                    states, best = _corrected(program, correct, states, best, ended)
            spread = measure(states.agent.belief)
            before, steps = steps, np.array(states.steps)
            seconds = time.monotonic() - began
            share = (time.process_time() - used) / len(active)  # of the processor time, for each run
            for i in active:
                folder = places[i]
                problem = breakdown(states, log, spread, i, program.learner, config.env)
                if problem:
                    kept = progress_of(folder)[0]
                    left = f"{folder} keeps its checkpoint of step {kept}" if kept else "it had no checkpoint yet"
                    where = f"seed {seeds[i]}: between steps {before[i]} and {steps[i]}"
                    broken[i] = f"{where} {problem}, in a new run ({left})"
                    continue
                line = metrics_line(states, log, spread, i, program.learner, config.budget, seconds)
                line["processor_seconds"] = round(share, 3)
                if i in due:
                    line["trial_return"] = float(scores[i])
                if returns[i]:
                    line["returned_to"] = int(best.steps[i])
                line |= news(states.found, i, int(before[i]), box)
                runs.append_metrics(folder, line)
                if report:
                    report(folder, line)
            overdue = time.monotonic() - saved > CHECKPOINT_SECONDS or interrupted.is_set()
            for i in active:
                if i not in broken and (overdue or i not in unfinished):
                    _save(places[i], states, best, i)
            if overdue:
                saved = time.monotonic()
            if interrupted.is_set():
                raise KeyboardInterrupt
    if broken:
        raise DivergedError(*broken.values())


def make_program(config: Config) -> Program:
    """The functions that a run consists of: a scan, or a loop around a stateful simulator."""
    env = config.parts.environment.make(config.environment)
    if isinstance(env, HostEnvironment):
        return host.make_program(config)
    refuse_wrong_shapes(env, config.env)
    return scan.make_program(config)


def _read_member(folder: Path | None, seed: int, program: Program, budget: Budget) -> tuple[RunState, Best]:
    """Where a run is: at its checkpoint or, if it has none or has no folder here, at its beginning.

    The replay buffer and the snapshots have as many rows as the budget needs, so that those of a run whose budget was
    changed have another number. A replay buffer that is as long as the budget has not been written to beyond its end.
    """
    run_template, best_template = templates(program)
    path = folder / runs.CHECKPOINT if folder else None
    if path and path.exists():
        used = _counter(path, "run.steps")
        rows = {"run.agent.memory": used, "run.agent.masks": used, "run.snapshots": 0}
        run = checkpoint.load(path, "run", run_template, rows=rows)
        best = checkpoint.load(path, "best", best_template)
        if program.learner.corrected and budget.lasts(int(run.episodes), int(run.steps)):
            # One that ended before it was given a longer budget: it learns on, so that its correction is no longer its.
            agent: Any = run.agent
            plain = program.learner.corrected(agent.belief, no_correction())
            run = dataclasses.replace(run, agent=dataclasses.replace(agent, belief=plain))
    else:
        run = program.init(jax.random.key(seed), runs.load_prior(folder, program.learner) if folder else None)
        # Until the first trial there is nothing better than the prior.
        best = Best(
            belief=run.agent.belief,
            trial_return=np.asarray(-np.inf, best_template.trial_return.dtype),  # type: ignore[arg-type]
            steps=np.int32(0),  # type: ignore[arg-type]
            progress=np.zeros_like(run.held),  # type: ignore[arg-type]
        )
        best = with_early(best)
    if folder:
        # A crash may have come between metrics and checkpoint: forget what will be done again.
        runs.trim_metrics(folder, int(run.steps))
    return run, best


@functools.partial(jax.jit, donate_argnums=0)
def _put(group: T, member: T, i: int) -> T:
    """A group's records with those of one member in their place."""
    return jax.tree.map(lambda all, one: all.at[i].set(one), group, member)


def _make_return(program: Program) -> Callable[[RunState, Best, Any], RunState]:
    """A function that takes some runs back to their best weights, whose robust level they keep."""

    def go_back(states: RunState, best: Best, back: Any) -> RunState:
        agent = jax.vmap(program.learner.restored)(states.agent, best.belief)
        agent, held = jax.vmap(select)(back, (agent, best.progress), (states.agent, states.held))
        return dataclasses.replace(states, agent=agent, held=held)

    return jax.jit(go_back, donate_argnums=0)


def _corrected(
    program: Program, correct: Callable[[Any, jax.Array], Correction], states: RunState, best: Best, ended: np.ndarray
) -> tuple[RunState, Best]:
    """The runs with their values corrected by held-out play, where they have ended."""
    learner = program.learner
    assert learner.corrected
    again = learner.corrected

    def corrected(belief: Any, level: jax.Array) -> Any:
        """Whatever correction it had: the best weights of a run that was made longer may have one."""
        return again(belief, correct(again(belief, no_correction()), level))

    for i in map(int, np.flatnonzero(ended)):
        run, kept = jax.tree.map(lambda leaf, i=i: leaf[i], (states, best))
        clock = Clock(run.steps, 1.0, run.held[0] if run.held.size else -1.0)
        level = jnp.asarray(learner.level(run.agent, clock), float)
        last = corrected(run.agent.belief, level)
        if _equal(run.agent.belief, kept.belief):  # as after a run has settled
            other = last
        else:
            other = corrected(kept.belief, level)
        agent = dataclasses.replace(run.agent, belief=last)
        changed = dataclasses.replace(run, agent=agent), dataclasses.replace(kept, belief=other)
        states, best = _put((states, best), changed, i)
    return states, best


def _equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def _unfinished(states: RunState, config: Config) -> list[int]:
    return [int(i) for i in np.flatnonzero(config.budget.lasts(np.asarray(states.episodes), np.asarray(states.steps)))]


def _save(folder: Path, states: RunState, best: Best, i: int) -> None:
    run, kept = jax.tree.map(lambda leaf: np.asarray(leaf[i]), (states, best))
    checkpoint.save(folder / runs.CHECKPOINT, {"run": run, "best": kept})


@contextlib.contextmanager
def interruptions(on_interrupt: OnInterrupt | None = None) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that a chunk is never cut in two.

    Args:
      on_interrupt: called at once, from another thread: the main thread sees a signal only after the compiled
        code that it is in.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals reach the main thread only
        return
    asked = 0

    def note(number: int, frame: Any) -> None:
        nonlocal asked
        asked += 1
        event.set()
        if asked > 1:
            raise KeyboardInterrupt  # at once, with the last checkpoint

    def watch() -> None:
        count = 0
        while number := received.recv(1):
            if on_interrupt and number[0] in old:
                count += 1
                on_interrupt(count)

    received, sent = socket.socketpair()
    sent.setblocking(False)
    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    old_wakeup = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, name="deeprok-interruptions", daemon=True)
    watcher.start()
    try:
        yield event
    finally:
        signal.set_wakeup_fd(old_wakeup)
        for number, handler in old.items():
            signal.signal(number, handler)
        sent.close()
        watcher.join()
        received.close()


def is_finished(folder: Path, config: Config) -> bool:
    """Whether a run has used up its budget."""
    steps, episodes = progress_of(folder)
    return not config.budget.lasts(episodes, steps)


def progress_of(folder: Path) -> tuple[int, int]:
    """Steps and episodes that a run's checkpoint holds; zeros if it has none yet."""
    path = folder / runs.CHECKPOINT
    if not path.exists():
        return 0, 0
    return _counter(path, "run.steps"), _counter(path, "run.episodes")


def step_of_best(folder: Path) -> int:
    """The step whose weights are the best ones that a run's checkpoint holds; 0 before the first trial."""
    path = folder / runs.CHECKPOINT
    return _counter(path, "best.steps") if path.exists() else 0


def _counter(path: Path, name: str) -> int:
    number: Any = jax.ShapeDtypeStruct((), np.dtype("int32"))
    return int(checkpoint.load(path, name, number, verify="part"))
