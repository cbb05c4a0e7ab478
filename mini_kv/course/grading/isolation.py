"""The isolation of one process: a namespace if the system provides one, and limits on every system.

`bwrap` (bubblewrap) gives a submission its own view of the machine. It has no network and no other processes. All files
outside its folder are read-only. Solutions and other submissions do not exist there. `unshare` removes only the network
and other processes. `process` works on every system: a separate process group, an empty environment, limits of time,
memory and files.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("bwrap", "unshare", "process")
SAYS = {
    "bwrap": "in its own namespace (bubblewrap): no network, no other processes, only its own files are writable",
    "unshare": "in its own namespace (unshare): no network, no other processes; it can read and write all your files",
    "process": "as a process of your account, with limits: it can use the network, read and write all your files, "
    "other hand-ins included, and end your other processes",
}
PIPES = "MINI_KV_PIPES"
LIMITS = "MINI_KV_LIMITS"
"""Variables of the submission's process, which `inside` reads."""
_MB = 1 << 20


class NoIsolationError(ValueError):
    """The requested isolation is not available here. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The isolation of submissions, and the folders hidden from them."""

    kind: str
    root: Path
    """The checkout."""
    hidden: tuple[Path, ...] = ()
    """Folders that bubblewrap leaves empty."""
    lacks: str = ""
    """Why a better isolation is not used. Empty if this is the best one, or the one that was asked for."""

    @property
    def in_words(self) -> str:
        """What it contains and what not, and why there is no better one."""
        return f"each lab runs {SAYS[self.kind]}" + (f" ({self.lacks})" if self.lacks else "")

    def command(self, folder: Path, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` in `folder` with this isolation."""
        if self.kind == "unshare":
            namespaces = ["--user", "--map-current-user", "--net", "--ipc", "--pid", "--fork", "--kill-child"]
            return ["unshare", *namespaces, "--", *words]
        if self.kind == "process":
            return list(words)
        return ["bwrap", *self._view(folder), "--chdir", str(folder), "--", *words]

    def _view(self, folder: Path) -> list[str]:
        """Return bubblewrap's options for the files that a submission sees. A later option covers an earlier one."""
        empty = [Path.home(), Path(tempfile.gettempdir()).resolve()]
        python = dict.fromkeys([self.root, Path(sys.prefix), Path(sys.base_prefix)])
        hidden = [path for path in (*self.hidden, self.root / "solutions", self.root / ".git") if path.is_dir()]
        view = [
            *(("--tmpfs", str(path)) for path in empty),
            *(("--ro-bind", str(path), str(path)) for path in python),
            *(("--tmpfs", str(path.resolve())) for path in hidden),
            ("--bind", str(folder), str(folder)),
        ]
        alone = ["--unshare-all", "--die-with-parent", "--new-session"]
        whole = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        return [*alone, *whole, *(word for words in view for word in words)]


def find_sandbox(wanted: str, root: Path, hidden: Sequence[Path]) -> Sandbox:
    """Return the isolation of this kind, or with "auto" the best kind that works on this machine.

    Raises `NoIsolationError` if the requested kind does not work here.
    """
    lacks: list[str] = []
    for kind in KINDS if wanted == "auto" else [wanted]:
        sandbox = Sandbox(kind, root, tuple(hidden), "; ".join(lacks))
        why = "" if kind == "process" else _why_not(sandbox)
        if not why:
            return sandbox
        lacks.append(why)
    raise NoIsolationError(f"{wanted} does not work here: {lacks[0]}")


def _why_not(sandbox: Sandbox) -> str:
    """Return why this isolation does not work here, or an empty string."""
    if shutil.which(sandbox.kind) is None:
        return f"{sandbox.kind} is not installed"
    with tempfile.TemporaryDirectory() as folder:
        command = sandbox.command(Path(folder).resolve(), [sys.executable, "-c", "import pytest"])
        tried = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = tried.stderr.strip().splitlines()
    return f"{sandbox.kind}: {said[-1][:120] if said else 'it ended with an error'}" if tried.returncode else ""


def limits_of(needs: str, seconds: int, kind: str) -> dict[str, int]:
    """Return the limits of a lab's process, by their names in `resource`. torch maps much more memory than it uses."""
    memory = {"C": 2048, "T": 12_288, "K": 16_384}[needs] * _MB
    processes = 64 if kind == "bwrap" else 4096  # where there is no namespace, all of the account's are counted
    return {"CPU": seconds, "AS": memory, "FSIZE": 16 * _MB, "NPROC": processes, "CORE": 0}


def environment_of(root: Path, folder: Path) -> dict[str, str]:
    """Return the complete environment of a submission, without the instructor's variables."""
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(root),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
