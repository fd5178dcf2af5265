"""The server of `deeprok watch`: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from deeprok.cli.main import main
from deeprok.core.errors import DeeprokError
from deeprok.report import Watch
from deeprok.runs import folder as runs
from tests.finished_runs import write_run


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Path, Watch]]:
    """A run, and a server of the folder that it is in."""
    run = write_run(tmp_path / "runs" / "pole")
    (tmp_path / "secret.txt").write_text("hidden")
    server = Watch(tmp_path / "runs")
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield run, server
    server.close()
    thread.join()


def ask(server: Watch, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    where = urlsplit(server.address)
    assert where.hostname
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_serves_the_page_and_newer_data(watched: tuple[Path, Watch]) -> None:
    run, server = watched
    html = urlopen(server.address).read().decode()
    assert '"live": true' in html
    answer = ask(server, "/data.json")
    content = json.loads(answer.read())
    (agent,) = content["scenes"][0]["agents"]
    assert agent["curves"][0]["steps"] == [60]
    assert ask(server, f"/data.json?have={content['stamp']}").status == 204
    runs.append_metrics(run, {"steps": 90, "episodes": 4, "returns": [30.0], "seconds": 1.0})
    answer = ask(server, f"/data.json?have={content['stamp']}")
    assert answer.status == 200
    assert json.loads(answer.read())["scenes"][0]["agents"][0]["curves"][0]["steps"] == [60, 90]


@pytest.mark.parametrize(
    "path",
    ["/secret.txt", "/../secret.txt", "/..%2fsecret.txt", "/pole/config.json", "//etc/passwd", "/%00", "/data.json/"],
)
def test_reaches_no_file(watched: tuple[Path, Watch], path: str) -> None:
    answer = ask(watched[1], path)
    assert answer.status == 404
    assert b"hidden" not in answer.read()


def test_only_reads(watched: tuple[Path, Watch]) -> None:
    run, server = watched
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/data.json", method).status == 501
    head = ask(server, "/", "HEAD")
    assert (head.status, head.read()) == (200, b"")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_answers_its_own_name_alone(watched: tuple[Path, Watch]) -> None:
    """A page of the web whose name points to this machine gets nothing."""
    _, server = watched
    assert urlsplit(server.address).hostname == "127.0.0.1"
    assert ask(server, "/data.json", Host="evil.example:80").status == 403
    assert ask(server, "/data.json", Host="localhost:80").status == 200


def test_says_why_it_can_not_read(watched: tuple[Path, Watch]) -> None:
    run, server = watched
    text = (run / "config.json").read_text()
    (run / "config.json").write_text("{")
    answer = ask(server, "/data.json")
    assert answer.status == 503
    assert b"config.json" in answer.read()
    (run / "config.json").write_text(text)
    assert ask(server, "/data.json").status == 200


def test_mistakes(tmp_path: Path, watched: tuple[Path, Watch], capsys: pytest.CaptureFixture[str]) -> None:
    run, server = watched
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "there is no run folder" in capsys.readouterr().err
    with pytest.raises(DeeprokError, match="port is 70000; it must be from 0 to 65535"):
        Watch(run, port=70000)
    with pytest.raises(DeeprokError, match=r"can't listen on '127\.0\.0\.1', port"):
        Watch(run, port=int(urlsplit(server.address).port or 0))


def test_the_command_ends_with_ctrl_c(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    command = [sys.executable, "-m", "deeprok", "watch", str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        (address,) = re.findall(r"open (http://127\.0\.0\.1:\d+/) ", line)
        assert urlopen(address).status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
