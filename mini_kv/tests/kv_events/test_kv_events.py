"""What the cache tells others, and in which bytes: vLLM's."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from mini_kv.core.errors import ConfigError
from mini_kv.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_kv.core.request import LoRARequest, MultiModalFeature
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.story.edge import EdgeKind
from mini_kv.story.recorder import Recorder
from mini_kv.story.traced_manager import TracedKVCacheManager, edges_of
from mini_kv.tests.engine.small_models import small_model
from mini_kv.tests.kv_events.record_kv_events import EVENTS, RECORDING, with_bytes
from mini_kv.tools.serve import kv_events
from mini_kv.tools.serve.kv_events import (
    AllBlocksCleared,
    AnyEvent,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    decode_batch,
    encode_batch,
    external_block_hash,
)
from mini_kv.tools.serve.kv_events_manager import EventsKVCacheManager
from mini_kv.tools.serve.kv_events_publisher import ZmqEventPublisher, publishing

RECORDED = json.loads(RECORDING.read_text(encoding="utf-8"))


def manager(*specs: KVCacheSpec, num_blocks: int = 6) -> EventsKVCacheManager:
    groups = tuple(KVCacheGroupSpec((f"layers {i}",), spec) for i, spec in enumerate(specs or (FullAttentionSpec(4),)))
    return EventsKVCacheManager(KVCacheConfig(num_blocks, groups))


def run(kv: EventsKVCacheManager, name: str, tokens: list[int], **facts: Any) -> list[int]:
    """Let a request compute its tokens and end; return its hashes as they are told."""
    request = kv.new_request(name, tokens, **facts)
    blocks, num_hit = kv.get_computed_blocks(request)
    kv.allocate_slots(request, len(tokens) - num_hit, num_hit, blocks)
    request.num_computed_tokens = len(tokens)
    kv.confirm_promises()
    kv.free(request)
    return [external_block_hash(block_hash) for block_hash in request.block_hashes]


def stored(hashes: list[int], parent: int | None, tokens: list[int], **fields: Any) -> BlockStored:
    extra_keys: list[tuple[Any, ...] | None] = [None] * len(hashes)
    facts = {"extra_keys": extra_keys, "group_idx": 0, "kv_cache_spec_kind": "full_attention", **fields}
    size = len(tokens) // len(hashes)
    return BlockStored([*hashes], parent, tokens, size, None, "GPU", facts.pop("lora_name", None), **facts)


# The bytes ----------------------------------------------------------------------------------------------------------


def batch_of(name: str) -> KVEventBatch:
    """Return a recorded batch in our types."""
    made: list[Any] = []
    for kind, fields in EVENTS[name]:
        facts = with_bytes(fields)
        if "extra_keys" in facts:
            facts["extra_keys"] = [("chat", ["cat", -2], "salt"), None]
        made.append(getattr(kv_events, kind)(**facts))
    return KVEventBatch(1763000000.5, made, 0)


@pytest.mark.parametrize("name", EVENTS)
def test_our_bytes_are_those_that_vllms_own_types_become(name: str):
    assert encode_batch(batch_of(name)).hex() == RECORDED["batches"][name]


@pytest.mark.parametrize("name", EVENTS)
def test_vllms_bytes_are_read(name: str):
    assert decode_batch(bytes.fromhex(RECORDED["batches"][name])) == batch_of(name)


def test_a_field_that_a_later_vllm_adds_is_passed_over():
    event = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0, "colour": "blue"}
    assert decode_batch(msgspec.msgpack.encode([1.5, [event], 0, "more"])).events == [BlockRemoved([7], "GPU", 0)]


# What is told -------------------------------------------------------------------------------------------------------


def test_a_prompt_is_one_event_and_what_follows_it_names_its_last_block():
    kv = manager()
    a, b = run(kv, "A", [*range(8)])
    assert kv.take_events() == [stored([a, b], None, [*range(8)])]
    _, _, c = run(kv, "B", [*range(13)])
    assert kv.take_events() == [stored([c], b, [8, 9, 10, 11])]
    assert kv.take_events() == []


def test_a_hit_is_not_told():
    kv = manager()
    run(kv, "A", [*range(8)])
    kv.take_events()
    run(kv, "B", [*range(8), 9])
    assert kv.take_events() == []


def test_a_block_that_is_given_to_another_prompt_is_removed_first():
    kv = manager(num_blocks=3)
    a, b = run(kv, "A", [*range(8)])
    kv.take_events()
    c, d = run(kv, "B", [*range(10, 18)])
    assert kv.take_events() == [
        BlockRemoved([b], "GPU", 0),
        BlockRemoved([a], "GPU", 0),
        stored([c, d], None, [*range(10, 18)]),
    ]


def test_two_requests_that_compute_one_prompt_in_one_step_store_it_twice():
    kv = manager()
    first, second = (kv.new_request(name, [1, 2, 3, 4]) for name in "AB")
    for request in (first, second):
        kv.allocate_slots(request, 4)  # no lookup between: neither finds the other
    (a,) = [external_block_hash(block_hash) for block_hash in first.block_hashes]
    assert kv.take_events() == [stored([a], None, [1, 2, 3, 4])] * 2


def test_a_reset_is_one_event_and_a_refused_one_is_none():
    kv = manager()
    run(kv, "A", [*range(8)])
    kv.take_events()
    held = kv.new_request("B", [1, 2])
    kv.allocate_slots(held, 2)
    assert (kv.reset_prefix_cache(), kv.take_events()) == (False, [])
    kv.free(held)
    assert (kv.reset_prefix_cache(), kv.take_events()) == (True, [AllBlocksCleared()])


def test_a_recovery_is_told_as_a_reset_though_blocks_are_held():
    kv = manager()
    run(kv, "A", [*range(8)])
    kv.allocate_slots(kv.new_request("B", [1, 2]), 2)
    kv.take_events()
    kv.recover()
    assert kv.take_events() == [AllBlocksCleared()]


def test_promises_that_are_withdrawn_are_removed():
    kv = manager()
    request = kv.new_request("A", [1, 2, 3, 4])
    kv.allocate_slots(request, 4)
    (a,) = [external_block_hash(block_hash) for block_hash in request.block_hashes]
    kv.withdraw_promises(request)
    assert kv.take_events() == [stored([a], None, [1, 2, 3, 4]), BlockRemoved([a], "GPU", 0)]


def test_what_decides_a_blocks_kv_beside_its_tokens_is_told_with_it():
    kv = manager()
    (a, _) = run(
        kv,
        "A",
        [*range(8)],
        cache_salt="salt",
        lora_request=LoRARequest("chat", "/adapters/chat"),
        mm_features=[MultiModalFeature("cat", 3, 2)],
    )
    (event,) = kv.take_events()
    assert isinstance(event, BlockStored)
    assert (event.block_hashes[0], event.lora_name) == (a, "chat")
    assert event.extra_keys == [("chat", ("cat", 3), "salt"), ("chat", ("cat", -1))]


def test_each_group_tells_its_own_blocks_and_what_slid_out_of_a_window_is_in_none():
    kv = manager(FullAttentionSpec(4), SlidingWindowSpec(2, sliding_window=3), num_blocks=20)
    tokens = [*range(9)]
    hashes = run(kv, "A", tokens)  # of blocks of 2, which is what both groups' blocks are made of
    full, window = kv.take_events()
    assert full == stored([hashes[1], hashes[3]], None, tokens[:8])
    facts = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 3}
    assert window == stored(hashes, None, tokens[:8], **facts)


# Over the wire ------------------------------------------------------------------------------------------------------


@contextmanager
def listening(**options: Any) -> Iterator[tuple[ZmqEventPublisher, "zmq.Socket[bytes]", "zmq.Socket[bytes]"]]:
    """Yield a publisher, a socket that hears it, and one that asks it."""
    publisher = ZmqEventPublisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", **options)
    context = zmq.Context()
    heard, asks = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    for socket in (heard, asks):
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
    heard.setsockopt(zmq.SUBSCRIBE, b"")
    heard.connect(publisher.endpoint)
    asks.connect(str(publisher.replay_endpoint))
    try:
        yield publisher, heard, asks
    finally:
        publisher.shutdown()
        context.destroy(linger=0)


def answer(asks: "zmq.Socket[bytes]", first: int) -> list[tuple[int, KVEventBatch]]:
    """Return what is kept from a number on."""
    asks.send_multipart([b"", first.to_bytes(8, "big")])
    found = []
    while (frames := asks.recv_multipart())[2] != kv_events.END_SEQ:
        found.append((int.from_bytes(frames[2], "big"), decode_batch(frames[3])))
    return found


def until_heard(publisher: ZmqEventPublisher, heard: "zmq.Socket[bytes]") -> list[bytes]:
    """Publish until the listener hears it: who connects needs a moment. Return the first message that it hears."""
    for _ in range(1000):
        publisher.publish([AllBlocksCleared()])
        if heard.poll(10):
            return heard.recv_multipart()
    raise AssertionError("nothing is heard")


def test_three_frames_and_what_was_missed_can_be_asked_for():
    with listening(topic="kv", buffer_steps=3) as (publisher, heard, asks):
        topic, number, payload = until_heard(publisher, heard)
        assert (topic, len(number), decode_batch(payload).events) == (b"kv", 8, [AllBlocksCleared()])
        for _ in range(5):
            publisher.publish([BlockRemoved([7], "GPU", 0)])
        numbers = [int.from_bytes(number, "big")]
        batches: list[KVEventBatch] = []
        while len(batches) < 5:
            _, number, payload = heard.recv_multipart()
            numbers.append(int.from_bytes(number, "big"))
            batches += [batch for batch in [decode_batch(payload)] if batch.events != [AllBlocksCleared()]]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        last = numbers[-1]
        assert [number for number, _ in answer(asks, 0)] == [last - 2, last - 1, last]  # three are kept
        assert [(number, batch.events) for number, batch in answer(asks, last)] == [(last, batches[-1].events)]
        assert answer(asks, last + 1) == []
        assert batches[-1].data_parallel_rank == 0


def test_a_question_that_is_none_is_passed_over():
    with listening() as (_, _, asks):
        for frames in ([b""], [b"", b"seven by"[:7]], [b"x", b"y", b"z"], [b"", b"\xff" * 9]):
            asks.send_multipart(frames)
        assert answer(asks, 0) == []


def test_no_events_are_no_batch():
    with listening() as (publisher, heard, asks):
        until_heard(publisher, heard)
        num_before = len(answer(asks, 0))
        publisher.publish([])
        assert len(answer(asks, 0)) == num_before


@pytest.mark.parametrize("endpoint", ["nowhere", "tcp://no-such-host.invalid:5557", ""])
def test_an_address_where_none_can_listen_is_refused_in_a_sentence(endpoint: str):
    with pytest.raises(ConfigError, match="cannot publish events at"):
        ZmqEventPublisher(endpoint)


def test_two_may_watch_the_same_blocks():
    """A story of the calls, and the events: as a server with a page needs them."""
    recorder = Recorder()
    config = KVCacheConfig(6, (KVCacheGroupSpec(("layers",), FullAttentionSpec(4)),))
    events = EventsKVCacheManager(config, new_block=recorder.new_block)
    kv = TracedKVCacheManager(events, recorder)
    request = kv.new_request("A", [1, 2, 3, 4])
    kv.allocate_slots(request, 4)
    assert [edge.kind for edge in edges_of(kv.spans)] == [EdgeKind.ALLOCATED, EdgeKind.CACHED]
    assert [type(event) for event in events.take_events()] == [BlockStored]


def test_an_engine_publishes_at_the_end_of_each_step():
    told: list[list[AnyEvent]] = []

    class Listener:
        def publish(self, events: Sequence[AnyEvent]) -> None:
            told.append(list(events))

    engine = LLMEngine(small_model(), config=EngineConfig(block_size=4, num_blocks=9), **publishing(Listener()))
    (output,) = engine.generate([[1, 2, 3, 4, 5, 6]], SamplingParams(max_tokens=4, temperature=0))
    text = [1, 2, 3, 4, 5, 6, *output.outputs[0].token_ids]
    kinds = [
        [(event.token_ids, len(event.block_hashes)) for event in step if isinstance(event, BlockStored)]
        for step in told
    ]
    assert kinds == [[(text[:4], 1)], [], [(text[4:8], 1)], []]
