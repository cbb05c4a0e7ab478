"""The engine with the options of a variant of the challenge: it answers the scenarios in place of vLLM."""

from collections.abc import Sequence
from typing import Any

from mini_kv.core.block import BlockHash, KVCacheBlock
from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.single_type_kv_cache_manager import FullAttentionManager
from mini_kv.course.given.contract import Variant
from mini_kv.course.given.small_manager import make_manager
from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.course.verify.program import Message


class HeadFirst(FreeKVCacheBlockQueue):
    """Takes the blocks of one `free` in the opposite order."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append them."""
        super().append_n(blocks[::-1])

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put them in front."""
        super().prepend_n(blocks[::-1])


class ToTheEnd(FreeKVCacheBlockQueue):
    """Puts no freed block in front."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append them."""
        self.append_n(blocks)


_QUEUES = (FreeKVCacheBlockQueue, HeadFirst, ToTheEnd)


class VariantAdapter(ManagerAdapter):
    """The manager with the options. Its blocks are numbered as the variant says: the null block is last, or missing."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.has_null = variant.null < 2

    def make_manager(self, settings: dict[str, Any]) -> Any:
        """Return the manager. A pool without a null block gets one that is not shown."""
        kept = self.variant.cap * settings["block_size"] or 1

        class Tables(FullAttentionManager):
            def find_longest_cache_hit(self, block_hashes: Sequence[BlockHash], max_length: int) -> list[KVCacheBlock]:
                return super().find_longest_cache_hit(block_hashes, max(0, max_length + 1 - kept))

        num_blocks = settings["num_blocks"] + (not self.has_null)
        return make_manager(num_blocks, settings["block_size"], tables=Tables, make_queue=_QUEUES[self.variant.order])

    def answer(self, message: Message) -> Message:
        """Return the reply. What has no meaning in the variant is left out."""
        reply = super().answer(message)
        shown: Message = {name: reply[name] for name in ("result", "skip", "tables", "free", "hashes") if name in reply}
        if not self.variant.null or "skip" in reply:
            return shown
        if "blocks" in reply["result"]:
            shown["result"] = reply["result"] | {"blocks": _one_less(reply["result"]["blocks"])}
        hashes = [*reply["hashes"][1:], *[None] * self.has_null]
        tables = {name: _one_less(blocks) for name, blocks in reply["tables"].items()}
        return shown | {"tables": tables, "free": _one_less([reply["free"]])[0], "hashes": hashes}


def _one_less(tables: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the numbers of blocks if the first is 0."""
    return [[block_id - 1 for block_id in block_ids] for block_ids in tables]
