"""What can be wrong with a model's files."""

from pathlib import Path

from mini_kv.core.errors import KVCacheError


class CheckpointError(KVCacheError, ValueError):
    """A file of a checkpoint is missing, damaged, or asks for what this model does not have."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
