"""Belady's bound: the most hits that any eviction policy can find in a pool."""

from collections.abc import Sequence
from heapq import heappop, heappush

from mini_kv.core.block import BlockHash
from mini_kv.policy.belady import next_uses
from mini_kv.tools.traces.prompt_hashes import Prompt


def belady_hit_blocks(prompts: Sequence[Prompt], block_size: int, num_blocks: int) -> int:
    """Return the most blocks that any policy can hit in this pool, the null block included, one request at a time.

    Each miss evicts the block with the farthest next use. It is a bound, not a policy, because here a request takes its
    blocks one by one, but a real pool must hold all of them at once. Refused prompts are ignored.

    Source: Belady (1966), doi.org/10.1147/sj.52.0078. Costs O(blocks + requests * log(requests)).
    """
    fitting = [prompt for prompt in prompts if -(-prompt.num_tokens // block_size) < num_blocks]
    held = _HeldBlocks()
    num_hits, num_free = 0, num_blocks - 1
    all_uses = next_uses([prompt.block_hashes for prompt in fitting])
    for number, (prompt, uses) in enumerate(zip(fitting, all_uses, strict=True)):
        run: list[BlockHash] = []
        use_of_run = -1
        for block_hash, use in zip(prompt.block_hashes, uses, strict=True):
            if block_hash in held.next_use:
                num_hits += 1
            elif num_free:
                num_free -= 1
            else:
                held.evict_farthest()
            if use != use_of_run or not run:
                run, use_of_run = held.new_run(use), use
            run.append(block_hash)
            held.next_use[block_hash] = use
        held.runs.pop(number, None)  # all of these have been used now
    return num_hits


class _HeldBlocks:
    """The blocks that Belady's policy holds, by the request that uses them next.

        request 1    a0 a1 a2 a3         request 5 uses all four next: a run of these
        request 3    a0 a1 b2            request 5 uses a0 and a1 next: a second run. In the first one they are outdated

    A block hash covers all blocks before it, too. So a later request leaves, for the same next request, blocks that are
    nearer to its beginning. Of several runs the first run's last block is used last.
    """

    def __init__(self) -> None:
        self.next_use: dict[BlockHash, int] = {}
        """Per block that is held, the request that uses it next."""
        self.runs: dict[int, list[list[BlockHash]]] = {}
        """Per request the blocks that it uses next, those of one earlier request in a run, from its first block on."""
        self._farthest: list[int] = []
        """A heap of the requests in `runs`, the last one first: negative numbers."""

    def new_run(self, use: int) -> list[BlockHash]:
        """Return a new run of blocks that this request uses next, for the caller to fill."""
        run: list[BlockHash] = []
        if use not in self.runs:
            self.runs[use] = []
            heappush(self._farthest, -use)
        self.runs[use].append(run)
        return run

    def evict_farthest(self) -> None:
        """Drop the block whose next use is the farthest."""
        while True:
            use = -self._farthest[0]
            runs = self.runs.get(use, [])
            while runs and not runs[0]:
                del runs[0]
            if not runs:
                self.runs.pop(use, None)
                heappop(self._farthest)
                continue
            victim = runs[0].pop()
            if self.next_use.get(victim) == use:
                del self.next_use[victim]
                return
