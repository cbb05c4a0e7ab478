"""An adapter for any cache manager with vLLM's names: mini_kv's, and vLLM's own."""

from typing import Any

from mini_kv.course.verify.adapter import Adapter


def visible_blocks(manager: Any, requests: dict[str, Any]) -> dict[str, Any]:
    """Return all that can be seen of the blocks of a manager with vLLM's names."""
    pool = manager.block_pool
    hashes = [block.block_hash for block in pool.blocks]
    index = pool.cached_block_hash_to_block
    found = [index.get_one_block(block_hash) if block_hash else None for block_hash in hashes]
    return {
        "tables": {name: ids_of(manager.get_block_ids(r.request_id)) for name, r in requests.items()},
        "refs": [block.ref_cnt for block in pool.blocks],
        "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        "hashes": [block_hash and bytes(block_hash).hex() for block_hash in hashes],
        "found": [block and block.block_id for block in found],
    }


def ids_of(tables: Any) -> list[list[int]]:
    """Return the numbers of each group's blocks."""
    return [list(ids) for ids in tables]


class ManagerWithVLLMNames(Adapter):
    """Calls a manager as a scheduler would. A subclass makes the manager and the requests, and knows `do_abort`."""

    manager: Any

    def do_start(self, message: dict[str, Any]) -> None:
        """Make a new manager."""
        self.requests: dict[str, Any] = {}
        self.hits: dict[str, Any] = {}
        self.manager = self.make_manager(message["settings"])

    def make_manager(self, settings: dict[str, Any]) -> Any:
        """Return a manager with these settings."""
        raise NotImplementedError

    def do_lookup(self, message: dict[str, Any]) -> dict[str, Any]:
        """Find the longest cached prefix, and keep its blocks."""
        blocks, num_tokens = self.manager.get_computed_blocks(self.requests[message["request"]])[:2]
        self.hits[message["request"]] = blocks
        return {"hit": num_tokens, "blocks": ids_of(blocks.get_block_ids())}

    def do_allocate(self, message: dict[str, Any]) -> dict[str, Any]:
        """Allocate slots. A refusal or an error leaves the request as it was."""
        request = self.requests[message["request"]]
        before, request.num_computed_tokens = request.num_computed_tokens, message["computed"]
        new_blocks = None
        try:
            new_blocks = self.allocate_slots(request, message, self.hits.get(message["hit_of"]))
        finally:
            if new_blocks is None:
                request.num_computed_tokens = before
        if new_blocks is None:
            return {"granted": False}
        request.num_computed_tokens += message["hit"]
        return {"granted": True, "blocks": ids_of(new_blocks.get_block_ids())}

    def allocate_slots(self, request: Any, message: dict[str, Any], hit: Any) -> Any:
        """Return the new blocks, or `None`."""
        options = {"full_sequence_must_fit": message["whole"]}
        lookahead = message["lookahead"]
        return self.manager.allocate_slots(request, message["tokens"], message["hit"], hit, lookahead, **options)

    def do_compute(self, message: dict[str, Any]) -> None:
        """Count the tokens of a step that ran."""
        self.requests[message["request"]].num_computed_tokens = message["computed"]

    do_reject = do_compute

    def do_append(self, message: dict[str, Any]) -> None:
        """Add output tokens."""
        for token in message["tokens"]:
            self.requests[message["request"]].append_output_token_ids(token)

    def do_free(self, message: dict[str, Any]) -> None:
        """End a request."""
        self.manager.free(self.requests[message["request"]])

    def do_preempt(self, message: dict[str, Any]) -> None:
        """Free a request's blocks. It will start over."""
        self.do_free(message)
        self.requests[message["request"]].num_computed_tokens = 0

    def do_evict(self, message: dict[str, Any]) -> None:
        """Remove the hashes of blocks."""
        self.manager.evict_blocks(dict.fromkeys(message["blocks"]).keys())

    def do_release(self, message: dict[str, Any]) -> None:
        """Drop a reference of each block, in the pool itself."""
        pool = self.manager.block_pool
        pool.free_blocks([pool.blocks[block_id] for block_id in message["blocks"]])

    def do_reset(self, message: dict[str, Any]) -> dict[str, Any]:
        """Forget all hashes, if no block is held."""
        return {"reset": self.manager.reset_prefix_cache()}

    def do_stats(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return every counter."""
        return {"stats": self.visible()["stats"]}

    def visible(self) -> dict[str, Any]:
        """Return the blocks, the usage and the counters."""
        stats = self.manager.prefix_cache_stats
        counters = [stats.requests, stats.queries, stats.hits]
        return {**visible_blocks(self.manager, self.requests), "usage": self.manager.usage, "stats": counters}
