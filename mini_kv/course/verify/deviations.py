"""The intended differences between mini_kv and vLLM: one list, for the book's table and for the golden scenarios.

A recorded scenario may differ from vLLM only where a call names a deviation of this list (`tests/test_golden.py`).
"""

from dataclasses import dataclass

UPSTREAM = "vLLM 0.33.0"
"""The version that the list compares with."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """One intended difference."""

    deviation_id: str
    symbol: str
    """The differing symbol, by its name below `vllm/v1`."""
    vllm: str
    """The behaviour of vLLM."""
    mini_kv: str
    """The behaviour of mini_kv."""
    why: str


# A table: a row is a record, and reads better on three lines than on seven.
# fmt: off
DEVIATIONS = (
    # Misuse and mistakes: raised at the guilty line, with nothing changed.
    Deviation("free-unknown", "KVCacheManager.free", "ignores a request that holds nothing",
        "raises `UnknownRequestError`", "a second free is a caller's bug, and hides until an id is used again"),
    Deviation("double-free", "BlockPool.free_blocks", "counts below zero; two references go if a block is given twice",
        "raises `BlockStateError`", "the block is lost or handed out twice, far from the mistake"),
    Deviation("repeated-id", "KVCacheManager.allocate_slots", "takes a second request with an id in use for the first",
        "raises `RepeatedRequestError`", "its tokens would be written into another request's table"),
    Deviation("hit-counted-once", "KVCacheManager.allocate_slots", "adds `num_computed_tokens` and the hit, unasked",
        "the hit is adopted or passed, once, with its blocks, else `AllocationError`",
        "otherwise blocks that no step computed get slots and keys"),
    Deviation("hit-verified", "KVCacheManager.allocate_slots", "adopts whatever blocks it is given",
        "raises `AllocationError` unless each block carries the request's own hash, at most to the last but one token",
        "between lookup and allocation a block may have been given away"),
    Deviation("computed-has-slots", "KVCacheManager.allocate_slots", "fills the gap and publishes it",
        "raises `AllocationError` for more computed tokens than slots", "no KV was ever written there"),
    Deviation("one-token-a-step", "KVCacheManager.allocate_slots", "takes 0 new tokens together with a hit",
        "raises `AllocationError`", "upstream's reason, remote KV that arrives later, is not built here"),
    Deviation("evict-validated", "BlockPool.evict_blocks", "asserts as it goes; a negative id counts from the end",
        "raises `BlockStateError` before it evicts any", "half an eviction, or another block's, is hard to find"),
    Deviation("tokens-validated", "Request", "takes any tokens; the server checks them elsewhere",
        "raises `InvalidTokenError` unless `0 <= t < 2**32` and no boolean; refuses an empty prompt",
        "`True` equals 1 but pickles otherwise: the same prompt would miss in silence"),
    Deviation("errors", "KVCacheManager", "`AssertionError`, `ValueError`",
        "`KVCacheError` and its kinds, which carry data", "`python -O` drops assertions; tests name what they expect"),
    Deviation("pool-of-one", "BlockPool", "can be built with the null block alone",
        "raises `ConfigError` below 2 blocks", "it could never serve a request"),
    # Keys.
    Deviation("hash-recipe", "hash_block_tokens", "hashes a pickle of (parent, tokens, extras)",
        "hashes packed tokens and framed extras", "a pickle depends on Python types and on which objects are identical;"
        " packing is also faster"),
    Deviation("hash-seed", "init_none_hash", "`PYTHONHASHSEED` or a random seed can move all keys",
        "the root is a digest of recipe version and namespace; xxh3 is refused with a salt",
        "keys agree between processes and with the golden vectors"),
    Deviation("key-namespace", "generate_block_hash_extra_keys",
        "salt in the first block's extras; no model, no epoch", "salt, model fingerprint and weights epoch in the root",
        "one place decides who shares with whom; new weights need no reset"),
    Deviation("hash-lookahead", "KVCacheManager.__init__", "takes `use_eagle` and `num_hash_lookahead_tokens`; covers"
        " as many tokens as a drafter reads ahead", "reads both off `KVCacheConfig`; covers 0 tokens or 1",
        "the config says how blocks are found; no drafter here reads further"),
    Deviation("drafter-retention", "replay_boundaries", "keeps a block more where hits drop one, under a retention"
        " interval; drops in groups without a flag if no group has one", "`ConfigError` for a drop and a retention"
        " interval; only flagged groups drop", "hashes that cover the next token need neither"),
    Deviation("empty-salt", "generate_block_hash_extra_keys", "an empty salt is no salt",
        "raises `ConfigError`", "a tenant whose salt was lost must not end up in a cache that others share"),
    Deviation("image-order", "generate_block_hash_extra_keys", "expects images by offset",
        "looks at all of them for each block", "out of order, a block would forget its image and be shared by mistake"),
    # Promises and statistics.
    Deviation("withdraw-promises", "KVCacheManager.free", "keeps keys of blocks that no step wrote (PR #43569, open)",
        "`withdraw_promises` takes them back when a step never ran", "a later request would read unwritten KV"),
    Deviation("stats", "PrefixCacheStats", "filled by the scheduler, emptied by each reader; preempted"
        " requests apart", "filled by `allocate_slots`, first admissions only; never emptied",
        "three numbers that add up; all others follow from the recorded calls"),
    # Several groups.
    Deviation("refusal-slides", "KVCacheManager.allocate_slots", "gives back what slid out, then may refuse",
        "counts it as free, and gives it back only if the step is granted", "a refusal changes nothing"),
    Deviation("gate-after-hit", "SingleTypeKVCacheManager.get_num_blocks_to_allocate",
        "takes a hit's null blocks off the bound of a window or of chunks", "takes off its real blocks",
        "a null block is no memory: a request would be let in that never fits"),
    Deviation("state-gate", "MambaManager.get_num_blocks_to_allocate", "plans 2 states per request, lets it in for 1",
        "2 in both", "one formula for sizing and for admission"),
    Deviation("window-bound", "SlidingWindowSpec.max_admission_blocks_per_request",
        "a block more than a short request has", "never more than the request's own blocks",
        "the plan for short contexts is exact"),
    Deviation("chunk-bound", "ChunkedLocalAttentionSpec.max_admission_blocks_per_request",
        "the blocks of a chunk and of the tokens in flight", "one more where chunks start within blocks",
        "such a chunk begins in a block that it does not fill: what is let in has room for it"),
    Deviation("dense-retention", "CacheConfig.prefix_cache_retention_interval", "0 by default: windows and states keep"
        " keys at the ends of prompts and where prompts parted", "`None` by default: every block that a hit can need",
        "a prompt can be shared at any boundary; the switch is the same, and 0 gives vLLM's hits"),
    Deviation("reachable-mask", "SlidingWindowManager.reachable_block_mask",
        "skips blocks that no boundary's window needs", "publishes all full blocks up to the last boundary",
        "matters only where a window is shorter than a boundary"),
    Deviation("one-key", "FullAttentionManager.cache_blocks",
        "where another group has smaller blocks, gives the block in which a prompt ends a second key, for its part",
        "publishes full blocks only, up to the last boundary of all groups",
        "only a hit that ends within a block could use the key"),
    Deviation("lookup-alone", "HybridKVCacheCoordinator.find_longest_cache_hit", "looks groups of one spec up together;"
        " if one of them is a drafter's, all of them drop their last block", "looks each up by itself",
        "the loop is shorter; a hit beside a drafter's group may be longer, else the answer is the same"),
    Deviation("chunks-checked", "ChunkedLocalAttentionManager.find_longest_cache_hit",
        "takes all before the last chunk for granted, even if a block that two chunks share is missing; one block size",
        "checks the chunk in which the hit ends; any sizes", "else the next token reads an unchecked block"),
    Deviation("promised-states", "MambaManager.new_step_starts", "forgets a step's new states when the next one starts;"
        " knows them by key, so that an older copy has to wait, too", "asks how far the writer of the block has come",
        "no caller has to say when a step starts"),
    Deviation("states-exact", "MambaManager.cache_blocks", "trusts the scheduler to end steps at block ends",
        "publishes a state only if the step ended at a boundary", "a block in mid-way would get a full block's key"),
    Deviation("states-unequal", "Scheduler._mamba_block_aligned_split",
        "where blocks are unequal, ends a prompt's steps at multiples of the smallest",
        "ends them at boundaries of all groups",
        "between two boundaries no state can be hit: the same prompt finds nothing when it comes again"),
    Deviation("states-and-drafts", "MambaManager", "spare states for drafts; modes none, all, align; hits that end in"
        " mid-block, where another group's blocks are smaller", "mode align alone, whole blocks,"
        " `AllocationError` for drafts", "a rejected draft cannot be taken out of a state"),
    Deviation("no-way-back", "KVCacheManager.allocate_slots", "trusts `num_computed_tokens`",
        "raises `AllocationError` if it falls behind what a window gave back", "another request may hold it by now"),
    # The scheduler.
    Deviation("computed-in-update", "Scheduler._update_after_schedule", "counts a step's tokens as computed when it is"
        " planned", "counts them in `update_from_output`", "until then the KV is not there; one step is under way at a"
        " time"),
    Deviation("one-step-at-a-time", "Scheduler.schedule", "plans ahead while the worker is busy",
        "raises `SchedulerError`", "asynchronous steps are not built here; a forgotten update would go unseen"),
    Deviation("step-undone", "Scheduler.schedule", "an exception leaves requests and blocks as they were in its midst",
        "the next call empties the cache and lets all requests wait (`recover`); `abandon_step` undoes a step that the"
        " worker did not run", "all requests go on, and no block is lost"),
    Deviation("results-checked", "Scheduler.update_from_output", "takes what the worker brings",
        "raises `SchedulerError` for another step's results, or tokens that do not follow from the drafts",
        "a worker's mistake is found where it is made"),
    Deviation("never-fits", "Scheduler.add_request", "takes a request that can never run; all behind it wait, too",
        "raises `ConfigError`", "vLLM's engine checks prompts before, and the pool when it starts"),
    Deviation("chunking-off", "SchedulerConfig.verify_max_model_len", "refuses `max_num_batched_tokens` below"
        " `max_model_len` if prompts are not cut", "refuses the requests that could outgrow a step",
        "small budgets show what chunking is for"),
    Deviation("nothing-beyond-the-end", "Scheduler.schedule", "cuts drafts and lookahead at `max_model_len` only",
        "cuts them where the request ends, too", "what lies beyond its last token is computed and held in vain"),
    Deviation("lookahead-admitted", "SlidingWindowSpec.max_admission_blocks_per_request",
        "leaves lookahead out of what a window holds at most", "counts it in `max_in_flight_tokens`",
        "what was let in has room for all of its slots"),
    Deviation("no-padding", "Scheduler.schedule", "gives a newcomer with one token to compute empty drafts, if others"
        " are drafted for", "computes the one token", "it makes batches even for a recorded CUDA graph; there is none"),
    Deviation("drafts-refused", "Scheduler.update_draft_token_ids", "ignores drafts for a request that cannot use them",
        "raises `SchedulerError`", "a drafter should know what it drafts for"),
    Deviation("draft-draws", "Scheduler.update_from_output",
        "the sampler keeps a draft with its probability, so that a seed's text changes with drafts",
        "draws each place's own number, and keeps a draft that it falls on",
        "one seed, one text, with drafts and without"),
    Deviation("fork", "Scheduler.add_request", "several samples are several requests, which find each other's prompt",
        "`fork_request` copies the table of a running one", "shows copy-on-write, and shares the last block too"),
    Deviation("admission-policies", "Scheduler.schedule", "a watermark", "a watermark, and a seam for other strategies",
        "to compare them"),
    Deviation("scheduler-without", "Scheduler", "connectors, encoders, grammars, LoRA limits, streams, pauses,"
        " pipelines, prefill intervals, adaptive thresholds", "none of these", "each is a study of its own"),
    # Planning.
    Deviation("plan-null-block", "get_max_concurrency_for_kv_cache_config", "counts the null block in",
        "leaves it out", "what is planned for can be let in, to the last request"),
    Deviation("plan-states", "get_kv_cache_groups", "expects blocks that cover a state",
        "makes blocks longer itself", "the rule stands where the groups are made, and not in each platform's code"),
    Deviation("plan-one-type", "UniformTypeKVCacheSpecs", "puts states of equal bytes into one group, whatever their"
        " shapes", "puts only equal states into one", "no model here has two shapes of states"),
    Deviation("plan-packed", "_get_packed_kv_cache_groups", "groups so wherever the layout of the KV memory puts blocks"
        " outermost", "groups so where vectors stand for several tokens (DeepSeek-V4)", "the planner knows no layouts"),
    Deviation("hybrid-switch", "SchedulerConfig.disable_hybrid_kv_cache_manager",
        "`False` is refused for chunked attention without a further environment variable", "`False` means groups",
        "there is no slower kernel here to be kept from"),
    Deviation("fewer-specs", "KVCacheSpec", "cross attention, sinks, ring buffers, host-resident groups and more",
        "full, latent (MLA), window, chunks, state", "five kinds show every rule"),
    # Shape and names.
    Deviation("lookup-pair", "KVCacheManager.get_computed_blocks", "returns a triple, the third for sparse groups",
        "returns blocks and tokens", "few models need the third, where prompts part:"
        " `KVCacheCoordinator.shared_prefix_boundary` says it"),
    Deviation("names", "BlockPool.get_num_free_blocks, BlockPool.get_usage", "methods",
        "attributes `num_free_blocks` and `usage`", "they cost nothing and change nothing"),
    Deviation("ready-hashes", "Request", "always has tokens", "may bring its length and block hashes instead",
        "production traces carry no tokens"),
    # Not there (yet).
    Deviation("no-max-model-len", "KVCacheManager.allocate_slots", "gives no slots beyond `max_model_len`",
        "knows no such length", "the model's limit is the scheduler's business"),
    Deviation("no-skip-reading", "KVCacheManager.get_computed_blocks", "prompt logprobs and pooling skip the lookup",
        "always looks up", "these requests are not served here"),
)
# fmt: on


def as_markdown() -> str:
    """Return the list as a Markdown table."""
    head = f"| | in {UPSTREAM} | vLLM | mini_kv | why |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {d.deviation_id} | <code>{_breakable(d.symbol)}</code> | {d.vllm} | {d.mini_kv} | {d.why} |\n"
        for d in DEVIATIONS
    )


def _breakable(symbol: str) -> str:
    """Return a symbol that a narrow column may break at its dots, and a very long name also at its underscores."""
    names = (name.replace("_", "_<wbr>") if len(name) > 26 else name for name in symbol.split("."))
    return ".<wbr>".join(names)
