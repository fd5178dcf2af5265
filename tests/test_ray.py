"""Sweeps on Ray: workers, nodes and drivers that die, folders that no other machine sees, users' modules."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from killing import contents, eager_environment, finish, running, start, wait_for, workers_of
from rich.console import Console
from sweeping import FAST, as_toml

from deeprok.core.errors import DeeprokError
from deeprok.runs import folder as runs
from deeprok.sweeps import on_ray
from deeprok.sweeps.sweep import SweepResult, sweep
from deeprok.training.loop import progress_of
from studies import engine, exam, plan

pytestmark = pytest.mark.slow

SPEC: dict[str, Any] = {
    "algorithm": ["ddqn", "rtd_dqn"],
    "env": "my_lane:LANE",
    "seeds": 2,
    "settings": {**FAST, "learning_rate": [1e-3, 1e-2]},
}


def write_users_files(folder: Path) -> None:
    """A sweep of a user's environment, which is in a module that needs others."""
    (folder / "my_lane.py").write_text("from my_boat import LANE\n")
    (folder / "my_boat.py").write_text("from my_parts import drift\n\nLANE = drift(width=0.8)\n")
    (folder / "my_parts.py").write_text((Path(__file__).parent / "own_parts.py").read_text())
    (folder / "spec.toml").write_text(as_toml(SPEC))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_users_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")  # where Ray puts the token of a cluster that it starts
    return {**eager_environment(tmp_path_factory), "HOME": str(home)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> dict[str, list[Any]]:
    """What processes of this machine give."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_users_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        finish(start("sweep spec.toml --jobs 2 --out", folder / "out", environment))
    return of_sweep(folder / "out")


def of_sweep(out: Path) -> dict[str, list[Any]]:
    return {path.name: contents(path) for path in out.iterdir() if path.is_dir()}


def begun(out: Path) -> list[Path]:
    """Run folders that have been trained, but not to the end."""
    return [path.parent for path in out.rglob(runs.METRICS) if 0 < progress_of(path.parent)[1] < FAST["episodes"]]


@pytest.fixture(scope="module")
def nodes(environment: dict[str, str]) -> Iterator[Any]:
    """A cluster of two nodes with a core each; drivers are on the first."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with on_ray.forking():
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield cluster
        cluster.shutdown()


@pytest.fixture
def cluster(nodes: Any) -> Any:
    """The cluster, with its second node also after a test that has killed it."""
    if not nodes.worker_nodes:
        with on_ray.forking():
            nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    return nodes


def on(cluster: Any) -> str:
    return f"sweep spec.toml --executor ray --address {cluster.address} --out"


def test_a_cluster_of_its_own(here: Path, environment: Any, undisturbed: Any) -> None:
    process = start("sweep spec.toml --executor ray --jobs 2 --out", here / "out", environment)
    errors = process.communicate(timeout=600)[1].decode()
    assert process.returncode == 0, errors
    assert all("trials: " in line for line in errors.splitlines()), errors  # progress, and nothing that Ray says
    assert of_sweep(here / "out") == undisturbed


def test_a_node_that_dies(here: Path, cluster: Any, environment: Any, undisturbed: Any) -> None:
    out = here / "out"
    process = start(on(cluster), out, environment)
    wait_for(lambda: len({folder.parent for folder in begun(out)}) == 2, process, 0.02)
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    assert process.poll() is None
    finish(process)
    assert of_sweep(out) == undisturbed


def holder(folder: Path) -> int:
    """The process that holds a run folder's lock: a worker of Ray."""
    while not (text := (folder / runs.LOCK).read_text()).isdigit():  # it is about to write who it is
        time.sleep(0.01)
    return int(text)


def test_workers_that_die(here: Path, cluster: Any, environment: Any, undisturbed: Any) -> None:
    out = here / "out"
    process = start(on(cluster), out, environment)
    wait_for(lambda: begun(out), process, 0.02)
    first = begun(out)[0]
    (training,) = workers_of(holder(first))
    os.kill(training, signal.SIGKILL)  # the process that trains
    wait_for(lambda: workers_of(holder(first)) not in ([], [training]), process, 0.02)
    os.kill(holder(first), signal.SIGKILL)  # the worker of Ray, whose process ends with it
    finish(process)
    assert of_sweep(out) == undisturbed


def test_a_driver_that_dies(here: Path, cluster: Any, environment: Any, undisturbed: Any) -> None:
    out = here / "out"
    process = start(on(cluster), out, environment)
    wait_for(lambda: begun(out), process, 0.02)
    training = [worker for folder in begun(out) for worker in workers_of(holder(folder))]
    assert training
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60.0
    while any(map(running, training)):
        assert time.monotonic() < deadline, "a worker outlives the driver"
        time.sleep(0.1)
    finish(start(on(cluster), out, environment))
    assert of_sweep(out) == undisturbed


@pytest.fixture
def train_unseen(here: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], SweepResult]:
    """Trains the sweep as if no node saw its folder, nor the user's modules."""
    collect = on_ray.own_modules

    def own_modules() -> dict[str, bytes]:
        found = collect()
        for path in here.glob("my_*.py"):
            assert path.name in found
            path.unlink()
        return found

    def train() -> SweepResult:
        write_users_files(here)
        return sweep(SPEC, here / "out", executor="ray", address=cluster.address)

    monkeypatch.setattr(on_ray, "own_modules", own_modules)
    monkeypatch.setattr(on_ray, "_write_token", lambda out: "of another machine")
    return train


def test_folders_that_no_node_sees_travel_there_and_back(
    here: Path, train_unseen: Callable[[], SweepResult], undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = on_ray._OnRay.train

    def stopped_soon(self: Any, groups: Any, report: Any, on_interrupt: Any, on_end: Any) -> None:
        def report_and_stop(folder: Path, line: Any) -> None:
            report(folder, line)
            if not stopped.is_set():
                stopped.set()
                os.kill(os.getpid(), signal.SIGINT)

        original(self, groups, report_and_stop, on_interrupt, on_end)

    stopped = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(on_ray._OnRay, "train", stopped_soon)
        with pytest.raises(KeyboardInterrupt):
            train_unseen()
    assert begun(here / "out")  # what was under way has come back
    found = train_unseen()
    assert [each.state for each in found.trials] == ["finished"] * 4
    assert of_sweep(here / "out") == undisturbed


def test_what_a_task_needs_reaches_ray(here: Path, environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks fit into a cluster of this size, whatever there is of the rest; a user's own connection is used."""
    import ray

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # A process keeps the way in which it first proved itself to a cluster; the other cluster here asks for none.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with on_ray.forking():
        ray.init("local", num_cpus=8, num_gpus=2, _memory=8e9, include_dashboard=False, log_to_driver=False)
    least: dict[str, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            there = ray.available_resources()
            if "CPU" not in there:  # some CPUs stay free, so this is a cluster that has not told yet
                continue
            for name in ("CPU", "GPU", "memory"):
                least[name] = min(least.get(name, 8e9), there.get(name, 0.0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        spec = {**SPEC, "settings": {**FAST, "learning_rate": [1e-3, 1e-2, 1e-1]}}
        found = sweep(spec, here / "out", executor="ray", cpus=1.5, gpus=1, memory=1.25)
    finally:
        ended.set()
        watcher.join()
        ray.shutdown()
    assert {each.state for each in found.trials} == {"finished"}
    assert least == {"CPU": 8 - 2 * 1.5, "GPU": 0.0, "memory": 8e9 - 2 * 1.25e9}


def test_a_study_trains_on_a_cluster_too(here: Path, cluster: Any) -> None:
    changes = {**FAST, "hidden": (4,)}
    del changes["preset"]
    row = plan.Row("ddqn", "ddqn", "tuned", changes)
    its = engine.runs_of(here / "out", plan.Comparison("some", [row], [0, 1], exam.Exam(0)))
    engine.prepare(here / "out", its)
    options = engine.Options(out=here / "out", executor="ray", address=cluster.address)
    said = io.StringIO()
    engine.train("some", its, options, lambda what, work: None, Console(file=said))
    assert all(run.finished for run in its), said.getvalue()


def test_clusters_that_are_too_small_or_not_there(here: Path, cluster: Any) -> None:
    with pytest.raises(DeeprokError, match=r"no node of the Ray cluster has what a task needs: CPU 64; ask for less"):
        sweep(SPEC, here / "out", executor="ray", address=cluster.address, cpus=64)
    with pytest.raises(DeeprokError, match=r"can't reach the Ray cluster at 127.0.0.1:1: .*refused"):
        sweep(SPEC, here / "out", executor="ray", address="127.0.0.1:1")


def test_a_cluster_that_goes_away(here: Path, nodes: Any, environment: Any, undisturbed: Any) -> None:
    """The last test, since there is no cluster after it."""
    out = here / "out"
    process = start(on(nodes), out, environment)
    wait_for(lambda: begun(out), process, 0.02)
    nodes.shutdown()
    process.communicate(timeout=300)
    assert process.returncode != 0  # Ray itself ends a driver whose node is gone
    finish(start("sweep spec.toml --jobs 2 --out", out, environment))  # what Ray began, processes end
    assert of_sweep(out) == undisturbed
