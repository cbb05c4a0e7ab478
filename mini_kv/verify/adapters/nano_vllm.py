"""nano-vllm's `BlockManager` behind the protocol. It needs a checkout of nano-vllm, xxhash and numpy, and no GPU.

mini-kv verify -- python -m mini_kv.verify.adapters.nano_vllm nano-vllm
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mini_kv.verify.adapter import Adapter, NotBuiltError, run


class NanoAdapter(Adapter):
    """Calls the manager as nano-vllm's scheduler does. It has no null block, so its numbers are one less.

    Hashes are not shown: vLLM gives a block its hash when the step is planned, nano-vllm when it has run.
    """

    def do_start(self, message: dict[str, Any]) -> None:
        settings = message["settings"]
        others = settings["drafter_groups"] or settings["watermark"] or not settings["enable_caching"]
        if [group["kind"] for group in settings["groups"]] != ["full"] or others:
            raise NotBuiltError("one group of full attention, caching always on, no drafter, no watermark")
        self.new_sequence = import_module("nanovllm.engine.sequence").Sequence
        self.new_sequence.block_size = settings["block_size"]
        make = import_module("nanovllm.engine.block_manager").BlockManager
        self.manager = make(settings["num_blocks"] - 1, settings["block_size"])
        self.requests: dict[str, Any] = {}

    def do_new(self, message: dict[str, Any]) -> None:
        if message["salt"] or message["lora"] or message["images"]:
            raise NotBuiltError("a hash of the tokens alone")
        self.requests[message["request"]] = self.new_sequence(message["tokens"])

    def do_lookup(self, message: dict[str, Any]) -> dict[str, Any]:
        num_hit = self.manager.can_allocate(self.requests[message["request"]])
        if num_hit == -1:
            raise NotBuiltError("a lookup that finds no room returns no hit")
        return {"hit": num_hit * self.manager.block_size}

    def do_allocate(self, message: dict[str, Any]) -> dict[str, Any]:
        sequence = self.requests[message["request"]]
        num_tokens = message["computed"] + message["hit"] + message["tokens"] + message["lookahead"]
        if num_tokens != len(sequence):
            raise NotBuiltError("slots for exactly the known tokens")
        if sequence.block_table:
            granted = self.manager.can_append(sequence)
            if granted:
                self.manager.may_append(sequence)
        else:
            num_hit = self.manager.can_allocate(sequence)
            granted = num_hit != -1
            if granted:
                self.manager.allocate(sequence, num_hit)
        sequence.num_scheduled_tokens = message["tokens"]
        return {"granted": granted}

    def do_compute(self, message: dict[str, Any]) -> None:
        sequence = self.requests[message["request"]]
        self.manager.hash_blocks(sequence)
        sequence.num_cached_tokens += sequence.num_scheduled_tokens

    def do_append(self, message: dict[str, Any]) -> None:
        for token in message["tokens"]:
            self.requests[message["request"]].append_token(token)

    def do_free(self, message: dict[str, Any]) -> None:
        self.manager.deallocate(self.requests[message["request"]])

    do_preempt = do_free

    def visible(self) -> dict[str, Any]:
        tables = {name: [[n + 1 for n in sequence.block_table]] for name, sequence in self.requests.items()}
        refs = [0, *(block.ref_count for block in self.manager.blocks)]
        return {"tables": tables, "refs": refs, "free": [number + 1 for number in self.manager.free_block_ids]}


if __name__ == "__main__":
    package = ModuleType("nanovllm")  # its __init__.py would import kernels for a GPU
    package.__path__ = [str(Path(sys.argv[1]) / "nanovllm")]
    sys.modules["nanovllm"] = package
    run(NanoAdapter())
