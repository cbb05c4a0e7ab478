"""Why a server's hit rate is what it is, as far as its counters and its log can tell.

    all prompts at most 500 tokens, blocks of 528   none is long enough                             sure
    95,000 tokens written, 109,376 in the pool      nothing was evicted                             sure
    3 preemptions                                   the pool was full: cached blocks were evicted   likely
    0 hits in 400 long prompts, nothing evicted     they differ early, or may not share             one of two

Counters have no texts. So they never tell which of two prompts differs, or how much would have been found in a larger
pool. In these cases the answer names the one thing to record.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mini_kv.tools.traces.readers.request_logs import LOGGING
from mini_kv.tools.traces.readers.server_counters import Counters


class Cause(StrEnum):
    """A cause of a hit rate."""

    NO_REQUEST = "no request"
    OFF = "prefix caching is off"
    NOT_ASKED = "no lookup"
    COUNTED_AGAIN = "tokens that were looked up more than once"
    SHORT = "short prompts"
    DRAFTS = "drafts"
    LATE = "retention"
    EVICTED = "evictions"
    EVICTED_OR_NEW = "evictions, or prompts that share no more"
    RESET = "reset"
    STATES = "a state is kept only where a request ended"
    DIFFERENT = "different prompts"
    DIFFERENT_OR_LATE = "different prompts, or no state or window where they part"
    ALL_FOUND = "the cache finds what it can"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BlockLengths:
    """What is known of the model's blocks, in tokens."""

    shortest: int
    """The shortest prompt that can find anything."""
    shortest_without_drafts: int
    is_late: bool = False
    """Whether a shared prefix is found by the third request, and not by the second."""
    is_plain: bool = True
    """Whether all layers keep all tokens, in blocks of one table: then tokens written are tokens of the pool."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A cause, with the sentences that prove it."""

    cause: Cause
    is_sure: bool
    """Whether the counters leave no other explanation."""
    sentences: tuple[str, ...]
    record: str = ""
    """The one thing to record next, if there is one."""
    has_fallen: bool = False
    """Whether the logged rate was high before."""


PAIR = "two prompts that should share, as two lines of tokens or texts: mini-kv explain --pair A B"
METRICS = "the server's metrics, beside the log: --metrics http://HOST:PORT/metrics"
SOURCES = "vllm:prompt_tokens_by_source_total, or cached_tokens in the usage of single answers"
STRATEGY = "the same prompt twice, with --mamba-scheduler-strategy extra_buffer"
_MUCH_MORE = 1.2
"""Lookups per token of a prompt from which they count as more. A server that starts looks up before it counts."""
FALLEN, HIGH = 0.02, 0.1
"""Logged hit rates that count as nothing, and as something."""


def explain_counters(counters: Counters, blocks: BlockLengths) -> Answer:
    """Return what explains the hit rate. The first cause that the counters prove counts."""
    return next(_answers(counters, blocks))


def _answers(counters: Counters, blocks: BlockLengths) -> Iterator[Answer]:
    """Yield the causes that fit, the surest first. The last one always fits."""
    yield from _without_lookups(counters)
    yield from _counted_again(counters)
    yield from _too_short(counters, blocks)
    yield from _fallen(counters, blocks)
    if counters.queries is None:
        said = f"The logged hit rate is {counters.rates[-1]:.0%}, and a log has no other numbers of hits."
        yield Answer(Cause.UNKNOWN, False, (said,), METRICS)
    elif not counters.hits:
        yield from _nothing_found(counters, blocks)
    else:
        yield from _found(counters, blocks)


def _without_lookups(counters: Counters) -> Iterator[Answer]:
    if counters.caching is False:
        yield Answer(Cause.OFF, True, ("Prefix caching is off: vLLM's flag is --enable-prefix-caching.",))
    if counters.queries is None and not counters.rates:
        yield Answer(Cause.UNKNOWN, False, ("No text says how many tokens were looked up.",), METRICS)
    elif counters.queries is not None and (counters.hits or 0) > counters.queries:
        said = f"{counters.hits:,} tokens found of {counters.queries:,} looked up: the texts do not fit together."
        yield Answer(Cause.UNKNOWN, False, (said,), METRICS)
    elif counters.queries == 0 and counters.requests:
        said = f"{counters.requests:,} requests have ended, and no token was looked up."
        why = "Either prefix caching is off, or every request asked for the log-probabilities of its prompt."
        yield Answer(Cause.NOT_ASKED, False, (said, why), "the log from the server's start on: --log")
    elif counters.queries == 0:
        yield Answer(Cause.NO_REQUEST, True, ("No request has been looked up yet.",))


def _counted_again(counters: Counters) -> Iterator[Answer]:
    """Yield the answer for more lookups than prompts.

    A prompt that is not counted yet has blocks, so the pool bounds what all of them have.
    """
    queries, prompts = counters.queries, counters.prompt_tokens
    if queries is None or not prompts or queries <= _MUCH_MORE * prompts:
        return
    is_sure = counters.pool_tokens is not None and queries - prompts > counters.pool_tokens
    if not is_sure and not counters.preemptions:
        return
    said = f"{queries:,} tokens were looked up for {prompts:,} tokens of prompts: {queries / prompts:.1f} times each."
    why = "Older versions of vLLM look up and count a request again at each try to admit it, and after a preemption."
    rate = f"So the rate of {(counters.hits or 0) / queries:.1%} is not the share of prompts that was found."
    if counters.cached is None:
        yield Answer(Cause.COUNTED_AGAIN, is_sure, (said, why, rate), SOURCES)
    else:
        share = f"By source, {counters.cached:,} of {prompts:,} tokens of prompts came from this cache:"
        yield Answer(Cause.COUNTED_AGAIN, is_sure, (said, why, rate, f"{share} {counters.cached / prompts:.1%}."))


def _too_short(counters: Counters, blocks: BlockLengths) -> Iterator[Answer]:
    """Yield the answer for prompts of which none is long enough, by the longest that is possible or was counted."""
    if counters.hits:
        return
    most = counters.max_model_len
    if counters.queries and most is not None and most < blocks.shortest:
        said = f"The server takes requests of at most {most:,} tokens (--max-model-len)."
        yield Answer(Cause.SHORT, True, (said, f"The shortest prompt that finds anything has {blocks.shortest:,}."))
    if not counters.lengths:
        return
    total = counters.lengths[-1][1]
    longest = next(bound for bound, count in counters.lengths if count == total)
    if not total or longest >= blocks.shortest:
        return
    said = f"All {total:,} prompts have at most {longest:,.0f} tokens. The shortest that finds anything has"
    if longest >= blocks.shortest_without_drafts:
        least = f"Without them the shortest that is sent twice has {blocks.shortest_without_drafts:,}."
        without = f"With drafts (--speculative-config) a hit drops its last block. {least}"
        too_short = max(
            (count for bound, count in counters.lengths if bound < blocks.shortest_without_drafts), default=0
        )
        never = f"At least {too_short:,} of the prompts are shorter: they find nothing without drafts either."
        sentences = (f"{said} {blocks.shortest:,} with drafts.", without, *[never] * (too_short > 0))
        yield Answer(Cause.DRAFTS, True, sentences)
    else:
        yield Answer(Cause.SHORT, True, (f"{said} {blocks.shortest:,}.",))


def _fallen(counters: Counters, blocks: BlockLengths) -> Iterator[Answer]:
    """Yield the answers for a logged rate that was high and is nothing now."""
    rates = counters.rates
    if len(rates) < 4 or max(rates[:-2]) < HIGH or max(rates[-2:]) > FALLEN:
        return
    said = (
        f"The logged hit rate was {max(rates[:-2]):.0%} and fell to {rates[-1]:.0%}. It is of the last 1,000 requests."
    )
    kept = _nothing_evicted(counters, blocks)
    if counters.resets:
        yield Answer(Cause.RESET, False, (said, _resets(counters)), PAIR, True)
    yield from _evictions(counters, said, has_fallen=True)
    if kept:
        why = "So newer prompts differ from those before at their beginning, or may not share with them."
        yield Answer(Cause.DIFFERENT, False, (said, *kept, why), PAIR, True)
    why = "Either the pool is full since then, or the prompts have changed. The counters would tell."
    yield Answer(Cause.UNKNOWN, False, (said, why), METRICS, True)


def _nothing_found(counters: Counters, blocks: BlockLengths) -> Iterator[Answer]:
    said = f"Of {counters.queries:,} tokens of prompts none was found."
    if blocks.is_late and counters.requests is not None and counters.requests <= 2:
        why = "The second request that shares a prefix shows where to keep a state or a window. The third finds it."
        yield Answer(Cause.LATE, False, (said, why), "the counters again, after a third request")
    mean = (counters.queries or 0) / counters.requests if counters.requests else math.inf
    if mean < blocks.shortest:
        cause = Cause.DRAFTS if mean >= blocks.shortest_without_drafts else Cause.SHORT
        why = f"A prompt has {mean:,.0f} tokens on average, and the shortest that finds anything {blocks.shortest:,}."
        yield Answer(cause, False, (said, why), PAIR)
    if counters.resets:
        yield Answer(Cause.RESET, False, (said, _resets(counters)), PAIR)
    yield from _evictions(counters, said)
    if counters.states_at_end:
        where = (
            "SGLang keeps a state only where a request ended (no_buffer), and looks for a hit before a prompt's end."
        )
        so = "So the same prompt again finds nothing. A prompt that continues the answer does."
        yield Answer(Cause.STATES, False, (said, where, so), STRATEGY)
    kept = "Or they share, and no state or window was kept where they part: --prefix-cache-retention-interval."
    early = "Prompts differ at their beginning (a date, a name), or may not share (a salt, an adapter, an image)."
    excluded = _nothing_evicted(counters, blocks)
    cause = Cause.DIFFERENT_OR_LATE if blocks.is_late else Cause.DIFFERENT
    yield Answer(cause, False, (said, *excluded, *_elsewhere(counters), early, *[kept] * blocks.is_late), PAIR)


def _found(counters: Counters, blocks: BlockLengths) -> Iterator[Answer]:
    """Yield the answers where something was found: what is known of the rest."""
    hits, queries = counters.hits or 0, counters.queries or 0
    share = f"{hits:,} of {queries:,} tokens of prompts were found: {hits / queries:.1%}."
    if counters.last_batch is not None:
        share += f" The gauge sglang:cache_hit_rate ({counters.last_batch:.1%}) is of the last batch alone."
    said = (share, *_elsewhere(counters))
    if counters.resets and not counters.preemptions:
        yield Answer(Cause.RESET, False, (*said, _resets(counters)), _trace(counters))
    yield from _evictions(counters, *said)
    if kept := _nothing_evicted(counters, blocks):
        rest = "Unless the cache was reset, the rest begins no earlier prompt that may share, or fills no block."
        is_sure = blocks.shortest == blocks.shortest_without_drafts
        yield Answer(Cause.ALL_FOUND, is_sure, (*said, *kept, rest))
    yield Answer(Cause.UNKNOWN, False, said, _trace(counters))


def _elsewhere(counters: Counters) -> tuple[str, ...]:
    """Return what other caches have to do with it: those of more engines, of a connector, of a server that prefills."""
    sentences = []
    if counters.engines > 1:
        other = "A request that goes to another engine than the one it shares with finds nothing there."
        sentences.append(f"The server has {counters.engines} engines, with a cache each. {other}")
    asked, found = counters.external
    if asked:
        sentences.append(f"A connector was asked for {asked:,} tokens that this cache lacked, and had {found:,}.")
    if counters.is_consumer:
        sentences.append("Another server prefills for this one (kv_consumer): its counters say what prompts share.")
    return tuple(sentences)


def _resets(counters: Counters) -> str:
    times = "once" if counters.resets == 1 else f"{counters.resets:,} times"
    return (
        f"The log says that the cache was emptied {times}, as after new weights: what follows finds nothing at first."
    )


def _written(counters: Counters) -> int | None:
    """Return the tokens that were computed and written into blocks since the start, or `None` if not known."""
    if counters.prompt_tokens is None or counters.hits is None or counters.generated is None:
        return None
    computed = counters.prompt_tokens - counters.hits if counters.computed is None else counters.computed
    return computed + counters.generated if computed >= 0 else None


def _evictions(counters: Counters, *said: str, has_fallen: bool = False) -> Iterator[Answer]:
    """Yield the answer of evictions, if something speaks for them."""
    sentences = []
    written = _written(counters)
    if counters.evicted is not None:
        sentences += [f"SGLang evicted {counters.evicted:,} tokens."] if counters.evicted else []
    elif written is not None and counters.pool_tokens is not None and written > counters.pool_tokens:
        used = f"{written:,} tokens were written into a pool of {counters.pool_tokens:,}"
        sentences.append(f"{used}, so blocks were used again.")
    if counters.preemptions:
        times = "once" if counters.preemptions == 1 else f"{counters.preemptions:,} times"
        sentences.append(f"A request was preempted {times}: the pool was full, with no cached block left to evict.")
    if not sentences:
        return
    cause = Cause.EVICTED if counters.preemptions else Cause.EVICTED_OR_NEW
    rival = "Prompts that share nothing would show the same counters."
    helps = "Against evictions: a larger pool (--kv-cache-dtype fp8, more memory or GPUs), fewer requests at once"
    helps += " (--max-num-seqs), or each user's requests to the same server."
    yield Answer(cause, False, (*said, *sentences, rival, helps), _trace(counters), has_fallen)


def _trace(counters: Counters) -> str:
    """Return how to record an hour of traffic, and what to do with it."""
    size, pool = counters.block_size, counters.pool_tokens
    flags = f" --num-blocks {pool // counters.engines // size + 1}" if size and pool else " --num-blocks N"
    flags += f" --block-size {size}" if size not in (None, 16) else ""
    how = f"an hour of requests in the server's log ({LOGGING[counters.engine]})"
    return f"{how}: mini-kv curve LOG{flags}, and mini-kv explain LOG{flags}"


def _nothing_evicted(counters: Counters, blocks: BlockLengths) -> tuple[str, ...]:
    """Return the sentence that excludes evictions, if the counters prove it.

    Each request can waste a part of its last block. Windows and states take blocks of their own.
    """
    written, size, ended, running = _written(counters), counters.block_size, counters.requests, counters.running
    if written is None or counters.pool_tokens is None or size is None or ended is None or running is None:
        return ()
    wasted = (ended + running) * size
    is_one = blocks.is_plain and counters.engines == 1 and not counters.is_consumer
    if counters.preemptions != 0 or not is_one or written + wasted > counters.pool_tokens:
        return ()
    return (f"Nothing was evicted: {written:,} tokens were written, and the pool holds {counters.pool_tokens:,}.",)
