"""A request: its tokens, the number of computed tokens, and the hashes of its full blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from mini_kv.core.block import BlockHash
from mini_kv.core.token_ids import MAX_TOKEN_ID, checked_token_ids


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter of a request: name and path, because the same name can be given to other weights later."""

    lora_name: str
    lora_path: str


@dataclass(frozen=True, slots=True)
class MultiModalFeature:
    """An image (or sound) with its placeholder tokens at `[offset, offset + length)` of the prompt."""

    identifier: str
    """Digest of the whole content, not shortened."""
    offset: int
    length: int


@unique
class RequestStatus(Enum):
    """The state of a request. A finished state includes the finish reason that the client gets.

    Source: vLLM `RequestStatus` (v1/request.py).
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Waiting again: its blocks were freed for other requests."""
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH_CAPPED = "length"
    FINISHED_ABORTED = "abort"


class Request:
    """One sequence on its way through the engine.

        0            num_computed_tokens                 num_tokens
        |== KV exists ==|== known tokens, KV to come ===|

    The scheduler sets `num_computed_tokens` when a step is done, and at a cache hit. The cache manager only reads it.

    Source: vLLM `Request` (v1/request.py).
    """

    def __init__(
        self,
        request_id: str,
        token_ids: Sequence[int] = (),
        *,
        num_tokens: int | None = None,
        block_hashes: Sequence[BlockHash] = (),
        block_hasher: "Callable[[Request], list[BlockHash]] | None" = None,
        cache_salt: str | None = None,
        lora_request: LoRARequest | None = None,
        mm_features: Sequence[MultiModalFeature] = (),
    ) -> None:
        """Check the tokens and hash the full blocks.

        Usually called through `KVCacheManager.new_request`, which passes the right `block_hasher`. A request from a
        trace has no tokens. Instead it has its length as `num_tokens`, and the hashes of its full blocks.

        Raises `InvalidTokenError` for a token that is not an integer in `0 <= t < 2**32`. Raises `ValueError` if there
        is no token at all, both tokens and `num_tokens`, or `num_tokens` and a `block_hasher`.
        """
        if (len(token_ids) > 0) == (num_tokens is not None):
            raise ValueError(f"request {request_id!r} needs token ids, or num_tokens if they are not known")
        if num_tokens is not None and block_hasher is not None:
            raise ValueError(f"request {request_id!r} has no token ids to hash: set its block_hashes instead")
        if num_tokens is not None and num_tokens < 1:
            raise ValueError(f"request {request_id!r} has {num_tokens} tokens, it needs at least 1")
        self.request_id = request_id
        self.token_ids = checked_token_ids(token_ids, first_index=0)
        """Prompt, then output, packed. Empty if the tokens are not known. Only `append_output_token_ids` adds to it."""
        self.num_tokens = len(self.token_ids) if num_tokens is None else num_tokens
        self.num_prompt_tokens = self.num_tokens
        self.num_computed_tokens = 0
        """Number of computed tokens (within a step also the promised ones)."""
        self.num_cached_tokens: int | None = None
        """The hit at the first admission, in tokens. `None` before it."""
        self.shared_prefix_boundary = 0
        """End of a prefix that is cached in full attention but not in another group. See `KVCacheCoordinator`."""
        self.cache_salt = cache_salt
        self.lora_request = lora_request
        self.mm_features = tuple(mm_features)
        # What the scheduler notes on it; see `Scheduler.add_request`.
        self.status = RequestStatus.WAITING
        self.priority = 0
        self.arrival = 0
        self.max_slots = 0
        """The most tokens of this request that are ever computed."""
        self.stop_token_ids: frozenset[int] = frozenset()
        self.spec_token_ids: list[int] = []
        """Drafts: the tokens proposed as the next ones."""
        self.num_preemptions = 0
        self.block_hashes = list(block_hashes)
        """Hashes of the full blocks, from the first block on."""
        self._block_hasher = block_hasher
        if block_hasher is not None:
            self.block_hashes += block_hasher(self)

    def append_output_token_ids(self, *token_ids: int) -> None:
        """Add tokens at the end, and hash each block that becomes full. After an `InvalidTokenError` none is added."""
        if len(token_ids) == 1 and type(token_ids[0]) is int and 0 <= token_ids[0] <= MAX_TOKEN_ID:
            self.token_ids.append(token_ids[0])  # decoding: one good token, nearly always
        else:
            self.token_ids += checked_token_ids(token_ids, first_index=self.num_tokens)
        self.num_tokens += len(token_ids)
        if self._block_hasher is not None:
            self.block_hashes += self._block_hasher(self)

    def truncate(self, num_tokens: int, num_block_hashes: int) -> None:
        """Remove the tokens from `num_tokens` on, and the hashes of the blocks that they filled."""
        del self.token_ids[num_tokens:]
        del self.block_hashes[num_block_hashes:]
        self.num_tokens = num_tokens

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.num_tokens} tokens, {self.num_computed_tokens} computed)"
