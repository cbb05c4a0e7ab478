"""A cache with tiers below it, in letters: where each block lies after each prompt. No torch, so it runs in a page."""

from mini_kv.core.block import KVCacheBlock
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.tiers.connector import KVConnectorMetadata, TieringConnector, tiered_parts
from mini_kv.tiers.memory import MemoryTier
from mini_kv.tiers.scheduler import TieredScheduler
from mini_kv.tiers.sealed import OVERHEAD_BYTES
from mini_kv.tiers.tiered_cache import TieredCache

_BLOCK_SIZE = 4
_BYTES = 8
"""A block's content here: its letters, padded."""
_KEY_BYTES = 16 + 32 + 4


class SecondHome:
    """The engine's scheduler and tiers, with a worker that writes letters where a model would write keys and values."""

    def __init__(self, num_blocks: int, memory_blocks: int) -> None:
        """Make a pool of `num_blocks`, one of them for the token that is always computed, and a memory below it."""
        group = KVCacheGroupSpec(("layers",), FullAttentionSpec(_BLOCK_SIZE))
        self.kv = KVCacheManager(KVCacheConfig(num_blocks + 1, (group,)), parts=tiered_parts())
        self.tiers = TieredCache(MemoryTier(memory_blocks * (OVERHEAD_BYTES + _KEY_BYTES + _BYTES)))
        self.connector = TieringConnector(self.kv, self.tiers, [_BYTES])
        self.scheduler = TieredScheduler(self.kv, connector=self.connector)
        self.contents: dict[int, bytes] = {}
        """What lies in each block of the pool."""
        self._num_sent = 0

    def send(self, words: str) -> str:
        """Send a prompt of one block per letter, and one token; return what was computed and what is where now."""
        tokens = [ord(letter) for letter in words for _ in range(_BLOCK_SIZE)] + [0]
        self._num_sent += 1
        name = str(self._num_sent)
        self.scheduler.add_request(self.kv.new_request(name, tokens), max_tokens=1)
        output = self.scheduler.schedule()
        num_computed = output.num_scheduled_tokens[name]
        moved = self._run(output, words)
        self.scheduler.update_from_output(output, {name: [0]})
        pool = " ".join(sorted(self._letters(block) for block in self.kv.block_pool.blocks if block.block_hash))
        memory = " ".join(self._letters_in_memory())
        return f"{words}: {num_computed:2} of {len(tokens)} computed{moved:<26} pool: {pool:<14} memory: {memory}"

    def _run(self, output: SchedulerOutput, words: str) -> str:
        """Do what a worker does; return in words what was moved."""
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
