"""The page, served while runs train."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from deeprok.core.errors import DeeprokError, shown
from deeprok.report.data import Report
from deeprok.report.page import make_page
from deeprok.report.scenes import find_agents, read_scenes
from deeprok.runs import folder as runs
from deeprok.runs.folder import Keep

#: Hosts that a browser on this machine may ask for. Any other name would be that of a page that had its own name point
#: here, to read what is served.
_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Watch:
    """A server that shows the runs in a folder as they are at the moment; it reads, and writes nothing.

    It answers two addresses, the page and its data, whatever else is asked for: no path of a request is ever one of the
    disk.

    Attributes:
      address: what to open in a browser.
    """

    address: str

    def __init__(self, folder: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 0, keep: Keep = "best"):
        """Takes a port, and does not answer yet.

        Args:
          folder: a run folder, a folder of seeds, or a folder of those.
          host: the address that it listens on; by default none that another machine reaches.
          port: 0 for one that is free.
          keep: the weights that act.
        """
        if not 0 <= port <= 65535:
            raise DeeprokError(f"port is {port}; it must be from 0 to 65535")
        self._folder, self._keep = Path(folder), keep
        find_agents([self._folder])
        self._lock = threading.Lock()
        self._stamp, self._report = "", ""
        names = {host, *_OWN_NAMES} if _is_loopback(host) else None
        try:
            self._server = _Server((host, port), _handler(self._answer, names), ":" in host)
        except OSError as error:
            raise DeeprokError(f"can't listen on {shown(host)}, port {port}: {error.strerror or error}") from error
        at = self._server.server_address
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{at[1]}/"

    def serve(self) -> None:
        """Answers until it is closed."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, address: str) -> tuple[HTTPStatus, str, str]:
        """Status, type and text for an address."""
        parts = urlsplit(address)
        if parts.path not in ("/", "/data.json"):
            return HTTPStatus.NOT_FOUND, "text/plain", "There is a page at / and nothing else.\n"
        try:
            with self._lock:
                self._read()
                stamp, report = self._stamp, self._report
        except DeeprokError as error:  # a file that is being written
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n"
        if parts.path == "/data.json":
            if parse_qs(parts.query).get("have") == [stamp]:
                return HTTPStatus.NO_CONTENT, "application/json", ""
            return HTTPStatus.OK, "application/json", report
        return HTTPStatus.OK, "text/html", make_page(report)

    def _read(self) -> None:
        """Reads the runs, if something has changed."""
        stamp = _stamp(find_agents([self._folder]))
        if stamp == self._stamp:
            return
        scenes = read_scenes([self._folder], self._keep, plays=False)
        content = Report("Where does it break?", f"deeprok watch {self._folder}", version("deeprok"), True, scenes)
        self._report = json.dumps(json.loads(content.to_json()) | {"stamp": stamp}, ensure_ascii=False)
        self._stamp = stamp


def _stamp(agents: list[Path]) -> str:
    """A short name of the state that the files of runs are in."""
    seen = hashlib.sha256()
    for agent in agents:
        for folder in {agent, *runs.find(agent)}:
            for path in sorted(folder.iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    about = path.stat()
                    seen.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return seen.hexdigest()[:16]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Any, six: bool) -> None:
        if six:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)


def _handler(answer: Callable[[str], tuple[HTTPStatus, str, str]], names: set[str] | None) -> type[Any]:
    """What answers requests.

    Args:
      answer: address -> status, type and text.
      names: the hosts that may be asked for; None for any.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "deeprok", ""

        def do_GET(self) -> None:
            self._reply(True)

        def do_HEAD(self) -> None:
            self._reply(False)

        def _reply(self, whole: bool) -> None:
            host = self.headers.get("Host", "")
            name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
            if names is not None and name not in names:
                status, kind, text = HTTPStatus.FORBIDDEN, "text/plain", "This server has another name.\n"
            else:
                status, kind, text = answer(self.path)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            if whole:
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    return Handler
