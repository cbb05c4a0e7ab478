"""What a lab's test gets in hand: the learner's functions, a cache that watches itself, a way to say what is wrong."""

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from mini_kv.core.debug import DebugKVCacheManager
from mini_kv.core.invariants import check_invariants
from mini_kv.core.request import Request
from mini_kv.labkit.implementation import Implementation, LoadError, get_function
from mini_kv.trace.recorder import Recorder
from mini_kv.trace.scenario import prefill
from mini_kv.trace.traced_manager import TracedKVCacheManager


class LabFailure(AssertionError):
    """Something is not as it should be: what, expected and got. Drawn by `mini_kv.labkit.failure`."""

    def __init__(self, what: str, want: object, got: object, why: str = "") -> None:
        super().__init__(f"{what}: expected {want!r}, got {got!r}")
        self.what = what
        self.want = want
        self.got = got
        self.why = why


class WatchedKVCacheManager(TracedKVCacheManager):
    """A traced manager in debug mode that also remembers the requests that it made, admitted or not."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool) -> None:
        recorder = Recorder()
        manager = DebugKVCacheManager.for_full_attention(
            num_blocks, block_size, enable_caching=enable_caching, new_block=recorder.new_block
        )
        super().__init__(manager, recorder)
        self.made_requests: list[Request] = []

    def new_request(self, *args: Any, **options: Any) -> Request:
        """Make a request as the manager does, and remember it."""
        request = self.manager.new_request(*args, **options)
        self.made_requests.append(request)
        return request

    def hold(self, token_ids: Sequence[int], request_id: str) -> Request:
        """Admit a request without the learner's help, for tests about something else; there must be room."""
        request = self.manager.new_request(request_id, token_ids)
        if prefill(self, request) is None:
            raise ValueError(f"the test has no room for {request_id}")
        return request


class LabUnderTest:
    """The `lab` fixture: `lab.prefill(...)` calls the learner's `prefill`; `lab.make_kv(...)` builds a cache."""

    def __init__(self, implementation: Implementation, load: Callable[[], ModuleType]) -> None:
        self.implementation = implementation
        self._load = load
        self.kvs: list[WatchedKVCacheManager] = []
        """The caches of this test, for drawing."""

    def make_kv(self, num_blocks: int, block_size: int, *, enable_caching: bool = True) -> WatchedKVCacheManager:
        """Return a new cache that checks its invariants after every call. `num_blocks` counts the null block."""
        kv = WatchedKVCacheManager(num_blocks, block_size, enable_caching=enable_caching)
        self.kvs.append(kv)
        return kv

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the learner's function of that name, wrapped so that the invariants are checked after it."""
        for function in self.implementation.lab.functions:
            if function.name == name:
                learners = get_function(self._load(), function, self.implementation.source)
                return self._watched(learners, function.signature)
        raise AttributeError(f"{self.implementation.lab.lab_id} has no function {name!r}")

    def _watched(self, learners: Callable[..., Any], signature: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            try:
                inspect.signature(learners).bind(*args, **options)
            except TypeError as error:
                raise LoadError(f"{learners.__name__} must be callable as {signature}: {error}") from None
            result = learners(*args, **options)
            for kv in args:
                if isinstance(kv, WatchedKVCacheManager):
                    check_invariants(kv.manager)
            return result

        return call

    def expect(self, what: str, want: object, got: object, why: str = "") -> None:
        """Compare what the learner's code did with what it should have done.

        Types count as well: `True` is not 1, and an object that claims to equal everything is not equal. Lists are
        compared item by item. Floats must agree to 1e-9.
        """
        if not same(want, got):
            self.fail(what, want, got, why)

    def fail(self, what: str, want: object, got: object, why: str = "") -> NoReturn:
        """Say what is wrong; raises `LabFailure`."""
        raise LabFailure(what, want, got, why)


def same(want: object, got: object) -> bool:
    """Return whether two plain values are equal, their types included."""
    if type(want) is not type(got):
        return False
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(want) == len(got) and all(map(same, want, got))
    if isinstance(want, float) and isinstance(got, float):
        return abs(want - got) < 1e-9
    return want == got
