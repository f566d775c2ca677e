"""`python -m deck`."""

import sys

from deck.cli import main

sys.exit(main())
