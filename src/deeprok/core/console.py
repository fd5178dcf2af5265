"""What users read: lines that wrap at words on a terminal, and stay whole in a file."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console
from rich.text import Text


class WordConsole(Console):
    """A console for any width.

    Sentences printed with `soft_wrap` wrap at words on a terminal, and a word longer than a line (a
    path, say) stays whole, so that it can be copied. In a file they are not wrapped at all, and no
    line ends with blanks, which tables are otherwise filled up with. What users wrote stays as it is:
    `:x:` is no picture.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Whoever reads it may stop before the end."""
        raise BrokenPipeError

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """As rich's, but for the ends of lines."""
        if self.is_terminal:
            if soft_wrap:
                markup = options.get("markup", True)
                objects = tuple(_wrap(x, self.width, markup) if isinstance(x, str) else x for x in objects)
            super().print(*objects, soft_wrap=soft_wrap, **options)
            return
        with self.capture() as captured:
            super().print(*objects, soft_wrap=soft_wrap, **options)
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
        self.file.flush()


def _wrap(sentence: str, width: int, markup: bool) -> Text:
    text = Text.from_markup(sentence, emoji=False) if markup else Text(sentence)
    wrapped = [
        "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False))
        for line in text.plain.split("\n")
    ]
    text.plain = "\n".join(wrapped)  # a line break for a blank: what is bold stays bold
    return text
