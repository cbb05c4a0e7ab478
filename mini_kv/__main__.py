"""`python -m mini_kv`: the same as the command `mini-kv`."""

import sys

from mini_kv.cli import main

sys.exit(main())
