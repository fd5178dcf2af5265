"""Where the command line writes: results to standard output, everything else to standard error."""

import sys

from deeprok.core.console import WordConsole

out = WordConsole(width=None if sys.stdout.isatty() else 160)
err = WordConsole(stderr=True)
