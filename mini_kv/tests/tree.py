"""The seed of what a run takes a sample of: the committed files, so that a rebase does not change what was tested."""

import subprocess
from pathlib import Path


def tree_of_commit() -> str:
    """Return the id of the commit's tree, or "0" without git."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD^{tree}"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "0"
    return done.stdout.strip()
