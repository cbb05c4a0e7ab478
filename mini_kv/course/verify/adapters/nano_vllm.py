"""nano-vllm's `BlockManager` behind the protocol. It needs a checkout of nano-vllm, xxhash and numpy, and no GPU.

mini-kv verify -- python -m mini_kv.course.verify.adapters.nano_vllm nano-vllm
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from mini_kv.course.verify.adapter import Adapter, NotBuiltError
from mini_kv.course.verify.adapters.checkouts import run_on_checkout
from mini_kv.other_engines import open_package


class NanoAdapter(Adapter):
    """Calls the manager as nano-vllm's scheduler does. It has no null block, so its numbers are one less.

    Hashes are not shown: vLLM gives a block its hash when the step is planned, nano-vllm when it has run.
    """

    engine, folder = "nano-vllm", "nanovllm"

    def __init__(self, checkout: Path) -> None:
        name = open_package(self.engine, checkout, self.folder, "engine/block_manager.py")
        self.new_sequence = import_module(f"{name}.engine.sequence").Sequence
        self.new_manager = import_module(f"{name}.engine.block_manager").BlockManager

    def do_start(self, message: dict[str, Any]) -> None:
        settings = message["settings"]
        others = settings["drafter_groups"] or settings["watermark"] or not settings["enable_caching"]
        if [group["kind"] for group in settings["groups"]] != ["full"] or others:
            raise NotBuiltError("one group of full attention, caching always on, no drafter, no watermark")
        self.new_sequence.block_size = settings["block_size"]
        self.manager = self.new_manager(settings["num_blocks"] - 1, settings["block_size"])
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
        if message["computed"] + message["hit"] + message["tokens"] + message["lookahead"] != len(sequence):
            raise NotBuiltError("slots for exactly the known tokens")
        granted = self.extend(sequence) if sequence.block_table else self.admit(sequence)
        sequence.num_scheduled_tokens = message["tokens"]
        return {"granted": granted}

    def admit(self, sequence: Any) -> bool:
        num_hit = self.manager.can_allocate(sequence)
        if num_hit != -1:
            self.manager.allocate(sequence, num_hit)
        return bool(num_hit != -1)

    def extend(self, sequence: Any) -> bool:
        granted = self.manager.can_append(sequence)
        if granted:
            self.manager.may_append(sequence)
        return bool(granted)

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
    run_on_checkout(NanoAdapter)
