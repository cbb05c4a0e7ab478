"""The requests that caused a cache's events, as a trace of tokens for `curve` and `explain`.

A request is visible only by the blocks that it adds. The tokens before them are known from the parent blocks. So a
request's tokens are known up to its last full block. A request without new blocks is not in the trace.

Blocks that follow the last block of a request belong to it in two cases: the next batch stores them (the next chunk of
a long prompt), or it is a single block (its answer grows by a block). Otherwise they are a new request with a hit on
all blocks of the older one.
"""

from dataclasses import dataclass
from typing import Any

from mini_kv.tools.serve.kv_events import BlockStored, KVEventBatch
from mini_kv.tools.serve.mirror import Key, Mirror


@dataclass(slots=True)
class SeenRequest:
    """The known tokens of one request."""

    time: float
    token_ids: list[int]
    """Tokens of prompt and answer."""
    num_prompt_tokens: int
    cache_salt: str | None
    lora_name: str | None
    last_batch: int = 0

    def as_line(self, begin: float) -> dict[str, Any]:
        """Return it as a line for `mini_kv.tools.traces.readers.token_trace`. `begin`: the trace's start in seconds."""
        line: dict[str, Any] = {
            "timestamp": max(0, round((self.time - begin) * 1000)),
            "token_ids": self.token_ids[: self.num_prompt_tokens],
            "output_length": max(1, len(self.token_ids) - self.num_prompt_tokens),
        }
        facts = {"cache_salt": self.cache_salt, "lora_name": self.lora_name}
        return line | {name: value for name, value in facts.items() if value}


class SeenRequests:
    """Finds the requests that caused batches of events."""

    def __init__(self, mirror: Mirror) -> None:
        """Begin without requests. `mirror` must apply a batch before `apply` is called with it."""
        self._mirror = mirror
        self._by_last_block: dict[Key, SeenRequest] = {}
        self._group_id: int | None = None
        self.requests: list[SeenRequest] = []
        self.num_headless = 0
        """Number of blocks whose prefix is unknown. It was stored before we listened, or in a missed batch."""

    def apply(self, number: int, batch: KVEventBatch) -> None:
        """Read the events of one group. The other groups have the same tokens."""
        for event in batch.events:
            if not isinstance(event, BlockStored) or not event.block_hashes:
                continue
            if self._group_id is None:
                self._group_id = event.group_idx or 0
            if (event.group_idx or 0) == self._group_id:
                self._store(number, batch.ts, event)

    def trace(self) -> list[dict[str, Any]]:
        """Return the requests in the order in which they were seen first."""
        return [request.as_line(self.requests[0].time) for request in self.requests]

    def _store(self, number: int, time: float, event: BlockStored) -> None:
        group_id = event.group_idx or 0
        last = Key(event.block_hashes[-1], group_id, event.medium)
        parent = None if event.parent_block_hash is None else Key(event.parent_block_hash, group_id, event.medium)
        request = self._goes_on(number, parent, len(event.block_hashes))
        if request is None:
            request = self._begins(time, last, event.lora_name)
            if request is None:
                self.num_headless += len(event.block_hashes)
                return
        else:
            request.token_ids += event.token_ids
            if len(event.block_hashes) > 1:
                request.num_prompt_tokens = len(request.token_ids)
        request.last_batch = number
        self._by_last_block[last] = request

    def _goes_on(self, number: int, parent: Key | None, num_blocks: int) -> SeenRequest | None:
        """Return the earlier request that these blocks belong to, or `None`. The module's docstring has the rule."""
        request = self._by_last_block.get(parent) if parent is not None else None
        if parent is None or request is None or (num_blocks > 1 and number - request.last_batch > 1):
            return None
        return self._by_last_block.pop(parent)

    def _begins(self, time: float, last: Key, lora_name: str | None) -> SeenRequest | None:
        """Return a new request, with all tokens up to its last block, or `None` if its prefix is not known."""
        chain = self._chain(last)
        if chain is None:
            return None
        tokens = [token for key in chain for token in self._mirror.blocks[key].token_ids]
        strings = [each for each in self._mirror.blocks[chain[0]].extra_keys or () if isinstance(each, str)]
        salt = next((each for each in reversed(strings) if each != lora_name), None)
        self.requests.append(SeenRequest(time, tokens, len(tokens), salt, lora_name))
        return self.requests[-1]

    def _chain(self, key: Key) -> list[Key] | None:
        """Return the keys from the prompt's beginning to this one, or `None` if a key or its tokens are not known."""
        chain: list[Key] = []
        at: Key | None = key
        while at is not None:
            block = self._mirror.blocks.get(at)
            if block is None or not block.token_ids or len(chain) > len(self._mirror.blocks):
                return None
            chain.append(at)
            at = block.parent
        return chain[::-1]
