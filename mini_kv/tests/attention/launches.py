"""All kernels as the backend may launch them: a case for each dtype, head size and kind of call.

Tiles and warps are the plan's own, for each compute capability.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mini_kv.attention.triton_plan import ROWS_PER_WRITE, Call, Capability, max_rows, pick_tiles

CAPABILITIES: tuple[Capability, ...] = ((8, 0), (9, 0), (10, 0))
RELATIVES: tuple[Capability, ...] = ((8, 6), (8, 9), (12, 0))
"""The same instructions as 8.0, and 100 KB of shared memory."""
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "int8": 1, "fp8": 1}
GROUP = 4
PROMPT = 4096

OPTIONS = {"WINDOW": 0, "CHUNK": 0, "HAS_SOFT_CAP": False, "HAS_SINKS": False}
EVERY_OPTION = {"WINDOW": 1024, "CHUNK": 4096, "HAS_SOFT_CAP": True, "HAS_SINKS": True}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with the constants, dtypes and threads that it is compiled for."""

    name: str
    kernel: str
    constants: dict[str, Any]
    query: str
    cache: str
    num_warps: int = 4
    num_stages: int = 3

    @property
    def is_plain(self) -> bool:
        """Whether it is attention without options, of one token or a long prompt."""
        return self.kernel == "attend_kernel" and not self.constants["WINDOW"] and " tokens" not in self.name


def launches(capability: Capability) -> list[Launch]:
    """Return what may be launched on a GPU of this compute capability; of its relatives what takes most memory."""
    found = [launch for launch in _all(capability) if launch.cache != "fp8" or capability >= (8, 9)]
    if capability in RELATIVES:
        found = [launch for launch in found if launch.is_plain and launch.constants["HEAD_SIZE"] >= 128]
    return found


def _all(capability: Capability) -> Iterator[Launch]:
    for query in ("bf16", "fp32"):
        for cache in (query, "int8", "fp8"):
            for head_size in (64, 128, 256):
                yield from _attend(capability, query, cache, head_size)
                yield from _attend(capability, query, cache, head_size, query_len=PROMPT)
            yield from _attend(capability, query, cache, 128, with_options=True)
            yield from _attend(capability, query, cache, 128, query_len=PROMPT, with_options=True)
    for cache in ("bf16", "int8", "fp8"):
        for query_len in (8, 16):  # short prompts: 32 rows, and 64
            yield from _attend(capability, "bf16", cache, 128, query_len=query_len)
    yield from _attend(capability, "fp16", "fp16", 128)
    yield from _attend(capability, "fp16", "fp16", 128, query_len=PROMPT)
    yield from _attend(capability, "bf16", "bf16", 128, block_size=64)
    yield from _attend(capability, "bf16", "bf16", 80, query_len=PROMPT)
    for cache in ("bf16", "fp32", "int8"):
        query = "fp32" if cache == "fp32" else "bf16"
        constants = {**_head(128), "NUM_KV_HEADS": 8, "BLOCK_SIZE": 16, "ROWS": ROWS_PER_WRITE}
        constants["HAS_SCALES"] = cache == "int8"
        yield Launch(_name("write", query, cache), "write_kv_kernel", constants, query, cache)
    for query in ("bf16", "fp32"):
        constants = {**_head(128), "BLOCK_S": 16, "HAS_SINKS": True}
        yield Launch(_name("merge", query, query), "merge_kernel", constants, query, query)


def _attend(
    capability: Capability,
    query: str,
    cache: str,
    head_size: int,
    *,
    query_len: int = 1,
    block_size: int = 16,
    with_options: bool = False,
) -> Iterator[Launch]:
    """Yield one launch of `attend_kernel`; none if the plan has no tiles for it."""
    call = Call(BYTES[query], BYTES[cache], head_size, GROUP, query_len)
    if max_rows(call, capability) < GROUP:
        return
    tiles = pick_tiles(call, capability)
    is_decode = query_len == 1
    constants = {
        **_head(head_size),
        **(EVERY_OPTION if with_options else OPTIONS),
        "BLOCK_SIZE": block_size,
        "GROUP": GROUP,
        "BLOCK_M": tiles.block_m,
        "TILE": tiles.tile,
        "HAS_SCALES": cache == "int8",
        "IS_SPLIT": is_decode and not with_options,
        "ONE_QUERY_EACH": is_decode,
    }
    details = [f"head {head_size}"] if head_size != 128 else []
    details += [f"{query_len} tokens"] if 1 < query_len < PROMPT else []
    details += [f"block {block_size}"] if block_size != 16 else []
    details += ["every option"] if with_options else []
    name = ", ".join([_name("decode" if is_decode else "prefill", query, cache), *details])
    yield Launch(name, "attend_kernel", constants, query, cache, tiles.num_warps, tiles.num_stages)


def _name(what: str, query: str, cache: str) -> str:
    return f"{what} {query}" if query == cache else f"{what} {query}, {cache} cache"


def _head(head_size: int) -> dict[str, int]:
    return {"HEAD_SIZE": head_size, "BLOCK_D": max(16, 1 << (head_size - 1).bit_length())}
