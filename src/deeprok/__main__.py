"""`python -m deeprok` is the command line."""

import sys

from deeprok.cli import main

sys.exit(main())
