"""mini-sglang's `CacheManager` behind the protocol. It needs torch, apache-tvm-ffi, ninja, a C++ compiler, and no GPU.

mini-kv verify -- python -m mini_kv.course.verify.adapters.mini_sglang mini-sglang
"""

from pathlib import Path
from typing import Any

from mini_kv.course.verify.adapter import Adapter, NotBuiltError
from mini_kv.course.verify.adapters.checkouts import run_on_checkout
from mini_kv.other_engines import MiniSGLang


class SGLangAdapter(Adapter):
    """Calls the manager as mini-sglang's scheduler does, for requests with `max_tokens` 0. A page is a block.

    The radix tree has no hashes, no queue and no references of single blocks, and the pages are taken in another order.
    What is shown is the hits, what is granted, and the usage.
    """

    def __init__(self, checkout: Path) -> None:
        self.engine = MiniSGLang(checkout)

    def do_start(self, message: dict[str, Any]) -> None:
        settings = message["settings"]
        others = settings["drafter_groups"] or settings["watermark"] or not settings["enable_caching"]
        if [group["kind"] for group in settings["groups"]] != ["full"] or others:
            raise NotBuiltError("one group of full attention, caching always on, no drafter, no watermark")
        self.manager, self.tables = self.engine.make_cache(settings["num_blocks"] - 1, settings["block_size"], 64, 512)
        self.pending: dict[str, Any] = {}
        self.prompt_lens: dict[str, int] = {}
        self.running: dict[str, Any] = {}

    def do_new(self, message: dict[str, Any]) -> None:
        if message["salt"] or message["lora"] or message["images"]:
            raise NotBuiltError("a tree of the tokens alone")
        tokens = self.engine.torch.tensor(message["tokens"], dtype=self.engine.torch.int32)
        self.pending[message["request"]] = self.engine.pending(0, tokens, None)
        self.prompt_lens[message["request"]] = len(tokens)

    def do_lookup(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"hit": self.manager.match_req(self.pending[message["request"]]).cuda_handle.cached_len}

    def do_allocate(self, message: dict[str, Any]) -> dict[str, Any]:
        name, start, num_new = message["request"], message["computed"] + message["hit"], message["tokens"]
        pending, request = self.pending[name], self.running.get(name)
        beyond = start + num_new > pending.input_len or message["lookahead"]
        if beyond or (start >= self.prompt_lens[name] and num_new != 1):
            raise NotBuiltError("slots for a prompt or a part of it, then for one token per step")
        place = (request.cache_handle, request.table_idx) if request else None
        place = place or self.engine.admit(self.manager, self.tables, pending)
        if place is None:
            return {"granted": False}
        handle, row = place
        step = self.engine.core.Req(pending.input_ids[: start + num_new], row, start, 0, 0, None, handle)
        try:
            self.manager.allocate_paged([step])
        except AssertionError:
            raise NotBuiltError("no step lacks room: a request is admitted only if `max_tokens` fit too") from None
        self.running[name] = step
        return {"granted": True}

    def do_compute(self, message: dict[str, Any]) -> None:
        request, prompt_len = self.running[message["request"]], self.prompt_lens[message["request"]]
        ends_prompt = request.cached_len < prompt_len <= request.device_len
        request.complete_one()
        if ends_prompt:
            self.manager.cache_req(request, finished=False)

    def do_append(self, message: dict[str, Any]) -> None:
        pending = self.pending[message["request"]]
        pending.input_ids = self.engine.torch.cat([pending.input_ids, pending.input_ids.new_tensor(message["tokens"])])

    def do_free(self, message: dict[str, Any]) -> None:
        request = self.running.pop(message["request"], None)
        if request:
            if request.cached_len < len(request.input_ids):
                raise NotBuiltError("a request ends after its step")
            self.tables.free(request.table_idx)
            self.manager.cache_req(request, finished=True)

    def visible(self) -> dict[str, Any]:
        return {"usage": 1 - self.manager.available_size / (self.manager.num_pages * self.manager.page_size)}


if __name__ == "__main__":
    run_on_checkout(SGLangAdapter)
