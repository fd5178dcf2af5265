"""Several simulators that one agent learns in, in this process and in others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import own_simulators
import pytest
from test_host import SMALL, settings, stopped_once
from test_jobs import contents, start

from deeprok.agents import replay
from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.runs import folder as runs
from deeprok.runs.settings import Config
from deeprok.training import host, players
from deeprok.training.jobs import train
from deeprok.training.loop import progress_of

pytestmark = pytest.mark.usefixtures("compiled_once")


def played(config: Config, chunks: int, processes: bool = False) -> tuple[Any, list[Any]]:
    """The state of a run after some chunks, and their logs."""
    program = host.make_program(config, processes)
    states = jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf)[None]), program.init(jax.random.key(config.seed)))
    logs = []
    for index in range(chunks):
        states, log = program.advance(states, index)
        logs.append(jax.tree.map(np.asarray, log))
    program.close()
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), states), logs


def children(parent: str = "self") -> set[int]:
    """The processes that one, by default this one, has started and that have not ended."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("rtd_dqn", {"simulators": 2, "memory": 2}),
        # Several updates in a turn, and what belongs to an episode.
        pytest.param("rtd_dqn", {"simulators": 4, "train_every": 2}, marks=pytest.mark.slow),
        pytest.param("ddqn", {"simulators": 2, "train_every": 4}, marks=pytest.mark.slow),
        pytest.param("boot_dqn", {"simulators": 2}, marks=pytest.mark.slow),
        pytest.param(
            "ekf_dqn",
            {"simulators": 4, "train_every": 1, "explore": "thompson", "recalibrate": False},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_processes_play_as_this_one_does(algorithm: str, changes: dict[str, Any]) -> None:
    config, before = settings(algorithm, "CartPole-v1", **changes), children()
    here, there = (played(config, 2, processes) for processes in (False, True))
    for one, other in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_array_equal(one, other)
    assert children() == before


@pytest.mark.parametrize(("count", "every"), [(2, 2), pytest.param(6, 2, marks=pytest.mark.slow)])
def test_each_simulator_has_every_nth_step_of_the_run(count: int, every: int) -> None:
    """The replay holds N episodes in turns: a step begins where the simulator's last one ended, or anew.

    The budget ends with an episode, which may be within a turn; what the others did in it is not learned from.
    """
    config = settings(
        "ddqn", "CartPole-v1", simulators=count, train_every=every, episodes=9, steps=0, chunk_steps=480, seed=4
    )
    run, (log, *_) = played(config, 1)
    steps, ended = int(run.steps), log.ended.reshape(-1)
    assert (int(run.episodes), ended.sum()) == (9, 9)
    assert ended[steps - 1]
    seen = jax.tree.map(np.asarray, replay.unpack(jnp.asarray(run.agent.memory), 4))
    assert (seen.obs[:steps].any(axis=1)).all()
    assert not seen.obs[steps:].any()
    for t in range(count, steps):
        follows = np.array_equal(seen.obs[t], seen.next_obs[t - count, 0])
        assert follows != ended[t - count]
    for i in range(count):  # every reward is 1, in Gymnasium also that of the last step
        own = np.arange(i, steps, count)
        lengths = np.diff(np.concatenate([[-1], np.flatnonzero(ended[own])]))
        np.testing.assert_array_equal(log.earned.reshape(-1)[own][ended[own]], lengths)
    # As many updates as without others, after the warm-up.
    assert log.learned.sum() == steps // every - SMALL["warm_up"] // every


@pytest.mark.slow
def test_a_resumed_run_of_several_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    config, before = settings("rtd_dqn", "CartPole-v1", simulators=2, steps=300, memory=1), children()
    stopped_once(config, tmp_path / "stopped")
    steps, _ = progress_of(tmp_path / "stopped")
    assert 0 < steps < config.steps
    assert children() == before
    assert main(["train", "--resume", str(tmp_path / "stopped")]) == 0
    train(config, tmp_path / "whole", jobs=1)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert (
        sum(len(line["returns"]) for line in runs.read_metrics(tmp_path / "whole"))
        == progress_of(tmp_path / "whole")[1]
    )


def test_an_error_in_a_simulator_is_one_sentence_and_leaves_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each takes 50 steps of the first chunk, and sinks in the second."""
    out, before = str(tmp_path / "run"), children()
    small = {**SMALL, "horizon": 10, "acting": "nominal", "simulators": 2}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in small.items() if name not in ("settle", "hidden")]
    words += ["--env", "own_simulators:FRAGILE", "--hidden", "8", "--no-settle", "--out", out]
    assert main(["train", "ddqn", *words]) == 2
    said = "simulator 1 of 2 has failed: RuntimeError: the boat has sunk"
    assert f"{said}; resume with: deeprok train --resume {out}" in " ".join(capsys.readouterr().err.split())
    assert progress_of(tmp_path / "run")[0] == 100
    assert children() == before


def test_a_packed_state_is_put_back_whatever_its_order() -> None:
    """The boat's state is its place, a number, and then its steps, which are counted."""
    env = own_simulators.BOAT
    first, second = (players.Player(env, robust=True) for _ in range(2))
    fresh = players.Fresh({"current": 0.1}, {"current": np.array([0.1, 0.2])}, 3)
    first.begin(fresh)
    for _ in range(3):
        first.play(np.int64(1), fresh)
    second.put(first.pack(), fresh, 3)
    for _ in range(30):  # into the next episode
        for one, other in zip(first.play(np.int64(0), fresh), second.play(np.int64(0), fresh), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_process_that_is_lost_is_one_sentence() -> None:
    before = children()
    several = players.players_in_processes(settings("ddqn", "own_simulators:BOAT", simulators=2))
    fresh = players.Fresh({"current": 0.1}, {}, 3)
    first = several.ask("begin", [(fresh,), (fresh,)])
    np.testing.assert_array_equal(*first)
    os.kill(max(children() - before), signal.SIGKILL)
    with pytest.raises(DeeprokError, match=r"^the process of simulator 2 of 2 has ended with code -9$"):
        several.ask("begin", [(fresh,), (fresh,)])
    assert children() == before
    np.testing.assert_array_equal(several.ask("begin", [(fresh,), (fresh,)]), first)  # by new ones
    several.close()
    assert children() == before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_simulators_end_with_the_training(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """However it ends; Ctrl-C, which a terminal sends, does not reach them, and leaves a run to go on with."""
    words = ["--env", "CartPole-v1", "--simulators", "2", "--chunk-steps", "100", "--out", str(tmp_path / "run")]
    process = start("ddqn", *words, "--trial-models", "1", "--trial-episodes", "1", "--horizon", "40")
    try:
        while not ((tmp_path / "run" / runs.METRICS).exists() and runs.read_metrics(tmp_path / "run")):
            assert process.poll() is None
            time.sleep(0.2)
        started = children(str(process.pid))
        assert len(started) == 2
        process.send_signal(number)
        assert process.wait(120) == code
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in started):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert (progress_of(tmp_path / "run")[0] > 0) == (number == signal.SIGINT)
    finally:
        process.kill()
        process.communicate()
