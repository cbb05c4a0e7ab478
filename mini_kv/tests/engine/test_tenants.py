"""What one tenant can learn of another's prompt, and which models share block hashes."""

import re
from collections.abc import Callable, Sequence

import pytest
import torch

from mini_kv.core.errors import ConfigError
from mini_kv.engine.checkpoint import load_model, tiny_folder
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.fingerprint import MAX_VALUES, model_fingerprint, weights_epoch
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.model import ModelConfig, TinyLlama
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.engine.small_models import small_model

MODEL = small_model()
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0)


def engine(*, multi_tenant: bool = False, block_size: int = 4) -> LLMEngine:
    config = EngineConfig(block_size=block_size, num_blocks=200, multi_tenant=multi_tenant)
    return LLMEngine(MODEL, config=config)


def cached(llm: LLMEngine, prompt: list[int], cache_salt: str | None = None) -> int | None:
    """Ask for one token, and return what the answer says of the cache."""
    return llm.generate([prompt], ONE_TOKEN, cache_salt=cache_salt)[0].num_cached_tokens


# Salts.


def test_only_the_same_salt_shares_blocks():
    llm = engine()
    salts = [None, None, "ann", "ann", "bob", None]
    assert [cached(llm, PROMPT, salt) for salt in salts] == [0, 8, 0, 8, 0, 8]


def test_further_samples_have_the_salt_of_their_request():
    """One waits and enters by itself, one is forked: both would find the stranger's blocks if they had no salt."""
    llm = engine()
    llm.generate([PROMPT], ONE_TOKEN)
    llm.add_request("a", PROMPT, SamplingParams(max_tokens=3, seed=1, ignore_eos=True), n=3, cache_salt="ann")
    llm.step()
    assert [request.cache_salt for request in llm.scheduler.requests.values()] == ["ann"] * 3
    while llm.has_unfinished_requests:
        llm.step()


@pytest.mark.parametrize("multi_tenant", [False, True])
def test_an_empty_salt_is_refused(multi_tenant):
    llm = engine(multi_tenant=multi_tenant)
    with pytest.raises(ConfigError, match=re.escape("the cache_salt of request 'a' is empty")):
        llm.add_request("a", PROMPT, cache_salt="")
    with pytest.raises(ConfigError, match=re.escape("the cache_salt of request '0' is empty")):
        llm.stream([PROMPT], cache_salt="")
    assert not llm.has_unfinished_requests


def test_an_engine_of_several_tenants_refuses_a_request_without_a_salt():
    llm = engine(multi_tenant=True)
    message = re.escape("request '0' has no cache_salt, and the engine is multi_tenant")
    for call in (llm.generate, llm.stream):
        with pytest.raises(ConfigError, match=message):
            call([PROMPT])
    with pytest.raises(ConfigError, match="request 'a' has no cache_salt"):
        llm.add_request("a", PROMPT)
    assert not llm.has_unfinished_requests and not llm.scheduler.has_unfinished_requests


# The story of a PIN.

LETTER = [11, 12, 13]
"""What all letters begin with; then come four digits, which are tokens 0 to 9, and a full stop."""
STOP = 10
PIN = [4, 8, 6, 2]


def guessed(cached_of: Callable[[list[int]], int | None]) -> tuple[list[int], int]:
    """Try digit after digit, and keep each that the cache knows; return the PIN, as far as found, and the probes."""
    found: list[int] = []
    num_probes = tried = 0
    while len(found) < len(PIN) and tried < 10:
        num_cached = cached_of([*LETTER, *found, tried, STOP])
        num_probes += 1
        if num_cached is not None and num_cached > len(LETTER) + len(found):
            found.append(tried)
            tried = 0
        else:
            tried += 1
    return found, num_probes


def guess(llm: LLMEngine, cache_salt: str | None) -> tuple[list[int], int]:
    return guessed(lambda prompt: cached(llm, prompt, cache_salt))


def test_a_stranger_finds_a_pin_in_a_shared_cache():
    llm = engine(block_size=1)
    cached(llm, [*LETTER, *PIN, STOP])
    assert guess(llm, None) == (PIN, 24)


def test_with_a_salt_of_their_own_a_stranger_finds_nothing():
    llm = engine(block_size=1)
    cached(llm, [*LETTER, *PIN, STOP], "ann")
    assert guess(llm, "bob") == ([], 10)


@pytest.mark.parametrize(("salt", "num_hits"), [("ann", 3 * 9 + 4), ("bob", 3 * 9)])
def test_an_engine_of_several_tenants_tells_nothing_even_to_a_request_with_the_same_salt(salt, num_hits):
    """The cache works: it finds the letter's beginning each time but the stranger's first, and for Ann her digit."""
    llm = engine(multi_tenant=True, block_size=1)
    assert cached(llm, [*LETTER, *PIN, STOP], "ann") is None
    assert guess(llm, salt) == ([], 10)
    assert llm.kv_cache_manager.prefix_cache_stats.hits == num_hits


# Models.


def hashes(model: TinyLlama) -> Sequence[bytes]:
    """Return the block hashes that an engine on this model gives the prompt."""
    llm = LLMEngine(model, config=EngineConfig(block_size=4, num_blocks=9))
    return llm.kv_cache_manager.new_request("a", PROMPT).block_hashes


def test_the_same_checkpoint_gives_the_same_hashes_each_time_it_is_loaded():
    first, second = (hashes(load_model(tiny_folder())[0]) for _ in range(2))
    assert first == second and len(first) == 2


def test_two_checkpoints_share_no_hash():
    """Other sizes; the same weights with another window, or another constant, or in another dtype."""
    models = {
        "trained": load_model(tiny_folder())[0],
        "trained, 64 bits": load_model(tiny_folder(), torch.float64)[0],
        "small": small_model(),
        "small, with a window": small_model(sliding_window=4, window_layers=(1,)),
        "small, three layers": small_model(layers=3),
    }
    found = [key for model in models.values() for key in hashes(model)]
    assert len(set(found)) == len(found) == 10


@pytest.mark.parametrize("name", [name for name, _ in MODEL.named_parameters()])
def test_one_changed_weight_gives_other_hashes(name):
    model = small_model()
    before = hashes(model)
    weights = model.get_parameter(name)
    weights.flatten()[-1] += 1e-9
    after = hashes(model)
    assert before[0] != after[0]
    weights.flatten()[-1] -= 1e-9


def test_fingerprint_and_epoch_are_each_part_of_a_hash():
    """Settings change the one, weights the other."""
    model, other = small_model(), small_model(sliding_window=4, window_layers=(1,))
    assert weights_epoch(model) == weights_epoch(other) and model_fingerprint(model) != model_fingerprint(other)
    other = small_model()
    other.get_parameter("model.norm.weight")[0] = 2.0
    assert model_fingerprint(model) == model_fingerprint(other) and weights_epoch(model) != weights_epoch(other)


def test_of_a_large_tensor_evenly_spaced_values_are_read():
    model = TinyLlama(ModelConfig(MAX_VALUES // 2, 4, 4, 1, 1, 1, 2)).requires_grad_(False)
    embedding = model.get_parameter("model.embed_tokens.weight")
    assert embedding.numel() == 2 * MAX_VALUES
    before = weights_epoch(model)
    embedding[0, 1] += 1
    assert weights_epoch(model) == before
    embedding[0, 2] += 1
    assert weights_epoch(model) != before
