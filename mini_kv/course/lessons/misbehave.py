"""A server whose cache misbehaves in one of five ways, with counters and calls that show the fault.

    case = serve("leak")            120 chats through the real scheduler, with this fault
    counters("none", "leak")        the operator's counters of two servers, side by side
    causes(case)                    the findings of `mini-kv explain` for its traffic and pool

Two faults are in the traffic (a salt per user, a time near the beginning of the prompt), one in the limits (a storm of
preemptions), and two in the engine, where a faulty part replaces the engine's own.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache

from mini_kv.core.errors import KVCacheError
from mini_kv.core.invariants import InvariantViolationError
from mini_kv.core.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.parts import KVCacheParts
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.course.given.faulty_parts import FreesFullBlocks, NeverForgets
from mini_kv.course.given.manager_under_test import prefill
from mini_kv.course.lessons.notebook import Lines
from mini_kv.story.debug import DebugKVCacheManager
from mini_kv.story.leaks import Leak, find_leaks
from mini_kv.story.lifetimes import Life, Reuse, block_lives, histogram, residency, reuses
from mini_kv.tools.traces.causes import find_causes
from mini_kv.tools.traces.commands.explain_command import report
from mini_kv.tools.traces.generators import FAULTS, generate
from mini_kv.tools.traces.observed_run import Watched, watch
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.token_trace import TokenRequest
from mini_kv.tools.traces.runners import Setup, full_attention
from mini_kv.tools.traces.waterfall import make_waterfall

NUM_REQUESTS = 120
BLOCK_SIZE = 16
_GROUPS = full_attention(BLOCK_SIZE)


@dataclass(frozen=True)
class Fault:
    """A fault and its server: a pool of `num_blocks`, at most `max_num_seqs` requests at once."""

    traffic: str | None = None
    """One of `mini_kv.tools.traces.generators.FAULTS`."""
    parts: KVCacheParts = field(default_factory=KVCacheParts)
    max_num_seqs: int = 16
    num_blocks: int = 1200
    rush: int = 1
    """Factor of the arrival rate over ten requests per second."""


SERVERS = {
    "none": Fault(),
    "salt-per-user": Fault("salt-per-user"),
    "timestamp": Fault("timestamp"),
    "leak": Fault(parts=KVCacheParts(manager_classes={FullAttentionSpec: FreesFullBlocks})),
    "storm": Fault(max_num_seqs=64, num_blocks=800, rush=50),
    "stale-index": Fault(parts=KVCacheParts(make_index=NeverForgets), num_blocks=800),
}
"""The servers by name. The first has no fault."""


@dataclass(frozen=True)
class Case:
    """A server after its run: its traffic, its counters and its calls."""

    fault: Fault
    trace: list[TokenRequest]
    seen: Watched

    @property
    def hit_rate(self) -> float:
        """Hit tokens of requests at their first admission, as a share of the prompts' tokens."""
        return sum(self.seen.hits) / sum(entry.input_length for entry in self.trace[: len(self.seen.hits)])

    @property
    def num_users(self) -> int:
        """Number of different salts."""
        return len({entry.cache_salt for entry in self.trace})

    def lives(self) -> list[Life]:
        """Return the lives of all blocks, in seconds."""
        return block_lives(self.seen.kv.spans, self.seen.times)

    def reuses(self) -> list[Reuse]:
        """Return each repeated use of a block hash, with the seconds since its last use."""
        return reuses(self.seen.kv.spans, self.seen.times)

    def leaks(self) -> list[Leak]:
        """Return the blocks that are still referenced although their request has ended."""
        alive = [*self.seen.scheduler.requests]
        return find_leaks(self.seen.kv, self.seen.kv.spans, self.seen.times, alive)


@cache
def serve(name: str, seed: int = 0, *, max_num_seqs: int | None = None) -> Case:
    """Serve 120 chats of this seed on the server of that name in `SERVERS`. `max_num_seqs`: replaces its own limit.

    Raises `KeyError` for an unknown name.
    """
    fault = SERVERS[name]
    limits = SchedulerConfig(max_num_seqs=max_num_seqs or fault.max_num_seqs)
    trace = _make_trace(fault, seed)
    return Case(fault, trace, watch(trace, fault.num_blocks, BLOCK_SIZE, limits=limits, parts=fault.parts))


def _make_trace(fault: Fault, seed: int) -> list[TokenRequest]:
    """Return a server's traffic: that of `mini-kv trace make chat`, with the server's fault and a burst of requests."""
    chats = generate("chat", NUM_REQUESTS, seed)
    trace = [replace(entry, timestamp=entry.timestamp // fault.rush) for entry in chats]
    return FAULTS[fault.traffic](trace) if fault.traffic else trace


def counters(*names: str, seed: int = 0, letters: str = "") -> Lines:
    """Return the operator's counters, one column per server. `letters`: headings in place of the names."""
    heads = letters or names
    columns = [_column(head, serve(name, seed)) for head, name in zip(heads, names, strict=True)]
    width = 2 + max(len(cell) for column in columns for cell in column.values())
    lines = [f"{label:22}" + "".join(f"{column[label]:>{width}}" for column in columns) for label in columns[0]]
    return Lines("\n".join(lines))


def _column(name: str, case: Case) -> dict[str, str]:
    seen = case.seen
    return {
        "": name,
        "pool, in blocks": f"{case.fault.num_blocks:,}",
        "hit rate": f"{case.hit_rate:.1%}",
        "tokens computed": f"{seen.tokens_computed:,}",
        "usage, at most": f"{max(seen.usage):.0%}",
        "usage, after the last": f"{seen.usage[-1]:.1%}",
        "keys in the index": f"{max(seen.num_keys):,}",
        "preemptions": str(seen.scheduler.num_preemptions),
        "answers": f"{seen.num_answers}",
    }


def explained(case: Case) -> str:
    """Return the rows and causes of `mini-kv explain` for a server's traffic, its pool and its limit."""
    setup = Setup(_GROUPS, case.fault.num_blocks)
    prompts = make_prompts(case.trace, BLOCK_SIZE)
    waterfall = make_waterfall(case.trace, prompts, setup, concurrency=case.fault.max_num_seqs)
    return "\n".join(report(waterfall, find_causes(waterfall, prompts)))


def causes(case: Case) -> list[str]:
    """Return the names of the causes that `explain` finds, from the server's reports too."""
    setup = Setup(_GROUPS, case.fault.num_blocks)
    observed = case.seen.hits
    trace = case.trace[: len(observed)]
    prompts = make_prompts(trace, BLOCK_SIZE)
    waterfall = make_waterfall(trace, prompts, setup, concurrency=case.fault.max_num_seqs, observed=observed)
    return [cause.name for cause in find_causes(waterfall, prompts, observed)]


def hits_per_request(case: Case) -> dict[str, int]:
    """Return the number of requests with no hit, one block, up to half of the prompt, and more."""
    groups = dict.fromkeys(("nothing", "one block", "up to half", "more than half"), 0)
    for entry, hit in zip(case.trace, case.seen.hits, strict=False):
        more = "up to half" if 2 * hit <= entry.input_length else "more than half"
        groups["nothing" if hit == 0 else "one block" if hit == BLOCK_SIZE else more] += 1
    return groups


def second_uses(case: Case) -> Counter[str]:
    """Return three counts: reuses with a hit, reuses computed again, and block hashes used only once."""
    again = case.reuses()
    keys = {life.block_hash for life in case.lives() if life.block_hash is not None}
    counts = Counter("found" if reuse.found else "computed again" for reuse in again)
    counts["never came back"] = len(keys - {reuse.block_hash for reuse in again})
    return counts


def debugged(name: str, seed: int = 0) -> Lines:
    """Serve the same with a manager that checks itself after every call. Return its error message, or ""."""
    fault = SERVERS[name]
    manager = KVCacheManager(KVCacheConfig(fault.num_blocks, _GROUPS), parts=fault.parts)
    kv = DebugKVCacheManager(manager)
    try:
        for number, entry in enumerate(_make_trace(fault, seed)):
            request = kv.new_request(str(number), entry.token_ids, cache_salt=entry.cache_salt)
            prefill(kv, request)
            kv.free(request)
    except (InvariantViolationError, KVCacheError) as error:
        return Lines(error)
    return Lines()


def bars(values: dict[int, int], unit: str = "s") -> str:
    """Return a histogram of `mini_kv.story.lifetimes.histogram` as lines of text."""
    most = max(values.values(), default=1)
    return "\n".join(
        f"below {bound:>3} {unit} {count:>6,} {'#' * round(40 * count / most)}".rstrip()
        for bound, count in values.items()
    )


def ages(case: Case) -> str:
    """Return the unused time of blocks before their eviction, as lines of text."""
    return bars(histogram(idle_seconds(case)))


def idle_seconds(case: Case) -> list[float]:
    """Return the unused seconds of each evicted block."""
    return [life.idle_before_evict for life in case.lives() if life.block_hash and life.idle_before_evict is not None]


def memory_spent(case: Case) -> dict[str, str]:
    """Return the uses of the occupied memory, as shares of blocks times seconds."""
    spent = residency(case.lives(), case.seen.times[-1])
    return {what: f"{blocks_seconds / sum(spent):.0%}" for what, blocks_seconds in spent._asdict().items()}
