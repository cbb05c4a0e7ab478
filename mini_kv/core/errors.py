"""Exceptions for misuse of the cache. Each carries its data as attributes.

Scarcity is not misuse: when blocks run out, `KVCacheManager.allocate_slots` returns `None` and the caller tries
again later. Each exception here means that the caller (or a bug) did something that is never allowed. It is
raised at the faulty call, before anything has changed.

None of these derives from `RuntimeError`: `NotImplementedError` does, and a test that expects a `RuntimeError`
would pass on code that is not written yet.
"""

from collections.abc import Sequence


class KVCacheError(Exception):
    """Base of every error that mini_kv raises on misuse."""


class BlockStateError(KVCacheError):
    """An operation that the block's state forbids: freed twice, linked twice, given a second key."""

    def __init__(self, message: str, block_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.block_ids = list(block_ids)


class OutOfBlocksError(KVCacheError):
    """More blocks were requested from the pool than are free. Check `num_free_blocks` first."""

    def __init__(self, requested: int, free: int) -> None:
        super().__init__(f"{requested} blocks requested, {free} free")
        self.requested = requested
        self.free = free


class UnknownRequestError(KVCacheError):
    """The request holds no blocks: it was never admitted, or it is freed already."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"this request {request_id!r} holds no blocks: never admitted, or freed already")
        self.request_id = request_id


class RepeatedRequestError(KVCacheError):
    """Another live request already has this id. A second one would overwrite its block table."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is in use by another live request")
        self.request_id = request_id


class InvalidTokenError(KVCacheError, ValueError):
    """A token id is not an integer in `0 <= t < 2**32`."""

    def __init__(self, index: int, value: object) -> None:
        super().__init__(f"token {index} is {value!r}: token ids are integers in 0 <= t < 2**32, booleans are not")
        self.index = index
        self.value = value


class AllocationError(KVCacheError, ValueError):
    """The numbers given to `allocate_slots` contradict each other or the request."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(f"request {request_id!r}: {message}")
        self.request_id = request_id


class ConfigError(KVCacheError, ValueError):
    """A setting that cannot work. Most are refused when the cache is built."""


class SchedulerError(KVCacheError, ValueError):
    """The scheduler was called in the wrong order, or the results do not fit the step."""


def missing_package(what: str, package: str) -> ConfigError:
    """Return the error for a missing package, with the command that installs it here."""
    from mini_kv.installer import install  # core imports nothing else of mini_kv

    return ConfigError(f"{what} needs the package {package}: {install(package)}")
