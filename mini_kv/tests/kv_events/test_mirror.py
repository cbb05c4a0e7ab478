"""The picture of a cache that is made of its events: it is the cache, or it says that it is not."""

import math
import random

import msgspec
import pytest

from mini_kv.story.traced_manager import free_order_of
from mini_kv.tests.kv_events.events_driver import LossyWire, driven, pool_keys, take_events
from mini_kv.tests.scheduler_driver import Run
from mini_kv.tests.scheduler_matrix import CONFIGS
from mini_kv.tools.serve.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    AnyEvent,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    encode_batch,
)
from mini_kv.tools.serve.mirror import Follower, Mirror

CACHING = [config for config in CONFIGS if config.enable_caching]


def stored(*hashes: int, parent: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), parent, [0] * 4 * len(hashes), 4, None, MEDIUM_GPU, None, group_idx=0)


def removed(*hashes: int) -> BlockRemoved:
    return BlockRemoved(list(hashes), MEDIUM_GPU, 0)


def message(number: int, *events: AnyEvent, time: float | None = None) -> list[bytes]:
    batch = KVEventBatch(number if time is None else time, list(events), 0)
    return [b"", number.to_bytes(8, "big"), encode_batch(batch)]


def hashes(mirror: Mirror) -> dict[int | bytes, int]:
    return {key.block_hash: copies for key, copies in mirror.copies().items()}


def follower(kept: dict[int, list[bytes]] | None = None) -> Follower:
    """Return one that can ask for these messages; `None`: there is no answer."""

    def replay(first: int) -> list[tuple[bytes, bytes]] | None:
        if kept is None:
            return None
        return [(frames[1], frames[2]) for number, frames in kept.items() if number >= first]

    return Follower(Mirror(), replay)


# The mirror is the pool ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_mirror_is_the_pool_after_ten_thousand_random_events_and_thirty_percent_lost():
    """Windows, chunks and states, aborts, forks, drafts, steps taken back; what is missed is asked for."""
    num_events = num_lost = num_twins = 0
    for seed, config in enumerate(CACHING):
        wire = LossyWire(loss=0.3, num_kept=10_000, seed=seed)
        run = driven(config, seed, wire)
        for _ in range(10):
            for _ in range(20):
                run.step()
            wire.publish(take_events(run))  # of a step that was taken back
            wire.follower.catch_up()
            assert (wire.mirror.copies(), wire.mirror.gaps) == (pool_keys(run.kv), [])
            num_twins += wire.mirror.num_twins
        assert wire.follower.num_asked_for > 0
        num_events, num_lost = num_events + wire.num_events, num_lost + wire.num_lost
    assert num_events > 10_000
    assert num_lost > 500
    assert num_twins > 50


def test_a_mirror_that_could_not_get_all_says_so_and_is_whole_again_when_all_is_forgotten():
    wire = LossyWire(loss=0.3, num_kept=1, seed=3)
    run = driven(CACHING[0], 3, wire)
    for _ in range(100):
        run.step()
    assert wire.mirror.gaps
    run.drain()
    assert run.kv.reset_prefix_cache()
    wire.loss = 0.0
    wire.publish(take_events(run))
    assert (wire.mirror.gaps, wire.mirror.copies(), pool_keys(run.kv)) == ([], {}, {})


def test_who_listens_changes_nothing():
    quiet = Run(CACHING[5], 5)
    told = driven(CACHING[5], 5, LossyWire(loss=0.0, num_kept=1))
    for _ in range(100):
        quiet.step()
        told.step()
        assert free_order_of(told.kv.block_pool) == free_order_of(quiet.kv.block_pool)
    assert told.done == quiet.done


# One hash in several blocks -----------------------------------------------------------------------------------------


def test_a_hash_that_two_blocks_carry_is_found_until_both_have_lost_it():
    told = follower()
    told.receive(message(0, stored(1, 2)))
    told.receive(message(1, stored(1)))
    assert (hashes(told.mirror), told.mirror.num_blocks, told.mirror.num_twins) == ({1: 2, 2: 1}, 3, 1)
    told.receive(message(2, removed(1)))
    assert hashes(told.mirror) == {1: 1, 2: 1}
    told.receive(message(3, removed(1)))
    assert hashes(told.mirror) == {2: 1}


# Messages that did not come -----------------------------------------------------------------------------------------


def test_a_message_that_was_lost_is_asked_for_before_the_next_one_counts():
    kept = {0: message(0, stored(1)), 1: message(1, removed(1)), 2: message(2, stored(1))}
    told = follower(kept)
    told.receive(kept[0])
    told.receive(kept[2])
    assert (hashes(told.mirror), told.num_asked_for, told.mirror.gaps) == ({1: 1}, 1, [])


@pytest.mark.parametrize("kept", [None, {}])
def test_a_message_that_cannot_be_had_any_more_is_a_gap(kept: dict[int, list[bytes]] | None):
    told = follower(kept)
    told.receive(message(0, stored(1)))
    told.receive(message(3, stored(2)))
    told.receive(message(5, stored(3)))
    assert told.mirror.gaps == ["batches 1 to 2 are missing", "batch 4 is missing"]


def test_who_comes_late_asks_for_all_since_the_beginning():
    told = follower({0: message(0, stored(1)), 1: message(1, stored(2, parent=1))})
    told.catch_up()
    assert (hashes(told.mirror), told.next_number, told.mirror.gaps) == ({1: 1, 2: 1}, 2, [])


def test_what_is_kept_no_more_is_a_gap_for_who_comes_late():
    told = follower({7: message(7, stored(1))})
    told.catch_up()
    assert (hashes(told.mirror), told.mirror.gaps) == ({1: 1}, ["batches 0 to 6 are missing"])


def test_a_message_that_comes_twice_counts_once():
    told = follower()
    for number in (0, 0, 1, 0):
        told.receive(message(number, stored(number + 1)))
    assert hashes(told.mirror) == {1: 1, 2: 1}


def test_an_engine_that_is_started_again_has_an_empty_cache():
    """Its numbers begin again, while time goes on."""
    told = follower()
    told.receive(message(0, stored(1), time=100.0))
    told.receive(message(1, stored(2), time=101.0))
    told.receive(message(0, stored(3), time=200.0))
    assert (hashes(told.mirror), told.mirror.gaps) == ({3: 1}, [])


def test_a_removal_of_what_the_picture_lacks_is_counted_and_no_more():
    told = follower()
    told.receive(message(4, removed(1)))
    assert (hashes(told.mirror), told.mirror.num_unknown_removed) == ({}, 1)


# What is no message -------------------------------------------------------------------------------------------------

GARBAGE = {
    "no frames": [],
    "one frame": [b"hello"],
    "a short number": [b"", b"\0" * 7, b""],
    "a number below 0": [b"", b"\xff" * 8, encode_batch(KVEventBatch(0.0, []))],
    "no batch": [b"", b"\0" * 8, b""],
    "half a batch": [b"", b"\0" * 8, encode_batch(KVEventBatch(0.0, [stored(1)]))[:-3]],
    "text": [b"", b"\0" * 8, b"GET / HTTP/1.1"],
    "an event of another kind": [b"", b"\0" * 8, msgspec.msgpack.encode([0.0, [{"type": "BlockMoved"}]])],
    "a hash that is a float": [
        b"",
        b"\0" * 8,
        msgspec.msgpack.encode([0.0, [{"type": "BlockRemoved", "block_hashes": [0.5], "medium": None}]]),
    ],
    "no time": [b"", b"\0" * 8, msgspec.msgpack.encode([math.nan, []])],
    "an infinite time": [b"", b"\0" * 8, msgspec.msgpack.encode([-math.inf, []])],
    "a time that no clock shows": [b"", b"\0" * 8, msgspec.msgpack.encode([1e308, []])],
    "lists without end": [b"", b"\0" * 8, b"\x91" * 100_000],
    "a list of four billion": [b"", b"\0" * 8, b"\xdd\xff\xff\xff\xff"],
    "bytes that are no text": [b"", b"\0" * 8, b"\x93\x00\x91\x81\xa4type\xa1\xff\x00"],
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_sentence_and_a_gap(name: str):
    told = follower()
    told.receive(GARBAGE[name])
    assert len(told.complaints) == 1
    assert "\n" not in told.complaints[0]
    told.receive(message(1, stored(1)))
    assert (hashes(told.mirror), told.mirror.gaps) == ({1: 1}, ["batch 0 is missing"])


def test_any_bytes_are_a_sentence_or_a_message():
    rng = random.Random(0)
    good = message(0, stored(1, 2), removed(1), AllBlocksCleared())
    for _ in range(3000):
        told = follower()
        payload = bytearray(good[2])
        for _ in range(rng.randrange(1, 4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        told.receive([b"", good[1], bytes(payload[: rng.randrange(1, len(payload) + 1)])])
        assert len(told.complaints) + told.next_number == 1


def test_garbage_among_the_answers_is_a_sentence_too():
    told = follower({0: message(0, stored(1)), 1: GARBAGE["half a batch"]})
    told.receive(message(2, stored(2)))
    assert (hashes(told.mirror), len(told.complaints), told.mirror.gaps) == ({1: 1, 2: 1}, 1, ["batch 1 is missing"])
