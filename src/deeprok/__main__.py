"""`python -m deeprok` is the command line."""

import sys

from deeprok.cli.main import main

sys.exit(main())
