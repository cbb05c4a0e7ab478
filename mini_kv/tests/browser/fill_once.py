"""A folder that the first of several processes fills, for tests that share what takes long to build."""

from collections.abc import Callable
from pathlib import Path


def fill_once(shared: Path, name: str, fill: Callable[[Path], object]) -> Path:
    """Return `shared/once/NAME`, filled by the first process that asks. The others wait for it.

    A fill that fails is not tried again. A build takes minutes, and each test that waits would start another one.
    `NAME.failed` keeps the error's text, and later calls raise `AssertionError` with it at once.
    """
    from filelock import FileLock

    folder, done, failed = shared / "once" / name, shared / f"{name}.done", shared / f"{name}.failed"
    with FileLock(shared / f"{name}.lock"):
        if failed.exists():
            raise AssertionError(f"{name} was tried once and failed: {failed.read_text(encoding='utf-8')}")
        if not done.exists():
            try:
                fill(folder)
            except Exception as error:
                failed.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
                raise
            done.touch()
    return folder
