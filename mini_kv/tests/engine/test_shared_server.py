"""Engines that share a real Valkey or Redis server: in one process, in two, and through its death."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_kv.engine.config import EngineConfig
from mini_kv.engine.sampling import SamplingParams
from mini_kv.engine.tiered_engine import TieredEngine
from mini_kv.tests.engine.small_models import alone, first_samples, prompts_with_shared_prefixes, small_model
from mini_kv.tests.tiers.valkey_server import PROGRAM, ValkeyCluster, ValkeyServer
from mini_kv.tiers.background import Thread
from mini_kv.tiers.memory_tier import MemoryTier
from mini_kv.tiers.remote import RemoteTier, connect
from mini_kv.tiers.tier_config import TierConfig, open_tiers
from mini_kv.tiers.tiered_cache import TieredCache

MODEL = small_model()
GREEDY = SamplingParams(max_tokens=6, temperature=0)
SMALL_POOL = EngineConfig(block_size=4, num_blocks=20)
MISSING = [
    name
    for name, is_here in {
        "a valkey-server or redis-server": PROGRAM is not None,
        "the package valkey": importlib.util.find_spec("valkey") is not None,
    }.items()
    if not is_here
]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)}")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server that is there and has nothing."""
    started = ValkeyServer(tmp_path)
    yield started
    started.kill()


def texts(llm: TieredEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Return what the engine says."""
    return first_samples(llm.generate(prompts, GREEDY))


def test_it_is_killed_and_started_again_amid_two_hundred_requests(server: ValkeyServer) -> None:
    """Twice; the words are those of no cache, each time, and in the end the server is in use again."""
    prompts = prompts_with_shared_prefixes(10)
    expected = alone(MODEL, prompts, 6)
    tiers = open_tiers(TierConfig(memory_bytes=6_000, server=server.address, seconds_to_wait=0.2))
    assert tiers.remote is not None
    tiers.remote.breaker.seconds_open = 0.2
    with TieredEngine(MODEL, config=SMALL_POOL, tiers=tiers, seconds_to_wait=0.2) as llm:
        for number in range(20):
            if number in (4, 11):
                server.kill()
            if number in (7, 14):
                server.start()
            assert texts(llm, prompts) == expected, f"after {10 * number} requests"
        tiers.flush()
        time.sleep(0.3)  # until the breaker lets a call through
        assert tiers.remote.failures["ConnectionError"] >= 3 and tiers.remote.failures["breaker open"] > 0
        shared = tiers.counts["shared"]
        assert texts(llm, [[number, *prompts[0]] for number in range(5)])
        tiers.flush()
        assert tiers.counts["shared"] > shared


ANOTHER_PROCESS = """
import json, sys
from mini_kv.tests.engine.test_shared_server import GREEDY, MODEL, TierConfig, TieredEngine, EngineConfig, open_tiers
address, salt, is_cluster, prompts = json.loads(sys.argv[1])
tiers = open_tiers(TierConfig(server=address, is_cluster=is_cluster, seconds_to_wait=2.0))
with TieredEngine(MODEL, config=EngineConfig(block_size=4, num_blocks=200), tiers=tiers, seconds_to_wait=2.0) as llm:
    outputs = llm.generate(prompts, GREEDY, cache_salt=salt)
    words = [output.outputs[0].token_ids for output in outputs]
    print(json.dumps([words, [output.num_cached_tokens for output in outputs], llm.stats.num_scheduled_tokens]))
"""


def in_another_process(
    address: str, prompts: list[list[int]], hash_seed: int, salt: str | None = None, is_cluster: bool = False
) -> tuple[list[list[int]], list[int], int]:
    """Return what an engine of its own process says, its cached tokens per prompt, and the tokens that it computed."""
    result = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS, json.dumps([address, salt, is_cluster, prompts])],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONHASHSEED": str(hash_seed), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    words, cached, computed = json.loads(result.stdout)
    return words, cached, computed


def test_the_second_process_hits_what_the_first_has_computed(server: ValkeyServer) -> None:
    """(B25: keys that differ per process.) Other hash seeds, equal keys; and another tenant's salt finds nothing."""
    prompts = [[number, *range(30)] for number in range(6)]
    expected = alone(MODEL, prompts, 6)
    words, cached, computed = in_another_process(server.address, prompts, hash_seed=1)
    assert (words, cached) == (expected, [0] * 6)
    words, cached, computed_again = in_another_process(server.address, prompts, hash_seed=2)
    assert (words, cached) == (expected, [28] * 6)
    assert computed - computed_again == 6 * 28
    words, cached, _ = in_another_process(server.address, prompts, hash_seed=3, salt="another tenant")
    assert (words, cached) == (expected, [0] * 6)


def test_a_cluster_of_three_is_one_cache(tmp_path: Path) -> None:
    """Each of the servers keeps some of the blocks, and the second process hits them all; one dies, and words stay."""
    cluster = ValkeyCluster(tmp_path)
    try:
        prompts = [[number, *range(30)] for number in range(6)]
        expected = alone(MODEL, prompts, 6)
        words, cached, _ = in_another_process(cluster.address, prompts, hash_seed=1, is_cluster=True)
        assert (words, cached) == (expected, [0] * 6)
        assert min(cluster.num_keys()) > 0
        words, cached, _ = in_another_process(cluster.address, prompts, hash_seed=2, is_cluster=True)
        assert (words, cached) == (expected, [28] * 6)
        cluster.servers[2].kill()
        words, _, _ = in_another_process(cluster.address, prompts, hash_seed=3, is_cluster=True)
        assert words == expected
    finally:
        cluster.kill()


class TimedWaits(TieredCache):
    """Notes how long the engine has stood still for its tiers."""

    seconds_waited = 0.0

    def wait(self, seconds: float) -> None:
        began = time.perf_counter()
        super().wait(seconds)
        self.seconds_waited += time.perf_counter() - began


def test_a_server_that_stands_still_costs_a_request_its_deadline_and_no_more(server: ValkeyServer) -> None:
    """SIGSTOP: the connection stays open, and no answer comes. Each request asks; the breaker is held closed."""
    prompts = [[number, *range(30)] for number in range(12)]
    expected = alone(MODEL, prompts, 6)
    remote = RemoteTier(connect(server.address, seconds=0.2))
    remote.breaker.seconds_open = 0.0
    tiers = TimedWaits(MemoryTier(6_000), remote=remote, make_worker=Thread)
    with TieredEngine(MODEL, config=SMALL_POOL, tiers=tiers, seconds_to_wait=0.2) as llm:
        assert [texts(llm, [prompt]) for prompt in prompts] == [[words] for words in expected]
        usual = tiers.seconds_waited
        server.pause()
        assert [texts(llm, [prompt]) for prompt in prompts] == [[words] for words in expected]
        stalled = tiers.seconds_waited - usual
        server.resume()
    assert sum(remote.failures.values()) > 0
    assert usual < stalled < len(prompts) * 0.2 + 0.5


def test_a_member_of_a_cluster_is_lost_amid_the_requests(tmp_path: Path) -> None:
    """What the other two keep is found; what the third one kept is computed again; no word changes."""
    cluster = ValkeyCluster(tmp_path)
    try:
        prompts = [[number, *range(30)] for number in range(8)]
        expected = alone(MODEL, prompts, 6)
        tiers = open_tiers(TierConfig(memory_bytes=6_000, server=cluster.address, is_cluster=True, seconds_to_wait=1.0))
        assert tiers.remote is not None
        with TieredEngine(MODEL, config=SMALL_POOL, tiers=tiers, seconds_to_wait=1.0) as llm:
            assert texts(llm, prompts) == expected
            tiers.flush()
            assert min(cluster.num_keys()) > 0
            assert texts(llm, prompts[:4]) == expected[:4]
            cluster.servers[1].kill()
            assert texts(llm, prompts) == expected
            tiers.flush()
        assert sum(tiers.remote.failures.values()) > 0
    finally:
        cluster.kill()


def test_a_server_that_needs_a_password_or_is_full(tmp_path: Path) -> None:
    """Real errors of a real server are misses."""
    prompts = prompts_with_shared_prefixes(6)
    for options in (["--requirepass", "open sesame"], ["--maxmemory", "1", "--maxmemory-policy", "noeviction"]):
        server = ValkeyServer(tmp_path, *options)
        try:
            tiers = open_tiers(TierConfig(memory_bytes=6_000, server=server.address))
            with TieredEngine(MODEL, config=SMALL_POOL, tiers=tiers) as llm:
                assert texts(llm, prompts) == alone(MODEL, prompts, 6)
                tiers.flush()
                assert tiers.remote is not None and sum(tiers.remote.failures.values()) > 0
        finally:
            server.kill()
