"""The fixture of a lab's test: the learner's functions, a cache that checks itself, comparisons with messages."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.block_hash import get_request_block_hasher
from mini_kv.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.invariants import InvariantViolationError, check_invariants, find_pool_violations
from mini_kv.core.kv_cache_coordinator import MANAGER_CLASSES
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.request import Request
from mini_kv.course.labkit.implementation import Implementation, LoadError, get_class, get_function
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.story.frame import Frame, frame_of, frame_of_pool
from mini_kv.story.recorder import Recorder
from mini_kv.story.scenario import prefill
from mini_kv.story.traced_manager import TracedKVCacheManager

Part = TypeVar("Part")
Whole = TypeVar("Whole")


class LabFailure(AssertionError):
    """A test's value differs from the expected one. `mini_kv.course.labkit.failure` turns it into a message."""

    def __init__(
        self, what: str, want: object, got: object, why: str = "", picture: Sequence[str] = (), seen: object = None
    ) -> None:
        super().__init__(f"{what}: expected {want!r}, got {got!r}")
        self.what = what
        self.want = want
        self.got = got
        self.why = why
        self.picture = picture
        """Lines drawn under both values."""
        self.seen = seen
        """Further results of the test. They are not shown, but distinguish beliefs."""
        self.line = 0
        """The line of the learner's file, if no traceback has it."""
        self.rule = 0
        """Number of the sentence of the contract, if it is another one than the test's."""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of a test's story."""

    what: str
    moment: tuple[int, int]
    """Number of caches so far, and of calls of the last one."""


@dataclass(frozen=True, slots=True)
class Comparison(Note):
    """One comparison in the story of a test."""

    want: object
    got: object


class WatchedKVCacheManager(TracedKVCacheManager):
    """A traced manager in debug mode that also keeps all requests that it made, admitted or not."""

    def __init__(self, manager: KVCacheManager, recorder: Recorder) -> None:
        super().__init__(manager, recorder, snapshots=True)
        self.made_requests: list[Request] = []
        self.is_learners_turn = False
        """Whether the learner's function runs now. It could let `hold` do its work."""

    def new_request(self, *args: Any, **options: Any) -> Request:
        """Make a request as the manager does, and keep it."""
        request = self.manager.new_request(*args, **options)
        self.made_requests.append(request)
        return request

    def hold(self, token_ids: Sequence[int], request_id: str) -> Request:
        """Admit a request without the learner's code, for tests of other functions. There must be room."""
        if self.is_learners_turn:
            raise AttributeError("hold is for the tests: a cache has no such method")
        request = self.manager.new_request(request_id, token_ids)
        if prefill(self, request) is None:
            raise ValueError(f"the pool of the test has no room for {request_id}")
        return request


class LabUnderTest:
    """The `lab` fixture: `lab.prefill(...)` calls the learner's `prefill`, and `lab.make_kv(...)` builds a cache."""

    def __init__(
        self,
        implementation: Implementation,
        load: Callable[[], ModuleType],
        about: str = "",
        engine_bug: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the code to run, and the function that loads it.

        Args:
            implementation: of this lab.
            load: returns the learner's module.
            about: the function that the test checks, as `lab.toml` names it.
            engine_bug: replacements for the engine's classes and functions of the same names, for the audit.
        """
        self.implementation = implementation
        self._load = load
        self._about = about
        self._engine_bug = engine_bug or {}
        self.kvs: list[WatchedKVCacheManager] = []
        """The caches of this test. A failure shows the calls of the last one."""
        self.notes: list[Note] = []
        """Notes and comparisons of this test in order. Together with the calls of its cache they are its story."""
        self.charged = ""
        """The function that a failure is attributed to. "": the function that the test checks."""
        self.drawing: Callable[[], Frame] | None = None
        """Returns the state that a failure shows."""
        self.table: Sequence[str] = ()
        """Lines of a table below the points if the test passes. A line that two tests have is printed once."""
        self.clock_stopped: Callable[[], AbstractContextManager[None]] = nullcontext
        """Stops the test's clock while the enclosed code runs, which has limits of its own."""
        self.ran_elsewhere = False
        """Whether the learner's whole file ran in a process of its own."""

    def engine(self, part: Part) -> Part:
        """Return this class or function of the engine, or in an audit its replacement with a bug."""
        return self._engine_bug.get(part.__name__, part)  # type: ignore[attr-defined, no-any-return]

    def engine_with(self, learners: str, engines: type[Whole], check: type | None = None) -> type[Whole]:
        """Return the engine's class with one method of the learner. A mistake then fails only that method's tests.

        Args:
            learners: the method, such as `BlockPool.free_blocks`. For a method of another class return `engines`.
            engines: the engine's class, or one derived from it with the lab's own methods.
            check: a class derived from the engine's that checks the result of the learner's method.
        """
        name = learners.partition(".")[0]
        if name not in [base.__name__ for base in engines.__mro__]:
            return engines
        own = getattr(self, name)
        of_class = [f.name for f in self.implementation.lab.functions if f.name.startswith(f"{name}.")]
        others = [other.partition(".")[2] for other in of_class if other != learners]
        return type(name, (check, own) if check else (own,), {other: getattr(engines, other) for other in others})

    def make_kv(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_caching: bool = True,
        manager_class: Callable[..., Any] | None = None,
        parts: KVCacheParts | None = None,
    ) -> WatchedKVCacheManager:
        """Return a new cache of one group of full attention that checks its invariants after every call.

        Args:
            num_blocks: blocks, the null block included.
            block_size: tokens per block.
            enable_caching: whether blocks are cached.
            manager_class: a learner's own manager, derived from the engine's.
            parts: the parts of the manager. `None`: the engine's own.
        """
        group = KVCacheGroupSpec(("layers",), self.engine(FullAttentionSpec)(block_size))
        config = KVCacheConfig(num_blocks, (group,))
        return self.make_kv_of(config, enable_caching=enable_caching, manager_class=manager_class, parts=parts)

    def make_kv_of(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        enable_caching: bool = True,
        manager_class: Callable[..., Any] | None = None,
        parts: KVCacheParts | None = None,
    ) -> WatchedKVCacheManager:
        """Return a new cache of these groups. Arguments as in `make_kv`."""
        recorder = Recorder()
        make_manager = manager_class or self.engine(KVCacheManager)
        parts = replace(parts or self._engine_parts(), new_block=recorder.new_block)
        manager = make_manager(kv_cache_config, enable_caching=enable_caching, parts=parts)
        kv = WatchedKVCacheManager(DebugKVCacheManager(manager), recorder)
        self.kvs.append(kv)
        self.drawing = lambda: frame_of(kv.manager)
        return kv

    def _engine_parts(self) -> KVCacheParts:
        return KVCacheParts(
            make_queue=self.engine(FreeKVCacheBlockQueue),
            make_index=self.engine(BlockHashToBlockMap),
            make_pool=self.engine(BlockPool),
            manager_classes={self.engine(spec): self.engine(manager) for spec, manager in MANAGER_CLASSES.items()},
            make_block_hasher=self.engine(get_request_block_hasher),
        )

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Run the enclosed code, in which the learner's whole file runs in a process with limits of its own."""
        self.ran_elsewhere = True
        with self.clock_stopped():
            yield

    def watch_pool(self, pool: BlockPool, tables: Mapping[str, Sequence[KVCacheBlock]]) -> None:
        """Show this pool in a failure, with the tables of its blocks."""
        self.drawing = lambda: frame_of_pool(
            pool, {name: [[block.block_id for block in table]] for name, table in tables.items()}
        )

    def charge(self, function: str) -> None:
        """Attribute later failures to this function, in tests that call several."""
        self.charged = function

    def draw(self, frame: Callable[[], Frame]) -> None:
        """Show the result of this function in a failure, for a lab that has its own pool."""
        self.drawing = frame

    def check_pool(self, pool: BlockPool, tables: Mapping[str, Sequence[KVCacheBlock]]) -> None:
        """Raise for the first broken invariant of a pool whose blocks only these tables reference."""
        for violation in find_pool_violations(pool, {name: [table] for name, table in tables.items()}):
            raise InvariantViolationError(violation)

    def __getattr__(self, name: str) -> Any:
        """Return the learner's function, wrapped so that the invariants are checked after it, or the learner's class.

        A class is one whose methods `lab.toml` lists, as in `FreeKVCacheBlockQueue.remove`.
        """
        functions = [f for f in self.implementation.lab.functions if f.name.partition(".")[0] == name]
        if not functions:
            raise AttributeError(f"{self.implementation.lab.lab_id} has no function {name!r}")
        module = self._load()
        if "." in functions[0].name:
            # Only the method that the test is about must be there: a renamed one does not sink the tests of others.
            return get_class(module, [f for f in functions if f.name == self._about], name, self.implementation.source)
        return self._watched(get_function(module, functions[0], self.implementation.source), functions[0].signature)

    def _watched(self, learners: Callable[..., Any], signature: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            caches = [kv for kv in args if isinstance(kv, WatchedKVCacheManager)]
            for kv in caches:
                kv.is_learners_turn = True
            try:
                result = learners(*args, **options)
            except TypeError:  # a look at the signature before each call would cost more than the call
                try:
                    inspect.signature(learners).bind(*args, **options)
                except TypeError as error:
                    raise LoadError(f"{learners.__name__} must be callable as {signature}: {error}") from None
                raise
            finally:
                for kv in caches:
                    kv.is_learners_turn = False
            for kv in caches:
                check_invariants(kv.manager)
            return result

        return call

    def expect(self, what: str, want: object, got: object, why: str = "", rule: int = 0) -> None:
        """Compare the result of the learner's code with the expected one. `rule`: as in `fail`.

        Types count as well: `True` is not 1, and an object that claims to equal everything is not equal. Lists are
        compared item by item. Floats must agree to 1e-9.
        """
        self._note_comparison(what, want, got)
        if not same(want, got):
            self.fail(what, want, got, why, rule=rule)

    def expect_all(self, rows: Iterable[tuple[str, object, object, str]]) -> None:
        """Compare a table of `(what, want, got, why)` as `expect` does. All rows are read before a difference fails."""
        rows = list(rows)
        for what, want, got, why in rows:
            self._note_comparison(what, want, got)
            if not same(want, got):
                self.fail(what, want, got, why, seen=[got for _, _, got, _ in rows])

    def sentence(self, rule: int) -> str:
        """Return a sentence of the lab's contract with its number, for the reason of a failure."""
        return f"rule {rule} of the contract: {self.implementation.lab.contract()[rule - 1]}"

    def note(self, what: str) -> None:
        """Add a sentence to the test's story, which `mini-kv story` plays."""
        self.notes.append(Note(what, self._moment))

    def _note_comparison(self, what: str, want: object, got: object) -> None:
        kept = list(got) if type(got) is list else got  # a list may still grow
        self.notes.append(Comparison(what, self._moment, want, kept))

    @property
    def _moment(self) -> tuple[int, int]:
        return len(self.kvs), len(self.kvs[-1].spans) if self.kvs else 0

    def fail(
        self,
        what: str,
        want: object,
        got: object,
        why: str = "",
        picture: Sequence[str] = (),
        seen: object = None,
        rule: int = 0,
    ) -> NoReturn:
        """Fail with this message and lines to draw. Always raises `LabFailure` with all of these.

        `rule` is the number of the sentence of the contract that is broken, if it is another one than the test's.
        """
        failure = LabFailure(what, want, got, why, picture, seen)
        failure.rule = rule
        raise failure


def same(want: object, got: object) -> bool:
    """Return whether two plain values are equal, their types included. A whole number may replace a float."""
    if isinstance(want, float) and type(got) in (int, float):
        both_nan = str(want) == str(got) == "nan"  # unequal to itself; but what was NaN and still is has not changed
        return both_nan or want == got or abs(want - got) < 1e-9  # type: ignore[operator]  # infinity has no difference
    if type(want) is not type(got):
        return False
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(want) == len(got) and all(map(same, want, got))
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(same(value, got[key]) for key, value in want.items())
    return want == got


class InWords(str):
    """A result or an expectation in words. A failure shows it without quotes."""

    __slots__ = ()
    __repr__ = str.__str__
