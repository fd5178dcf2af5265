"""What MkDocs calls while it builds the pages.

LaTeX becomes MathML: browsers show it by themselves, and nothing is fetched. Comments are left out: those of
`stored_numbers.py` say where a number comes from, and hold brackets that could be taken for links.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# What pymdownx.arithmatex leaves in the page: \( … \) in a line of text, \[ … \] as a paragraph.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_page_markdown(text: str, **_: Any) -> str:
    """The page's Markdown without comments."""
    return _COMMENT.sub("", text)


def on_page_content(content: str, **_: Any) -> str:
    """The page's HTML with its formulas as MathML."""
    return _FORMULA.sub(_to_mathml, content)


def _to_mathml(found: re.Match[str]) -> str:
    latex = html.unescape(found[2]).strip().replace("{aligned}", "{align*}")  # the converter knows the latter alone
    inline = found[1] == "span"
    mathml = convert(latex, display="inline" if inline else "block")
    if unknown := re.search(r">(\\\w+|&amp;)<", mathml):
        raise PluginError(f"{unknown[1]} can't be shown as MathML, in: {latex}")
    return mathml if inline else f'<div class="formula">{mathml}</div>'
