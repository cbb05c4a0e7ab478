"""Counts a trace's hits without the engine: a plain LRU over block ids, in twenty lines, to compare a replay with.

The result is nearly the engine's, and every difference is known. The prompt tokens hit in Mooncake's
`synthetic_trace.jsonl` (3,993 requests, 61,194,628 prompt tokens), one request at a time, as the rules become
the engine's one by one:

                                                             unbounded          10,000 blocks
    plain LRU over ids, partial last blocks included    39,852,661  65.12 %  26,421,660  43.18 %
    a partial block never hits: it has no hash          39,802,880  65.04 %  26,394,112  43.13 %
    it takes no room once its request is over           39,802,880  65.04 %  27,111,424  44.30 %
    the null block is one of the 10,000                 39,802,880  65.04 %  27,110,400  44.30 %
    a partial block takes room while its request runs   39,802,880  65.04 %  27,109,376  44.30 %
    at most `num_tokens - 1` tokens are hit: the engine 39,802,880  65.04 %  27,109,376  44.30 %

The partial block makes the difference. Counted as a hit, it adds up to 511 tokens to a prompt that comes a second time
(213 times in the unbounded column). Kept, it costs more than that: 3,776 of the 43,924 ids are partial
blocks, one for nearly every prompt, and each takes the room of a full block that could have been hit. The
engine puts a block without a hash at the front of the free queue, to be reused first.
"""

from collections import OrderedDict
from collections.abc import Iterable

from mini_kv.tools.traces.readers.mooncake import TraceRequest


def plain_lru_hit_tokens(trace: Iterable[TraceRequest], num_blocks: int | None = None) -> int:
    """Return the number of prompt tokens that hit in an LRU of `num_blocks` ids. `None` is unbounded.

    One request at a time. Its ids are refreshed from tail to head, so that the tail is evicted first, as in
    the engine.
    """
    ids: OrderedDict[int, None] = OrderedDict()  # the least recently used first
    hit_tokens = 0
    for request in trace:
        num_hits = 0
        while num_hits < len(request.hash_ids) and request.hash_ids[num_hits] in ids:
            num_hits += 1
        hit_tokens += min(num_hits * request.block_size, request.input_length)
        for hash_id in reversed(request.hash_ids):
            ids[hash_id] = None
            ids.move_to_end(hash_id)
        while num_blocks is not None and len(ids) > num_blocks:
            ids.popitem(last=False)
    return hit_tokens
