"""Our engine beside a recorded run of vLLM 0.32, whole: tokens, hits, and every block stored and removed."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mini_kv.dev.vllm_parity.__main__ import as_run, ask_vllm, main, read_recording
from mini_kv.dev.vllm_parity.engine_comparison import AGREE, compare
from mini_kv.dev.vllm_parity.running_server import live_run
from mini_kv.dev.vllm_parity.workload import (
    BLOCK_SIZE,
    LIMITS,
    NUM_BLOCKS,
    Run,
    gap,
    make_model,
    make_work,
    our_run,
)
from mini_kv.engine.config import EngineConfig
from mini_kv.engine.llm_engine import LLMEngine
from mini_kv.engine.sampling import SamplingParams
from mini_kv.tests.kv_events.events_driver import pool_keys
from mini_kv.tools.serve.attach import Subscriber
from mini_kv.tools.serve.kv_events import BlockRemoved, BlockStored, KVEventBatch
from mini_kv.tools.serve.kv_events_publisher import ZmqEventPublisher, publishing
from mini_kv.tools.serve.mirror import Mirror

RECORDING = Path(__file__).with_name("vllm_parity.json.gz")
WORK = make_work()


@pytest.fixture(scope="module")
def vllm() -> Run:
    return as_run(read_recording(RECORDING))


@pytest.mark.slow
def test_two_hundred_requests_in_a_pool_that_evicts(capsys: pytest.CaptureFixture[str]):
    """The same tokens, the same hits, the same events in the same steps, parents and tokens included."""
    assert main(["--recorded", str(RECORDING)]) == 0
    counts = (
        "200 requests, 38,029 tokens of prompts of which 12,992 were found, 5,859 tokens of answers;",
        "870 blocks stored and 828 removed in 389 steps",
    )
    assert capsys.readouterr().out.splitlines() == [AGREE, " ".join(counts)]


def test_the_mirror_of_the_recorded_run_never_holds_more_than_the_pool_twins_included(vllm: Run):
    mirror = Mirror()
    most_twins = 0
    for events in vllm.batches:
        mirror.apply(KVEventBatch(0.0, events))
        assert mirror.num_blocks < NUM_BLOCKS
        most_twins = max(most_twins, mirror.num_twins)
    assert most_twins == 3
    assert (mirror.num_stored, mirror.num_removed, mirror.num_unknown_removed) == (870, 828, 0)
    assert mirror.num_blocks == 870 - 828


def test_another_order_of_eviction_is_drawn(vllm: Run):
    step = next(i for i, batch in enumerate(vllm.batches) if [type(event) for event in batch[:2]] == [BlockRemoved] * 2)
    first, second, *rest = vllm.batches[step]
    changed = replace(vllm, batches=[*vllm.batches[:step], [second, first, *rest], *vllm.batches[step + 1 :]])
    lines = compare(WORK, changed, vllm, gap)
    assert lines[0] == f"the {step + 1}. step that changed the cache:"
    assert [line[:11] for line in lines[2:4]] == ["--> removed"] * 2
    assert not any(line.startswith("-->") for line in lines[4:])


def test_a_block_with_another_parent_is_drawn(vllm: Run):
    event = vllm.batches[0][0]
    assert isinstance(event, BlockStored)
    orphan = BlockStored(event.block_hashes, 7, event.token_ids, 32, None, "GPU", None, group_idx=0)
    changed = replace(vllm, batches=[[orphan, *vllm.batches[0][1:]], *vllm.batches[1:]])
    assert compare(WORK, changed, vllm, gap)[2].startswith("--> stored")


def test_another_hit_is_said(vllm: Run):
    changed = replace(vllm, cached=[*vllm.cached[:-1], 5])
    (line,) = compare(WORK, vllm, changed, gap)
    assert line.startswith("request 199, ")
    assert line.endswith(" 5")


@pytest.mark.parametrize(("distance", "verdict"), [(2e-5, "rounding can turn them"), (0.5, "too far for rounding")])
def test_another_token_is_drawn_with_the_distance_of_the_two_likeliest(vllm: Run, distance: float, verdict: str):
    tokens = [list(answer) for answer in vllm.tokens]
    tokens[0][-1] += 1
    lines = compare(WORK, vllm, replace(vllm, tokens=tokens), lambda token_ids: distance)
    assert lines[0].endswith(f"the answers part at token {len(tokens[0])}")
    assert lines[-1].endswith(verdict)


@pytest.mark.slow
def test_a_server_that_is_asked_one_request_at_a_time_while_its_events_are_heard():
    """The server is our engine, so that the wire and the order of things is what is tested."""
    work = make_work(30)
    publisher = ZmqEventPublisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    config = EngineConfig(BLOCK_SIZE, NUM_BLOCKS, scheduler=LIMITS)
    engine = LLMEngine(make_model(), config=config, **publishing(publisher))

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(max_tokens=body["max_tokens"], temperature=0, ignore_eos=body["ignore_eos"])
        (output,) = engine.generate([body["prompt"]], params)
        details = {"prompt_tokens_details": {"cached_tokens": output.num_cached_tokens}}
        return {"choices": [{"token_ids": list(output.outputs[0].token_ids)}], "usage": details}

    subscriber = Subscriber(publisher.endpoint, publisher.replay_endpoint)
    try:
        theirs, mirror = live_run(work, ask, subscriber, "tiny")
    finally:
        subscriber.close()
        publisher.shutdown()
    assert compare(work, our_run(work, one_at_a_time=True), theirs, gap)[0] == AGREE
    assert mirror.copies() == pool_keys(engine.kv_cache_manager)


def test_vllm_runs_in_its_own_python_and_its_failure_is_told(tmp_path: Path):
    """An executable in the place of vLLM's Python: it is given a program that exists, a checkpoint, and the prompts."""
    program = [
        f"#!{sys.executable}",
        "import json, os, pathlib, sys",
        "assert pathlib.Path(sys.argv[1]).is_file() and pathlib.Path(sys.argv[2], 'config.json').is_file()",
        "task = json.load(sys.stdin)",
        "assert len(task['prompts']) == 2, 'no room'",
        "print(json.dumps({'tokens': task['max_tokens'], 'threads': os.environ['OMP_NUM_THREADS']}))",
    ]
    python = tmp_path / "python"
    python.write_text("\n".join(program), encoding="utf-8")
    python.chmod(0o755)
    work = make_work(2)
    assert ask_vllm(str(python), work, 0) == {"tokens": work.max_tokens, "threads": "1"}
    with pytest.raises(RuntimeError, match=r"vLLM ended with status 1:(.|\n)*no room"):
        ask_vllm(str(python), make_work(3), 0)


def test_without_a_vllm_a_recording_or_a_server_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MINI_KV_VLLM_PYTHON", raising=False)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "vllm_parity: set MINI_KV_VLLM_PYTHON to a Python that has vLLM, or add --recorded FILE or --server URL\n"
    )


def test_a_server_that_does_not_answer_is_a_sentence(capsys: pytest.CaptureFixture[str]):
    assert main(["--server", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("vllm_parity: <urlopen error")


@pytest.mark.slow
def test_the_distance_of_the_two_likeliest_is_the_models():
    assert 0 < gap(WORK.prompts[0]) < 20
