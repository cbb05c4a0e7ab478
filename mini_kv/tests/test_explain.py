"""Where the hits went: rows that add up to the token, causes that were planted, and none in traffic that is well."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mini_kv.cli import main
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mini_kv.tools.traces.causes import Cause, find_causes
from mini_kv.tools.traces.pair import explain_pair
from mini_kv.tools.traces.prompt_hashes import Trace, make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceRequest, read_trace
from mini_kv.tools.traces.readers.token_trace import TokenRequest
from mini_kv.tools.traces.replay import replay
from mini_kv.tools.traces.runners import Setup
from mini_kv.tools.traces.waterfall import Waterfall, make_waterfall

SMALL = Path(__file__).parents[1] / "tools/traces/small.jsonl"
FULL, WINDOW = FullAttentionSpec(16), SlidingWindowSpec(16, sliding_window=64)
STATE = MambaSpec(16, shapes=((4,),), dtypes_bytes=(4,))


def setup(*specs: KVCacheSpec, num_blocks: int | None = None, block_size: int = 16) -> Setup:
    """Return groups of one layer each; without specs, one of full attention."""
    specs = specs or (FullAttentionSpec(block_size),)
    groups = tuple(KVCacheGroupSpec((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    return Setup(groups, num_blocks)


# Traffic ------------------------------------------------------------------------------------------------------------

Make = Callable[[random.Random, int], TokenRequest]


def words(rng: random.Random, number: int) -> tuple[int, ...]:
    """Return tokens that no other text has."""
    return tuple(rng.randrange(1 << 30) for _ in range(number))


def chat(
    seed: int,
    *,
    begin: Callable[[random.Random, tuple[int, ...]], tuple[int, ...]] = lambda rng, system: system,
    salt: Callable[[int], str | None] = lambda user: None,
    users: int = 12,
    system_tokens: int = 640,
) -> list[TokenRequest]:
    """Return conversations about one system prompt, turn by turn, of several users side by side.

    `begin` makes a request's beginning of the system prompt; what follows it is the conversation so far.
    """
    rng = random.Random(seed)
    system = words(rng, system_tokens)
    histories: list[tuple[int, ...]] = [()] * users
    trace = []
    for number in range(8 * users):
        user = rng.randrange(users)
        history: tuple[int, ...] = histories[user] + words(rng, rng.randrange(20, 80))
        if len(history) > 600:
            history = words(rng, rng.randrange(20, 80))
        answer = words(rng, 40)
        trace.append(TokenRequest(1000 * number, begin(rng, system) + history, 40, salt(user)))
        histories[user] = history + answer
    return trace


def names(trace: Sequence[TokenRequest], setup: Setup, **options: object) -> list[str]:
    """Return the causes that are found, by name."""
    return [cause.name for cause in causes(trace, setup, **options)]


def causes(trace: Sequence[TokenRequest], setup: Setup, **options: object) -> list[Cause]:
    """Return the causes that are found."""
    prompts = make_prompts(trace, setup.hash_block_size)
    waterfall = make_waterfall(trace, prompts, setup, **options)  # type: ignore[arg-type]
    check(waterfall)
    observed = options.get("observed")
    return find_causes(waterfall, prompts, observed)  # type: ignore[arg-type]


def waterfall_of(trace: Trace, setup: Setup) -> Waterfall:
    """Return the waterfall of a trace, one request at a time."""
    return make_waterfall(trace, make_prompts(trace, setup.hash_block_size), setup)


def check(waterfall: Waterfall) -> None:
    """The rows add up: between two totals stands what is lost on the way."""
    left = waterfall.rows[0].tokens
    for row in waterfall.rows[1:]:
        if row.is_total:
            assert row.tokens == left, row.name
        else:
            left -= row.tokens


def changing_value(rng: random.Random, system: tuple[int, ...]) -> tuple[int, ...]:
    """Return the system prompt with the time of day near its beginning."""
    return system[:24] + words(rng, 6) + system[24:]


def late_value(rng: random.Random, system: tuple[int, ...]) -> tuple[int, ...]:
    """Return the system prompt with the time of day in its middle."""
    return system[:320] + words(rng, 6) + system[320:]


def shuffled_tools(rng: random.Random, system: tuple[int, ...]) -> tuple[int, ...]:
    """Return the system prompt as tools of 160 tokens in any order."""
    tools = [system[start : start + 160] for start in range(0, len(system), 160)]
    rng.shuffle(tools)
    return tuple(token for tool in tools for token in tool)


def with_images(trace: Sequence[TokenRequest], sizes: Sequence[int]) -> list[TokenRequest]:
    """Return the trace with one picture in front of each prompt, in one of these sizes."""
    rng = random.Random(0)
    found = []
    for entry in trace:
        size = rng.choice(sizes)
        tokens = (7,) * size + entry.token_ids
        found.append(TokenRequest(entry.timestamp, tokens, 40, None, None, ((0, size, f"picture of {size}"),)))
    return found


def short_prompts(seed: int) -> list[TokenRequest]:
    """Return prompts of 50 tokens that have the first 12 in common."""
    rng = random.Random(seed)
    common = words(rng, 12)
    return [TokenRequest(1000 * number, common + words(rng, 38), 20) for number in range(100)]


def after_a_reset(trace: Sequence[TokenRequest], place: int) -> list[int]:
    """Return the hits that a server with memory for everything reports if its cache is emptied before one request."""
    return [hit or 0 for part in (trace[:place], trace[place:]) for hit in waterfall_of(part, setup()).hits]


# Causes that were planted -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_each_planted_cause_is_found_and_no_other(seed: int) -> None:
    """Ten causes, each from the trace alone (a reset: with the hits that a server has reported)."""
    trace = chat(seed)
    assert names(trace, setup()) == []
    assert names(short_prompts(seed), setup()) == ["short-prefix"]
    assert names(chat(seed, salt=lambda user: f"user {user}"), setup()) == ["salt"]
    assert names(chat(seed, begin=changing_value), setup()) == ["timestamp"]
    assert names(chat(seed, begin=shuffled_tools), setup()) == ["tool-order"]
    assert names(with_images(trace, (64, 128, 256)), setup()) == ["image-size"]
    assert names(trace, setup(num_blocks=90)) == ["small-pool"]
    assert names(chat(seed, system_tokens=240), setup(block_size=784)) == ["block-size"]
    assert names(trace, setup(), observed=after_a_reset(trace, 40)) == ["reset"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_groups_and_preemption(seed: int) -> None:
    """What windows and states do not find, and what is computed twice because too much is let in."""
    rng = random.Random(seed)
    document = words(rng, 2000)
    quotes = [TokenRequest(0, document[: rng.randrange(400, 2000)] + words(rng, 30), 1) for _ in range(60)]
    groups = setup(FULL, WINDOW).groups
    assert names(quotes, Setup(groups)) == []
    assert names(quotes, Setup(groups, retention=0)) == ["window-gap"]  # kept only where prompts ended or parted
    assert names(quotes, setup(FULL, STATE))[0] == "state-gap"
    long_answers = [TokenRequest(0, words(rng, 100), 300) for _ in range(40)]
    assert names(long_answers, setup(num_blocks=60), concurrency=12) == ["preemption-storm"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_two_causes_at_once_are_both_found(seed: int) -> None:
    """Salts per user, and a value that changes; and their shares are those of each alone, within one percent."""
    both = causes(chat(seed, begin=late_value, salt=lambda user: f"user {user}"), setup())
    found = {str(cause.name): cause.share for cause in both}
    assert set(found) == {"timestamp", "salt"}
    (alone,) = causes(chat(seed, begin=late_value), setup())
    assert alone.name == "timestamp"
    assert alone.share == pytest.approx(found["timestamp"], abs=0.01)


@pytest.mark.parametrize("seed", range(10, 20))
def test_traffic_that_is_well_has_no_cause(seed: int) -> None:
    """Ten innocent traces: other sizes, other users, room enough."""
    rng = random.Random(seed)
    trace = chat(seed, users=rng.randrange(3, 20), system_tokens=16 * rng.randrange(0, 60))
    assert names(trace, setup()) == []


@pytest.mark.slow
def test_a_block_longer_than_the_shared_prefix_has_a_cause_of_its_own() -> None:
    """Where the groups give the block, 240 common tokens are short of it; beyond the first block the rest is a tail."""
    long_blocks = setup(FullAttentionSpec(528), MambaSpec(528, shapes=((4,),), dtypes_bytes=(4,)))
    trace = chat(0, system_tokens=240)
    (cause,) = [cause for cause in causes(trace, long_blocks) if cause.name == "short-block"]
    plain = waterfall_of(trace, setup())
    assert cause.tokens == sum(one.names for one in plain.shared if 16 <= one.names < 528)
    assert cause.sentence.startswith("the model's block of 528 tokens is longer than the shared prefix")
    assert "`mini-kv why MODEL`" in cause.sentence
    assert names(short_prompts(0), long_blocks) == ["short-prefix"]
    apart = setup(FULL, MambaSpec(528, shapes=((4,),), dtypes_bytes=(4,)))  # hashes of 16, hits at multiples of 528
    assert waterfall_of(trace, apart).tokens("short-block") == cause.tokens


# Rows that add up ---------------------------------------------------------------------------------------------------


LONG_STATE = MambaSpec(112, shapes=((4,),), dtypes_bytes=(4,))


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW), (FULL, STATE), (WINDOW,), (FULL, LONG_STATE)])
@pytest.mark.parametrize("num_blocks", [None, 150, 400])
def test_rows_add_up_for_every_kind_of_model(specs: tuple[KVCacheSpec, ...], num_blocks: int | None) -> None:
    """And no pool finds more than memory for everything."""
    waterfall = waterfall_of(chat(1), setup(*specs, num_blocks=num_blocks))
    check(waterfall)
    assert sum(hit or 0 for hit in waterfall.hits) <= sum(waterfall.unlimited) <= waterfall.tokens("seen")


def test_the_first_rows_against_a_look_at_all_pairs() -> None:
    """Seen, images, adapters and salts: the longest common beginning with any earlier prompt, the obvious way."""
    rng = random.Random(3)
    trace = [
        TokenRequest(entry.timestamp, entry.token_ids, 1, rng.choice([None, "a"]), rng.choice([None, "one"]))
        for entry in chat(2, users=4, begin=changing_value)
    ]
    waterfall = waterfall_of(trace, setup())
    seen = salts = adapters = 0
    for number, entry in enumerate(trace):
        shared = [(common(entry.token_ids, other.token_ids), other) for other in trace[:number]]
        best = max((length for length, _ in shared), default=0)
        same_adapter = max((n for n, other in shared if other.lora_name == entry.lora_name), default=0)
        same_name = max(
            (n for n, o in shared if (o.lora_name, o.cache_salt) == (entry.lora_name, entry.cache_salt)), default=0
        )
        seen, adapters, salts = seen + best, adapters + best - same_adapter, salts + same_adapter - same_name
    found = [waterfall.tokens(name) for name in ("seen", "adapters", "salts")]
    assert found == [seen, adapters, salts]


def test_hashes_are_joined_to_the_blocks_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Two hashes of 512 are a block of 1,024: as if the trace had been cut into such blocks."""
    trace = read_trace(SMALL)
    joined = [
        replace(entry, hash_ids=entry.hash_ids[1::2] + tail, block_size=1024)
        for entry in trace
        for tail in [entry.hash_ids[-1:] if len(entry.hash_ids) % 2 else ()]
    ]
    wide = (FullAttentionSpec(1024), SlidingWindowSpec(1024, sliding_window=4096))
    assert waterfall_of(trace, setup(*wide)).unlimited == waterfall_of(joined, setup(*wide)).unlimited
    assert main(["explain", str(SMALL), "--model", "qwen-3.5-4b", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["block_size"] == 1024
    assert next(row["tokens"] for row in figures["rows"] if row["name"] == "unlimited") > 0


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many tokens two prompts begin with."""
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


@pytest.mark.parametrize("num_blocks", [40, 60, 100, 200])
def test_hits_are_those_of_replay(num_blocks: int) -> None:
    """On a trace of hashes, in pools of several sizes; and the ceiling is one."""
    trace: list[TraceRequest] = read_trace(SMALL)
    waterfall = waterfall_of(trace, setup(num_blocks=num_blocks, block_size=512))
    check(waterfall)
    hits = sum(hit or 0 for hit in waterfall.hits)
    assert hits == replay(trace, num_blocks).hit_tokens
    assert waterfall.belady is not None and hits <= waterfall.belady <= sum(waterfall.unlimited)


def test_how_much_longer_an_evicted_block_would_have_had_to_live() -> None:
    """With that number of blocks more it is kept, with one fewer it is not: `replay` is asked."""
    trace = read_trace(SMALL)
    waterfall = waterfall_of(trace, setup(num_blocks=60, block_size=512))
    needed = sorted(block.num_more for block in waterfall.lost)
    for at_most, larger in pairwise([0, 5, 20, 60, 120]):
        more = replay(trace, 60 + larger).hit_tokens - replay(trace, 60 + at_most).hit_tokens
        assert 512 * sum(at_most < number <= larger for number in needed) == more


# Two prompts, and the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "verdict", "differs", "num_hit"),
    [
        (TokenRequest(0, tuple(range(100)), 1), "same", (), 96),
        (TokenRequest(0, (*range(40), *range(500, 560)), 1), "part", ("tokens",), 32),
        (TokenRequest(0, (*range(9), *range(500, 591)), 1), "too short", ("tokens",), 0),
        (TokenRequest(0, tuple(range(500, 600)), 1), "no shared prefix", ("tokens",), 0),
        (TokenRequest(0, tuple(range(100)), 1, "salt"), "names", ("salt",), 0),
        (TokenRequest(0, tuple(range(100)), 1, None, "chat"), "names", ("adapter",), 0),
        (TokenRequest(0, tuple(range(100)), 1, None, None, ((20, 8, "cat"),)), "names", ("image",), 16),
    ],
)
def test_a_pair(other: TokenRequest, verdict: str, differs: tuple[str, ...], num_hit: int) -> None:
    """No shared prefix is one thing, one too short to share another; and what differs in the hash is said."""
    pair = explain_pair(TokenRequest(0, tuple(range(100)), 1), other, 16)
    assert (pair.verdict, pair.differs, pair.num_hit) == (verdict, differs, num_hit)


@pytest.mark.parametrize(
    ("options", "block_size"),
    [([], 576), (["--kv-cache-dtype", "fp8"], 1088), (["--gdn-prefill-backend", "triton"], 528)],
)
def test_a_models_flags_change_the_block(
    options: list[str], block_size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace of tokens is cut into whatever blocks the model gets; one of hashes only into multiples of its own."""
    path = tmp_path / "trace.jsonl"
    path.write_text((json.dumps({"token_ids": list(range(700))}) + "\n") * 2, encoding="utf-8")
    assert main(["explain", str(path), "--model", "qwen-3.5-4b", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["block_size"] == block_size


def test_without_a_cause_there_is_no_link_to_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    """A pool that keeps everything loses nothing that could be found."""
    assert main(["explain", str(SMALL)]) == 0
    printed = capsys.readouterr().out
    assert "No loss of 3 % or more has a cause that you could remove." in printed
    assert "github.com" not in printed


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that add up in what is printed; of hashes, what cannot be told; wrong arguments in one line."""
    assert main(["explain", str(SMALL), "--num-blocks", "60"]) == 0
    printed = capsys.readouterr().out
    assert "hits in 60 blocks                                  434,176   42.10 %" in printed
    assert "Cannot be determined from hashes:" in printed and "small-pool, 24.1 %" in printed
    assert main(["explain", str(SMALL), "--num-blocks", "60", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in figures["rows"] if row["is_total"]] == ["prompt", "seen", "unlimited", "hits"]
    place = figures["causes"][0]["in_vllm"]
    assert place["here"] == "mini_kv.core.block_pool.BlockPool._maybe_evict_cached_block"
    assert printed.splitlines()[-4:] == [
        "In the source code of vLLM 0.33.0:",
        "  small-pool: BlockPool._maybe_evict_cached_block",
        f"    {place['sentence']}",
        "    https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/core/block_pool.py#L769",
    ]
    for name, salt in (("a", None), ("b", "x")):
        line = {"token_ids": list(range(40)), **({"cache_salt": salt} if salt else {})}
        (tmp_path / name).write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert main(["explain", "--pair", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.startswith("40 tokens are equal, but salt keep")
    for arguments, message in (
        ([], "give a trace, or --pair and two files"),
        ([str(SMALL), "--concurrency", "4"], "--concurrency needs the size of the pool"),
        ([str(SMALL), "--concurrency", "0"], "--concurrency is 0, it must be at least 1"),
        ([str(SMALL), "--memory", "4"], "--memory needs --model"),
        ([str(SMALL), "--kv-cache-dtype", "fp8"], "--gdn-prefill-backend need --model"),
    ):
        assert main(["explain", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"token_ids": []}', "token_ids is []: it must be a list of at least one token"),
        ('{"token_ids": [1, true]}', "token_ids[1] is true: it must be an integer"),
        ('{"token_ids": [4294967296]}', "token_ids[0] is 4294967296: it must be at most 4,294,967,295"),
        ('{"token_ids": [1], "cache_salt": ""}', 'cache_salt is "": it must be a text, or absent'),
        ('{"token_ids": [1], "images": [[0, 2, "x"]]}', "images[0] ends behind the last of 1 tokens"),
        ('{"token_ids": [1], "images": [7]}', "images[0] is 7: it must be [first token, number of tokens, digest]"),
    ],
)
def test_lines_that_are_none(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said with the file and the line."""
    (tmp_path / "trace.jsonl").write_text('{"token_ids": [1, 2]}\n' + line + "\n", encoding="utf-8")
    assert main(["explain", str(tmp_path / "trace.jsonl")]) == 2
    assert f"trace.jsonl:2: {message}" in capsys.readouterr().err
