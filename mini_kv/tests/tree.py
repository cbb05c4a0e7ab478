"""A seed that follows from what is committed: a rebase keeps it, a changed file changes it."""

import functools
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def tree() -> str:
    """Return the id of the tree of the last commit, or "0" where there is no git or no commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "HEAD^{tree}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "0"
    return done.stdout.strip() or "0"


def drawn(what: str, below: int, tree_id: str | None = None) -> int:
    """Return a number from 0 to `below` - 1 that follows from the tree and from what it is drawn for."""
    digest = hashlib.sha256(f"{what} {tree() if tree_id is None else tree_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % below
