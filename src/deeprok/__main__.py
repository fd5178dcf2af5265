"""`python -m deeprok` is the command line."""

import sys

from deeprok.cli.main import program

sys.exit(program())
