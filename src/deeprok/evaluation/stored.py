"""Evaluations as files of a run folder, side by side: one for each set of options, or for each name.

`evaluation.json` is that of the default options. Without a name the file names the options that differ from them, as in
`evaluation-policy=lcb,episodes=100.json`. With one it is `evaluation-NAME.json`; a name holds no =, so that neither
takes the other's place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deeprok.core.errors import DeeprokError, shown, unknown
from deeprok.core.files import parse_json, read_bytes
from deeprok.evaluation.result import Evaluation, default_axes, merge, same_axes
from deeprok.runs import folder as runs

#: What an evaluation with the default options is called.
DEFAULT = "default"

_STEM, _SUFFIX = runs.EVALUATION.rsplit(".", 1)

#: The longest part of a file's name that says of which options it is; file systems take 255 bytes in all.
_LONGEST = 200


def check_name(name: object) -> None:
    """Raises unless an evaluation can be called so."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise DeeprokError(
            f"name is {shown(name)}; it must be a word of at most 100 letters, digits, -, _ and ., which begins with a "
            "letter or a digit"
        )
    if name == DEFAULT:
        raise DeeprokError(f"name is '{DEFAULT}', which is that of the evaluation with the default options")


def file_name(
    axes: Mapping[str, np.ndarray], box: Mapping[str, Any], changed: Mapping[str, Any], name: str | None = None
) -> str:
    """The file that stores an evaluation: one for each question, so that no other question's answer is lost.

    Args:
      axes: the grid.
      box: the run's box, which the default grid covers.
      changed: the other options that decide the result and are not the default ones.
      name: what the evaluation is called; None to name its options.
    """
    if name is not None:
        return _file(name)
    words = [f"{option}={value}" for option, value in changed.items()]
    if not same_axes(axes, default_axes(box)):
        words += [f"{parameter}={_axis_word(values)}" for parameter, values in axes.items()]
    return _file(_shortened(",".join(words)))


def _file(label: str) -> str:
    return f"{_STEM}-{label}.{_SUFFIX}" if label else runs.EVALUATION


def _shortened(words: str) -> str:
    if len(words) <= _LONGEST:
        return words
    return f"{words[:_LONGEST]}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"


def _axis_word(values: np.ndarray) -> str:
    first, last, count = f"{values[0]:g}", f"{values[-1]:g}", len(values)
    word = first if count == 1 else f"{first}-{last}-{count}"
    if np.allclose(values, np.linspace(float(first), float(last), count), rtol=1e-9, atol=0):
        return word
    # The ends, or as many digits of them, don't tell the values.
    return f"{word}-{hashlib.sha256(values.tobytes()).hexdigest()[:6]}"


def label_of(file: str) -> str:
    """What a stored evaluation is called: its name, or the options that differ from the default ones."""
    return file.removeprefix(_STEM).removesuffix(f".{_SUFFIX}").removeprefix("-") or DEFAULT


def read(folder: Path, keep: str = "best") -> Evaluation | None:
    """The evaluation of a run's best or last weights with the default options, if its folder stores one."""
    file = _file("" if keep == "best" else f"keep={keep}")
    return read_stored([folder], file) if (folder / file).exists() else None


def stored_files(folders: Sequence[Path]) -> list[str]:
    """The files of the evaluations that every one of these runs has stored, the newest first."""
    patterns = (runs.EVALUATION, f"{_STEM}-*.{_SUFFIX}")
    found = [{path.name: path for pattern in patterns for path in folder.glob(pattern)} for folder in folders]
    common = set[str].intersection(*map(set, found)) if found else set()
    return sorted(common, key=lambda name: (-max(each[name].stat().st_mtime_ns for each in found), name))


def find_stored(folders: Sequence[Path], label: str) -> str:
    """The file of the evaluation that is called so, which every one of these runs must have stored."""
    known = {label_of(file): file for file in stored_files(folders)}
    if label not in known:
        if not known:
            raise DeeprokError(f"name is {shown(label)}, but {folders[0]} has no stored evaluation")
        raise unknown("name", label, known)
    return known[label]


def read_stored(folders: Sequence[Path], file: str) -> Evaluation:
    """One evaluation of several seeds, from the file of that name in the folder of each."""
    paths = [folder / file for folder in folders]
    return merge([Evaluation.from_dict(parse_json(read_bytes(path)), str(path)) for path in paths])


def to_json(evaluation: Evaluation) -> bytes:
    """The contents of the file that stores an evaluation."""
    return (json.dumps(evaluation.to_dict()) + "\n").encode()
