"""Writes down the bytes that vLLM's own event types become. A tool for maintainers, never part of CI.

    pip download --no-deps vllm==0.33.0 -d /tmp/vllm && unzip -q /tmp/vllm/*.whl -d /tmp/vllm
    VLLM_PYTHON mini_kv/tests/kv_events/record_kv_events.py /tmp/vllm/vllm/distributed/kv_events.py

`VLLM_PYTHON` is a Python that has some vLLM: what that file imports must be there. It imports nothing of this project.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).with_name("kv_events_of_vllm.json")

STORED = {
    "block_hashes": [2**64 - 1, 7],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4, 151643, 0],
    "block_size": 3,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
EVENTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "a beginning": [("BlockStored", STORED)],
    "all that is told of a block": [
        (
            "BlockStored",
            STORED
            | {
                "parent_block_hash": 12345678901234567890,
                "lora_name": "chat",
                "extra_keys": [["chat", ["cat", -2], "salt"], None],
                "group_idx": 1,
                "kv_cache_spec_kind": "sliding_window",
                "kv_cache_spec_sliding_window": 128,
            },
        )
    ],
    "hashes in full": [("BlockStored", STORED | {"block_hashes": ["00ff" * 16] * 2, "parent_block_hash": "ff00" * 16})],
    "removed, then all": [
        ("BlockRemoved", {"block_hashes": [7], "medium": "GPU", "group_idx": 0}),
        ("AllBlocksCleared", {}),
    ],
}
"""Batches by name: events as their type and fields. A hash that is a text stands for bytes, in hex."""


def main() -> None:
    """Record."""
    import msgspec

    spec = importlib.util.spec_from_file_location("kv_events", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    kv_events = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kv_events)
    bytes_of = {}
    for name, events in EVENTS.items():
        made = [getattr(kv_events, kind)(**with_bytes(fields)) for kind, fields in events]
        batch = kv_events.KVEventBatch(ts=1763000000.5, events=made, data_parallel_rank=0)
        bytes_of[name] = msgspec.msgpack.encode(batch).hex()
    RECORDING.write_text(json.dumps({"vllm": "0.33.0", "batches": bytes_of}, indent=1) + "\n", encoding="utf-8")


def with_bytes(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with bytes for hashes that are texts."""
    found = dict(fields)
    if isinstance(fields.get("parent_block_hash"), str):
        found["block_hashes"] = [bytes.fromhex(block_hash) for block_hash in fields["block_hashes"]]
        found["parent_block_hash"] = bytes.fromhex(fields["parent_block_hash"])
    return found


if __name__ == "__main__":
    main()
