"""The calls that a learner's check may use. They are recorded and counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mini_kv.core.request import LoRARequest, Request

MAX_CALLS = 500
"""The most calls that a check may make in one run, over all its managers."""


class TooManyCallsError(Exception):
    """A check made more than `MAX_CALLS` calls."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a check, with all that is needed to repeat it."""

    name: str
    """The method, or `num_free_blocks`."""
    request_id: str = ""
    token_ids: tuple[int, ...] = ()
    """All tokens of the request at the time of the call."""
    num_computed_tokens: int = 0
    """`request.num_computed_tokens` at the time of the call."""
    options: tuple[tuple[str, Any], ...] = ()
    """Further arguments. A hit is stored as the id of the request that was looked up."""
    answer: str = field(default="", compare=False)
    """The result in words, if the call returned one."""

    def __str__(self) -> str:
        options = dict(self.options)
        if self.name == "new_request":
            named = [f"{name}={value!r}" for name, value in options.items()]
            return ", ".join([f"{self.request_id} has the tokens {shown(self.token_ids)}", *named])
        if self.name == "get_computed_blocks":
            return f"look up {self.request_id}"
        if self.name == "allocate_slots":
            hit = options["num_new_computed_tokens"]
            parts = [f"{self.num_computed_tokens} computed"] * bool(self.num_computed_tokens)
            parts += [f"{hit} cached"] * bool(hit) + [f"{options['num_new_tokens']} new"]
            parts += [f"{options['num_lookahead_tokens']} lookahead"] * bool(options["num_lookahead_tokens"])
            return f"allocate slots for {self.request_id} ({', '.join(parts)})"
        if self.name == "num_free_blocks":
            return "count the free blocks"
        return f"{'free' if self.name == 'free' else 'read the block ids of'} {self.request_id}"

    @property
    def told(self) -> str:
        """The call with its answer."""
        return f"{self}: {self.answer}" if self.answer else str(self)


def shown(token_ids: Sequence[int]) -> str:
    """Return the tokens as a text. Of a long list only the ends are shown."""
    if len(token_ids) <= 12:
        return " ".join(map(str, token_ids))
    return f"{' '.join(map(str, token_ids[:8]))} ... {token_ids[-1]} ({len(token_ids)} in all)"


def named(block_ids: Sequence[int]) -> str:
    """Return the block ids as a text."""
    return f"blocks {' '.join(map(str, block_ids))}" if block_ids else "no blocks"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks that a call returned. A check can read their ids, and pass a hit on to `allocate_slots`."""

    request_id: str
    inner: Any = field(repr=False)

    def get_block_ids(self) -> tuple[list[int]]:
        """Return the ids, in a tuple with one list, because these managers have one group of layers."""
        return (list(self.inner.get_block_ids()[0]),)


@dataclass(slots=True)
class Session:
    """One run of a check: what it made, and the number of its calls."""

    kind: Callable[..., Any]
    """Makes the object that a check gets, such as a `ManagerUnderTest`, around a new inner one."""
    make_inner: Callable[..., Any]
    """Makes a manager of `num_blocks` blocks of `block_size` tokens, or a queue of some blocks."""
    made: list[Any] = field(default_factory=list)
    num_calls: int = 0

    def make(self, *args: Any, **options: Any) -> Any:
        """Return a new object for the check. The arguments are those of its kind."""
        self.made.append(self.kind(self, *args, **options))
        return self.made[-1]

    def do(self, call: Callable[[], Any]) -> Any:
        """Make a call, and count it."""
        self.num_calls += 1
        if self.num_calls > MAX_CALLS:
            raise TooManyCallsError(f"more than {MAX_CALLS} calls")
        return call()


@dataclass(frozen=True, slots=True)
class PoolUnderTest:
    """The part of a block pool that a check may read."""

    manager: "ManagerUnderTest" = field(repr=False)

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that are in no table, cached or not, without the null block."""
        manager = self.manager
        manager.calls.append(Call("num_free_blocks"))
        number: int = manager.session.do(lambda: manager.inner.block_pool.num_free_blocks)
        manager.answered(str(number))
        return number


class ManagerUnderTest:
    """A cache manager with the calls of the contract, and no others."""

    def __init__(self, session: Session, num_blocks: int, block_size: int) -> None:
        """Make a manager with `num_blocks` blocks, the null block included, of `block_size` tokens each."""
        self.session = session
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.calls: list[Call] = []
        self.inner = session.do(lambda: session.make_inner(num_blocks, block_size))
        self.block_pool = PoolUnderTest(self)

    def new_request(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        cache_salt: str | None = None,
        lora_request: LoRARequest | None = None,
    ) -> Request:
        """Return a request with these tokens. It holds no blocks yet."""
        identity = {"cache_salt": cache_salt, "lora_request": lora_request}
        given = tuple((name, value) for name, value in identity.items() if value is not None)
        self.calls.append(Call("new_request", request_id, tuple(token_ids), options=given))
        request: Request = self.session.do(lambda: self.inner.new_request(request_id, token_ids, **identity))
        return request

    def get_computed_blocks(self, request: Request) -> tuple[Blocks, int]:
        """Return the longest hit of the request: its blocks, and its number of tokens. Nothing changes."""
        self._record("get_computed_blocks", request)
        blocks, num_tokens = self.session.do(lambda: self.inner.get_computed_blocks(request))
        found = Blocks(request.request_id, blocks)
        self.answered(f"a hit of {num_tokens} tokens, {named(found.get_block_ids()[0])}")
        return found, num_tokens

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Blocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> Blocks | None:
        """Allocate slots for the next tokens. Return the new blocks, or `None` if there are too few free blocks."""
        self._record(
            "allocate_slots",
            request,
            num_new_tokens=num_new_tokens,
            num_new_computed_tokens=num_new_computed_tokens,
            hit_of=None if new_computed_blocks is None else new_computed_blocks.request_id,
            num_lookahead_tokens=num_lookahead_tokens,
        )
        hit = None if new_computed_blocks is None else new_computed_blocks.inner
        new = self.session.do(
            lambda: self.inner.allocate_slots(
                request, num_new_tokens, num_new_computed_tokens, hit, num_lookahead_tokens
            )
        )
        if new is None:
            self.answered("refused")
            return None
        blocks = Blocks(request.request_id, new)
        self.answered(f"new {named(blocks.get_block_ids()[0])}".replace("new no", "no new"))
        return blocks

    def free(self, request: Request) -> None:
        """End the request's use of its blocks."""
        self._record("free", request)
        self.session.do(lambda: self.inner.free(request))

    def get_block_ids(self, request_id: str) -> tuple[list[int]]:
        """Return the ids in the request's block table, in a tuple with one list."""
        self.calls.append(Call("get_block_ids", request_id))
        ids = list(self.session.do(lambda: self.inner.get_block_ids(request_id))[0])
        self.answered(named(ids))
        return (ids,)

    @property
    def told(self) -> list[str]:
        """The calls so far with their answers, as text."""
        return [call.told for call in self.calls]

    def answered(self, answer: str) -> None:
        """Keep the answer to the last call, in words."""
        self.calls[-1] = replace(self.calls[-1], answer=answer)

    def _record(self, name: str, request: Request, **options: Any) -> None:
        tokens = tuple(request.token_ids)
        self.calls.append(Call(name, request.request_id, tokens, request.num_computed_tokens, tuple(options.items())))


def prefill(kv: Any, request: Request) -> int | None:
    """Admit the request and compute its whole prompt at once. Return its hit in tokens, or `None` if it is refused.

    `kv` is a `ManagerUnderTest`, or a manager of the engine.
    """
    blocks, num_hit_tokens = kv.get_computed_blocks(request)
    if kv.allocate_slots(request, request.num_tokens - num_hit_tokens, num_hit_tokens, blocks) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return int(num_hit_tokens)
