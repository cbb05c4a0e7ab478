"""The arena of lab-13: six workloads, and the hits of a policy on each.

A prompt is a list of words, and a word fills a block. Each workload is made from a seed, so all policies get the same
requests. A request ends before the next one arrives.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from mini_kv.core.free_queue import FreeKVCacheBlockQueue
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.course.given.manager_under_test import prefill
from mini_kv.policy.belady import belady
from mini_kv.policy.eviction import Policy, parts_of
from mini_kv.tools.traces.generators import Lengths
from mini_kv.tools.traces.generators import agent_sessions as requests_of_sessions

NUM_BLOCKS = 60
"""Blocks of every arena's pool, without the null block."""
BLOCK_SIZE = 2
"""Tokens per word and block. In a block of 1 token, the last token, which is always computed, would have a hash."""
Words = list[int]


def chat(rng: random.Random) -> list[Words]:
    """Twelve conversations. Usually a recent one continues, and each turn repeats all earlier turns."""
    lengths, order, prompts = [2] * 12, list(range(12)), []
    for _ in range(260):
        who = order.pop(min(int(rng.expovariate(0.45)), 11))
        order.insert(0, who)
        lengths[who] = 2 if lengths[who] > 13 else lengths[who] + 1
        if lengths[who] == 2:
            order.append(order.pop(0))
        prompts.append([1000 * who + turn for turn in range(lengths[who])])
    return prompts


def passers_by(rng: random.Random) -> list[Words]:
    """Four prefixes that repeat often, and between them long prompts that occur only once."""
    prompts = []
    for number in range(260):
        if rng.random() < 0.45:
            favourite = rng.randrange(4)
            prompts.append([100 * favourite + word for word in range(8)])
        else:
            prompts.append([10_000 + 20 * number + word for word in range(14)])
    return prompts


def round_robin(rng: random.Random) -> list[Words]:
    """Ten documents in turns, slightly more than fit. Each is requested just after the eviction of its blocks."""
    return [[100 * (number % 10) + word for word in range(7)] for number in range(260)]


def fashions(rng: random.Random) -> list[Words]:
    """Thirty documents, a few of them popular. The popular ones change every fifty requests."""
    prompts = []
    for number in range(300):
        rank = min(int(rng.paretovariate(1.1)) - 1, 29)
        document = (rank + 7 * (number // 50)) % 30
        prompts.append([100 * document + word for word in range(6)])
    return prompts


def agents(rng: random.Random) -> list[Words]:
    """Three sets of tools, each followed by a task's own steps: trunks with many branches, most of them seen once."""
    prompts = []
    for number in range(240):
        kind = rng.randrange(3)
        trunk = [100 * kind + word for word in range(10)]
        task = [5_000 + 40 * (number // 4) + word for word in range(rng.randrange(2, 9))]
        prompts.append(trunk + task)
    return prompts


def agent_sessions(rng: random.Random) -> list[Words]:
    """Eight sessions of coding agents that grow with each request, with pauses: seconds for a tool, more for a user."""
    words = Lengths(tools=3, subagent_tools=2, task=2, answer=1, result=1, longest_growth=3, limit=16, summary=3)
    requests = requests_of_sessions(rng, words, vocabulary=10**9)
    return [list(request.token_ids) for request in islice(requests, 400)]


WORKLOADS: dict[str, Callable[[random.Random], list[Words]]] = {
    "chat": chat,
    "passers-by": passers_by,
    "round-robin": round_robin,
    "fashions": fashions,
    "agents": agents,
    "agent sessions": agent_sessions,
}
"""The workloads by name. No policy is best on all of them."""


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a policy on a workload."""

    num_hits: int
    """Number of words with a hit."""
    num_words: int
    microseconds: float
    """CPU time of the policy's own methods, per word. It varies from run to run. The hits do not."""

    @property
    def percent(self) -> float:
        """Words with a hit, in percent."""
        return 100 * self.num_hits / self.num_words


def play(policy: Policy, prompts: Sequence[Words], num_blocks: int = NUM_BLOCKS) -> Score:
    """Send the prompts through a cache that evicts by `policy`, one after the other."""
    kv = new_cache(policy, num_blocks)
    start = time.process_time()
    num_hits = sum(send(kv, number, words) for number, words in enumerate(prompts))
    seconds = time.process_time() - start
    num_words = sum(map(len, prompts))
    return Score(num_hits, num_words, 1e6 * seconds / num_words)


def new_cache(policy: Policy, num_blocks: int) -> KVCacheManager:
    """Return an empty cache with blocks for `num_blocks` words, and one for the token that is always computed."""
    group = KVCacheGroupSpec(("layer",), FullAttentionSpec(BLOCK_SIZE))
    return KVCacheManager(KVCacheConfig(num_blocks + 2, (group,)), parts=parts_of(policy))


def send(kv: KVCacheManager, number: int, words: Words) -> int:
    """Admit, compute and free a request. Return the number of its words with a hit."""
    request = kv.new_request(str(number), tokens_of(words))
    num_hit_tokens = prefill(kv, request)
    if num_hit_tokens is None:
        raise AssertionError(f"a prompt of {len(words)} words does not fit")
    kv.free(request)
    return num_hit_tokens // BLOCK_SIZE


def tokens_of(words: Words) -> list[int]:
    """Return a prompt's tokens: two for each word, and one more, which is always computed."""
    return [token for word in words for token in [word] * BLOCK_SIZE] + [0]


def ceiling(prompts: Sequence[Words], num_blocks: int = NUM_BLOCKS) -> Score:
    """Return the score of Belady's policy, which knows all prompts beforehand: an upper bound."""
    kv = new_cache(FreeKVCacheBlockQueue, num_blocks)
    hashes = [kv.new_request(str(number), tokens_of(words)).block_hashes for number, words in enumerate(prompts)]
    return play(belady(hashes), prompts, num_blocks)


def workload(name: str) -> list[Words]:
    """Return the prompts of the workload with this name."""
    return WORKLOADS[name](random.Random(f"arena {name}"))
