"""Run a command while no other one runs under this: `python .ci/alone.py make ...` sets up an environment undisturbed.

The lock is the system's, on this very file: it ends with the command, however that ends, so none is left behind.
"""

import fcntl
import os
import sys
from pathlib import Path

lock = os.open(Path(__file__), os.O_RDONLY)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("another make is setting up, waiting", flush=True)
    fcntl.flock(lock, fcntl.LOCK_EX)
except OSError:  # some network drives have no locks
    pass
os.set_inheritable(lock, True)  # what the command starts holds the lock, too
os.execvp(sys.argv[1], sys.argv[1:])
