"""A cache with tiers, in letters: the place of each block after each prompt. Without torch, so it runs in a page.

home = SecondHome(num_blocks=4, memory_blocks=3)
home.send("abc")                    # one block per letter: returns a line with the computed blocks and all places
story(["abc", "xyz", "abc"])        # the same for the figure: blocks are stored in memory and loaded again
"""

from collections.abc import Sequence
from dataclasses import replace

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.story.edge import EdgeKind
from mini_kv.story.frame import frame_of
from mini_kv.story.recorder import Recorder
from mini_kv.story.story_json import Data, StoryWriter
from mini_kv.story.traced_manager import Span
from mini_kv.tiers.connector import KVConnectorMetadata, TieringConnector, tiered_parts
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.sealed import OVERHEAD_BYTES
from mini_kv.tiers.tiered_cache import TieredCache
from mini_kv.tiers.tiered_scheduler import TieredScheduler

_BLOCK_SIZE = 4
_BYTES = 8
"""Bytes of a block's content: its letters, padded."""
_BLOCK_KEY_BYTES = 32 + 4
_KEY_BYTES = 16 + _BLOCK_KEY_BYTES


class SecondHome:
    """The engine's scheduler and tiers, with a worker that writes letters in place of keys and values."""

    def __init__(self, num_blocks: int, memory_blocks: int) -> None:
        """Make a pool of `num_blocks`, one of them for the token that is always computed, and a memory tier."""
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(_BLOCK_SIZE))
        self.recorder = Recorder()
        parts = replace(tiered_parts(), new_block=self.recorder.new_block)
        self.kv = KVCacheManager(KVCacheConfig(num_blocks + 1, (group,)), parts=parts)
        self.tiers = TieredCache(MemoryTier(memory_blocks * (OVERHEAD_BYTES + _KEY_BYTES + _BYTES)))
        self.connector = TieringConnector(self.kv, self.tiers, [_BYTES])
        self.scheduler = TieredScheduler(self.kv, connector=self.connector)
        self.contents: dict[int, bytes] = {}
        """The content of each block of the pool."""
        self._num_sent = 0
        memory = {"id": "memory", "name": "Second home", "capacity": memory_blocks}
        self.told = StoryWriter("Down, and up again", num_blocks + 1, _BLOCK_SIZE, tiers=[memory])
        """The story for the figure."""

    def send(self, words: str) -> str:
        """Send a prompt of one block per letter, and one token. Return the count of computed tokens, and all blocks."""
        tokens = [ord(letter) for letter in words for _ in range(_BLOCK_SIZE)] + [0]
        self._num_sent += 1
        name = str(self._num_sent)
        self.scheduler.add_request(self.kv.new_request(name, tokens), max_tokens=1)
        output = self.scheduler.schedule()
        num_computed = output.num_scheduled_tokens[name]
        moved = self._run(output, words)
        num_found = (len(tokens) - num_computed) // _BLOCK_SIZE
        said = f"{words}: {num_computed} of {len(tokens)} tokens are computed{moved}."
        self._tell(f"send {words}", said, name, num_computed, num_found)
        self.scheduler.update_from_output(output, {name: [0]})
        self._tell(f"{words} is done", "Its blocks are free, with their hashes; the tail is the next to go.")
        pool = " ".join(sorted(self._letters(block) for block in self.kv.block_pool.blocks if block.block_hash))
        memory = " ".join(self._letters_in_memory())
        return f"{words}: {num_computed:2} of {len(tokens)} computed{moved:<26} pool: {pool:<14} memory: {memory}"

    def _tell(
        self, do: str, say: str, request_id: str | None = None, num_computed: int = 0, num_found: int = 0
    ) -> None:
        """Add a step to the story: the block events since the last step, and the content of the memory."""
        edges = self.recorder.take_edges()
        revived = [i for i, edge in enumerate(edges) if edge.kind is EdgeKind.REVIVED]
        first = revived[0] if revived else 0  # what came up did so before the request looked
        found = self.kv.get_block_ids(request_id)[0][:num_found] if request_id else []
        look = [Span("get_computed_blocks", request_id, found=found)] if request_id else []
        spans = [Span("free", edges=edges[:first]), *look, Span("free", edges=edges[first:])]
        blocks = self.kv.block_pool.blocks
        above = {block.block_hash for block in blocks}
        keys = [key[-_BLOCK_KEY_BYTES:] for key in self.tiers.memory.in_order()]
        below = [key.hex() for key in keys if key not in above]  # what is on its way up has left
        words = {block.block_id: self._words_in(block) for block in blocks[1:]}
        told: Data = {"do": do, "say": say, "tiers": {"memory": below}, "lines": []}
        if request_id is not None:
            told |= {
                "scheduled": {request_id: num_computed},
                "tok": {request_id: num_computed + _BLOCK_SIZE * num_found},
            }
        self.told.add_step(frame_of(self.kv), spans, words, **told)

    def _words_in(self, block: KVCacheBlock) -> list[str]:
        """Return the words on a block's card: its letter, once per token, or the one token at the end."""
        return [self._letters(block)[-1:]] * _BLOCK_SIZE if block.block_hash else ["."]

    def _run(self, output: SchedulerOutput, words: str) -> str:
        """Do a worker's step and return a text with the moved blocks."""
        metadata = output.kv_connector_metadata
        assert isinstance(metadata, KVConnectorMetadata)
        down = [self.contents[block_id].decode().strip() for _, block_id in metadata.stores]
        for key, block_id in metadata.stores:
            self.tiers.store(key, self.contents[block_id])
        for _, block_id, payload in metadata.loads:
            self.contents[block_id] = bytes(payload)
        up = [self.contents[block_id].decode().strip() for _, block_id, _ in metadata.loads]
        table = self.kv.get_blocks(next(iter(output.num_scheduled_tokens))).blocks[0]
        for end, block in enumerate(table[: len(words)], start=1):
            self.contents[block.block_id] = words[:end].ljust(_BYTES).encode()
        return "".join(f", {what} {' '.join(names)}" for what, names in (("down", down), ("up", up)) if names)

    def _letters(self, block: KVCacheBlock) -> str:
        return self.contents[block.block_id].decode().strip()

    def _letters_in_memory(self) -> list[str]:
        found = []
        for key in self.tiers.memory.in_order():
            lease = self.tiers.lease(key)
            payload = self.tiers.load(lease, _BYTES) if lease is not None else None
            if lease is not None and payload is not None:
                found.append(bytes(payload).decode().strip())
                self.tiers.release(lease)
        return found


def story(prompts: Sequence[str] = ("abc", "xyz", "abc"), num_blocks: int = 4, memory_blocks: int = 3) -> Data:
    """Return the story of these prompts, one after the other. The figure draws memory as a shelf below the queue."""
    home = SecondHome(num_blocks, memory_blocks)
    for words in prompts:
        home.send(words)
    return {**home.told.data(), "at": 1}
