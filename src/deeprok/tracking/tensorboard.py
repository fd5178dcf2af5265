"""Event files, as TensorBoard reads them.

Three messages of protocol buffers with six fields, in records with checksums: written by hand, since TensorBoard and
tensorboardX bring packages that nothing else here needs.

The file is written anew when a run is resumed, from its `metrics.jsonl`. So it has each step once, whatever came
between.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from deeprok.core.files import write_atomically
from deeprok.runs import folder as runs
from deeprok.tracking.base import TrackedRun, numbers_of

#: The file in a run folder; the name is one that TensorBoard looks for.
EVENTS = "events.out.tfevents.0.deeprok"

_VERSION = b"brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # CRC-32C, Castagnoli's, with its bits reversed


class TensorBoard:
    """Writes the event file of a run into its folder."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._began = 0.0

    def open(self, run: TrackedRun) -> int:
        """Begins the file anew."""
        self._began = began(run.folder)
        write_atomically(run.folder / EVENTS, record(version_event(self._began)))
        self._file = open(run.folder / EVENTS, "ab", buffering=0)  # noqa: SIM115, until `close`
        return -1

    def log(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Adds an event."""
        assert self._file
        self._file.write(record(scalars_event(self._began + seconds, step, values)))

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()


def began(folder: Path) -> float:
    """When a run began, in seconds since 1970, as far as its folder tells: events are dated by the time of training."""
    return (folder / runs.CONFIG).stat().st_mtime


def events_of(folder: Path) -> bytes:
    """The event file of a run, from its `metrics.jsonl`."""
    start, seconds = began(folder), 0.0
    parts = [record(version_event(start))]
    for line in runs.read_metrics(folder):
        seconds += line.get("seconds", 0.0)
        parts.append(record(scalars_event(start + seconds, line["steps"], numbers_of(line))))
    return b"".join(parts)


def version_event(wall_time: float) -> bytes:
    """The first event of a file."""
    return _double(1, wall_time) + _bytes(3, _VERSION)


def scalars_event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """The event of some numbers by name."""
    summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
    return _double(1, wall_time) + _key(2, 0) + _varint(step) + _bytes(5, summary)


def record(data: bytes) -> bytes:
    """A record of a file: length and data, each with its masked checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def checksum(data: bytes) -> int:
    """CRC-32C."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _table() -> Iterable[int]:
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        yield value


_TABLE = tuple(_table())


def _masked(data: bytes) -> bytes:
    """The checksum as records have it: rotated by 15 bits, and a constant added."""
    value = checksum(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    digits = []
    while value >= 128:
        digits.append(value % 128 + 128)
        value //= 128
    return bytes([*digits, value])


def _key(field: int, kind: int) -> bytes:
    return _varint(8 * field + kind)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _key(field, 5) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value
