"""MinivLLM's `BlockManager` behind the protocol. It needs a checkout of MinivLLM, xxhash and numpy, and no GPU.

mini-kv verify -- python -m mini_kv.course.verify.adapters.minivllm MinivLLM
"""

from copy import deepcopy
from typing import Any

from mini_kv.course.verify.adapter import NotBuiltError
from mini_kv.course.verify.adapters.checkouts import run_on_checkout
from mini_kv.course.verify.adapters.nano_vllm import NanoAdapter


class MinivLLMAdapter(NanoAdapter):
    """Calls the manager as MinivLLM's scheduler does. It descends from an older manager of nano-vllm.

    Full blocks get their hashes when the step is planned. A hit is found by `allocate`, so a lookup tries it on a copy.
    """

    engine, folder = "MinivLLM", "src/myvllm"

    def do_lookup(self, message: dict[str, Any]) -> dict[str, Any]:
        manager, sequence = deepcopy((self.manager, self.requests[message["request"]]))
        if not manager.can_allocate(sequence):
            raise NotBuiltError("a lookup that finds no room returns no hit")
        manager.allocate(sequence)
        return {"hit": sequence.num_cached_tokens}

    def admit(self, sequence: Any) -> bool:
        granted = self.manager.can_allocate(sequence)
        if granted:
            self.manager.allocate(sequence)
        return bool(granted)

    def extend(self, sequence: Any) -> bool:
        granted = self.manager.can_append(sequence)
        if granted:
            self.manager.append(sequence)
        return bool(granted)

    def do_compute(self, message: dict[str, Any]) -> None:
        pass


if __name__ == "__main__":
    run_on_checkout(MinivLLMAdapter)
