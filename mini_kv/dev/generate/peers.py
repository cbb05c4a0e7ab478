"""The same prompts through transformers, on the same weights, in two ways: continuous batching, and one padded batch.

The set-up is left out, as ours is: pools are allocated, managers started. Continuous batching gets a pool of our size:
by default it takes most of the machine's memory, and writes all of it before the first token.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from mini_kv.dev.generate.setup import CPU, Setup, greedy, table
from mini_kv.dev.measure import Run, take_turns
from mini_kv.engine.contiguous import NoCache

TITLE = "whole prompts and answers, compared with transformers on the same model"
OURS = "mini_kv"
CONTINUOUS = "continuous batching"
MUST = 2.0
"""The target: our speed over that of continuous batching, with the tiny model on a CPU."""
_PAGE_SIZE = 16
_MAX_BATCH_TOKENS = 512
"""Most tokens of a step of continuous batching: the fastest of 256, 512 and 2048, as its mask grows with the square."""

Tokens = list[list[int]]
Once = Callable[[Sequence[list[int]]], tuple[float, Tokens]]
"""Answers all prompts and returns the seconds and the answers."""
FindPeers = Callable[[Setup], tuple[dict[str, Once], dict[str, str]]]
"""Returns the available ways, and the reasons why other ways are missing."""


def run(setup: Setup, find_peers: FindPeers | None = None) -> list[dict[str, Any]]:
    """Return one row per workload, with the results of the peers of `find_peers`, by default those of transformers."""
    with _quiet_transformers():
        peers, missing = (find_peers or _transformers_peers)(setup)
        return [_row(setup, *workload, peers) | {"missing": missing} for workload in setup.sizes.peers]


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence the warnings of transformers, where it is installed."""
    if not has_package("transformers"):
        yield
        return
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def has_package(name: str) -> bool:
    """Return whether a package of this name is installed."""
    return importlib.util.find_spec(name) is not None


def _row(setup: Setup, count: int, length: int, shared: int, peers: dict[str, Once]) -> dict[str, Any]:
    prompts = setup.prompts(count, length, shared)
    said, failed = dict[str, Tokens](), dict[str, str]()
    ways = {OURS: _ours(setup, count, length)} | peers
    runs = {name: _turn(name, once, prompts, said, failed) for name, once in ways.items()}
    values = take_turns(runs, setup.repeats)
    if OURS in failed:
        raise RuntimeError(failed[OURS])
    seconds = {name: median(found["seconds"]) for name, found in values.items() if name not in failed}
    others = [name for name in seconds if name != OURS]
    return {
        "prompts": count,
        "tokens": length,
        "shared": shared,
        "new tokens": setup.sizes.new_tokens,
        "seconds": seconds,
        "times as fast as": {name: seconds[name] / seconds[OURS] for name in others},
        "same answers": {name: sum(map(list.__eq__, said[OURS], said[name])) for name in others},
        "widest gap": {name: widest_gap(setup, prompts, said[OURS], said[name]) for name in others},
        "must": MUST if setup.shape == "tiny" and setup.sizes is CPU else None,
        "failed": failed,
    }


def _turn(name: str, once: Once, prompts: Sequence[list[int]], said: dict[str, Tokens], failed: dict[str, str]) -> Run:
    """Return a run that records the answers, or the error, so that a failing peer does not affect other peers."""

    def run_once() -> dict[str, float]:
        if name in failed:
            return {}
        try:
            seconds, said[name] = once(prompts)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            return {}
        return {"seconds": seconds}

    return run_once


def widest_gap(setup: Setup, prompts: Sequence[list[int]], ours: Tokens, theirs: Tokens) -> float | None:
    """Return the largest gap of the two best logits at the first difference of two answers, or `None` if all are equal.

    A small gap means that the engines added the same numbers in another order. A large gap means that one is wrong.
    """
    gaps = []
    for prompt, one, other in zip(prompts, ours, theirs, strict=True):
        if one == other:
            continue
        index = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if index is None:
            return float("inf")  # one is shorter
        text = torch.tensor(prompt + one[:index], device=setup.model.device)
        last = torch.tensor([len(text) - 1], device=setup.model.device)
        with torch.inference_mode():
            logits = setup.model.forward(text, torch.arange(len(text), device=text.device), NoCache(), last)
        best, second = logits[0].float().topk(2).values.tolist()
        gaps.append(best - second)
    return max(gaps, default=None)


def _ours(setup: Setup, count: int, length: int) -> Once:
    engine = setup.engine(count, length + setup.sizes.new_tokens)

    def once(prompts: Sequence[list[int]]) -> tuple[float, Tokens]:
        engine.kv_cache_manager.reset_prefix_cache()  # else the second run would find all of the first
        begin = setup.clock()
        outputs = engine.generate(prompts, greedy(setup.sizes.new_tokens))
        return setup.clock() - begin, [output.outputs[0].token_ids for output in outputs]

    return once


def _transformers_peers(setup: Setup) -> tuple[dict[str, Once], dict[str, str]]:
    """Return transformers' ways, and the reasons for missing ones."""
    if not has_package("transformers"):
        return {}, {"transformers": "the package transformers is not installed"}
    missing = {}
    peers = _make_peers(setup)
    if not has_package("psutil"):
        missing[CONTINUOUS] = "it asks psutil for the free memory, which is not installed"
        del peers[CONTINUOUS]
    return peers, missing


def _continuous(setup: Setup, model: Any, settings: Any) -> Once:
    """Return the way of continuous batching, whose pool has the room that these prompts need."""
    from transformers import ContinuousBatchingConfig

    new_tokens = setup.sizes.new_tokens

    def continuous(prompts: Sequence[list[int]]) -> tuple[float, Tokens]:
        pages = len(prompts) * -(-(len(prompts[0]) + new_tokens) // _PAGE_SIZE) + 1
        config = ContinuousBatchingConfig(page_size=_PAGE_SIZE, num_blocks=pages, max_batch_tokens=_MAX_BATCH_TOKENS)
        answers: dict[str, list[int]] = {}
        with model.continuous_batching_context_manager(
            generation_config=settings, continuous_batching_config=config, warmup=False
        ) as manager:
            begin = setup.clock()
            names = manager.add_requests(inputs=list(prompts), max_new_tokens=new_tokens)
            while len(answers) < len(prompts):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    answers[result.request_id] = list(result.generated_tokens)
                elif result is None and not manager.is_running():
                    raise RuntimeError("its thread has ended")
            seconds = setup.clock() - begin
        return seconds, [answers[name] for name in names]

    return continuous


def _make_peers(setup: Setup) -> dict[str, Once]:
    from transformers import GenerationConfig

    new_tokens, device, model = setup.sizes.new_tokens, setup.model.device, _same_model(setup)
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def batched(prompts: Sequence[list[int]]) -> tuple[float, Tokens]:
        model.set_attn_implementation("sdpa")  # continuous batching has put its own in place
        tokens = torch.tensor(prompts, device=device)
        begin = setup.clock()
        answers = model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings)
        return setup.clock() - begin, answers[:, tokens.shape[1] :].tolist()

    return {CONTINUOUS: _continuous(setup, model, settings), "one batch": batched}


def _same_model(setup: Setup) -> Any:
    """Return transformers' Llama with our model's sizes and weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = asdict(setup.model.config)
    windows, rope_theta = (sizes.pop("sliding_window"), sizes.pop("window_layers")), sizes.pop("rope_theta")
    if windows != (None, ()):
        raise ValueError("transformers' Llama does not support windows")
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    config = LlamaConfig(**sizes, rope_parameters=rope, tie_word_embeddings=True)
    with torch.device(setup.model.device):
        model = AutoModelForCausalLM.from_config(config, dtype=setup.model.dtype)
    model.load_state_dict(setup.model.state_dict(), strict=False, assign=True)  # ours has no second name for the
    model.tie_weights()  # matrix that makes the logits
    return model.eval()


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as text."""
    found = []
    for row in rows:
        shared = f", {row['shared']} of them shared" if row["shared"] else ""
        found.append(f"{row['prompts']} prompts of {row['tokens']} tokens{shared}; {row['new tokens']} new ones each")
        num_tokens, cells = row["prompts"] * row["new tokens"], []
        for name, seconds in row["seconds"].items():
            ratio, gap, verdict = row["times as fast as"].get(name), row["widest gap"].get(name), ""
            if name == CONTINUOUS and row["must"] is not None:
                verdict = f"must {row['must']:g}x: {'reached' if ratio >= row['must'] else 'missed'}"
            same = "" if name == OURS else f"{row['same answers'][name]}/{row['prompts']}"
            ratio = "" if ratio is None else f"{ratio:.2f}x"
            cells.append(
                [name, seconds, num_tokens / seconds, ratio, same, "" if gap is None else f"{gap:.1e}", verdict]
            )
        found += table(["", "s", "tokens/s", "ours is", "same answers", "widest gap", ""], cells)
        found += [f"{name}: {reason}" for name, reason in (row["failed"] | row["missing"]).items()]
    return found
