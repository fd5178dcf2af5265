"""The page: its modules, style and skeleton as one file of HTML.

Modules are plain JavaScript that browsers read as it is. A file on disk can't import others, so that each becomes a
function, in the order of `MODULES`; of the language of imports and exports they use what `_as_function` reads.
"""

from __future__ import annotations

import re
from importlib.resources import files

from deeprok.core.errors import DeeprokError
from deeprok.report.data import in_script

#: A module imports from those before it.
MODULES = (
    *("random.js", "network.js", "drawing.js"),
    *("acrobot.js", "cartpole.js", "mountain_car.js", "pendulum.js", "road.js", "rocket.js", "worlds.js"),
    *(
        "play.js",
        "elements.js",
        "figure.js",
        "maps.js",
        "curves.js",
        "stress.js",
        "evidence.js",
        "solved.js",
        "stage.js",
    ),
    "main.js",
)

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (function|async function|const|class) (\w+)", re.MULTILINE)


def make_page(data: str) -> str:
    """The page as HTML, which needs nothing beside it.

    Args:
      data: what it shows, `Report.to_json()`.
    """
    skeleton = source("page.html")
    for mark, text in (
        ("/* style */", source("style.css")),
        ("/* data */", in_script(data)),
        ("/* modules */", bundle()),
    ):
        before, found, after = skeleton.partition(mark)
        assert found, mark
        skeleton = before + text + after
    return skeleton


def data_of(page: str) -> str:
    """What a page shows, as `make_page` was given it but for escapes.

    Args:
      page: the page as HTML.
    """
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    if not found:
        raise DeeprokError("this is no page of deeprok report: it has no data")
    return found[1]


def source(name: str) -> str:
    """A file of the page."""
    return files("deeprok.report").joinpath("page", name).read_text("utf-8")


def bundle() -> str:
    """All modules as one script."""
    return "\n".join(["const modules = {};", *(_as_function(name, source(name)) for name in MODULES)])


def _as_function(name: str, text: str) -> str:
    """A module as a function that is called at once, and returns what the module exports."""
    exported = [match[2] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r'const { \1 } = modules["\2"];', text))
    assert not re.search(r"^(import|export)\b", body, re.MULTILINE), f"{name} imports or exports in another way"
    assert "</script" not in body, name
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exported)} }};\n}})();'
