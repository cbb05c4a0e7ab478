"""Helpers of the ladder: run a kernel and record its lanes, compare the output, run the compiler.

PyTorch is an argument. Numbers that were never written are -777. Numbers that must not be read are 10000.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from mini_kv.course.given.kernels import compiled
from mini_kv.course.given.kernels.memory_access import KernelMemory
from mini_kv.course.labkit.fixture import LabUnderTest

UNTOUCHED = -777.0
STALE = 1e4
SHOWN = 5
"""Numbers, or lines of lanes, that a failure shows."""
LEGEND = "lanes   o at work   . masked off   | the tile's next row"


def noise(torch: ModuleType, *shape: int) -> Any:
    """Return numbers around zero, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(10))


def part(torch: ModuleType, *shape: int, around: float = UNTOUCHED) -> Any:
    """Return a part of a larger tensor: five numbers that are not its own follow each of its rows."""
    whole = torch.full((*shape[:-1], shape[-1] + 5), around)
    return whole[..., : shape[-1]]


def start(lab: LabUnderTest, launcher: str, tensors: Mapping[str, Any], *sizes: int) -> KernelMemory:
    """Run a launcher, record every load and store, and add them to the test's story."""
    memory = KernelMemory(**tensors)
    with memory.watch():
        getattr(lab, launcher)(*tensors.values(), *sizes)
    lab.note("\n".join([LEGEND, *drawn(memory)]))
    return memory


def drawn(memory: KernelMemory) -> list[str]:
    """Return a line of lanes per load and store. Equal lines are merged, with their count."""
    counts = Counter(access.draw() for access in memory.accesses)
    return [line if count == 1 else f"{line}  {count} times" for line, count in counts.items()]


def compare(lab: LabUnderTest, memory: KernelMemory, out: Any, want: Any) -> None:
    """Compare all numbers of the output to 1e-5 of the largest. Draw the lanes if one is wrong."""
    far = ((out - want).abs() > 1e-5 * want.abs().max()) | out.isnan()
    if far.any():
        first = far.nonzero()[0].tolist()
        begin = min(first[-1], max(out.shape[-1] - SHOWN, 0))
        place = (*first[:-1], slice(begin, begin + SHOWN))
        count = f"{int(far.sum())} of {far.numel()} numbers of out are wrong"
        where = f"row {first[0]}, numbers from {begin} on" if out.dim() > 1 else f"numbers from {begin} on"
        picture = [LEGEND, *drawn(memory)[:SHOWN]]
        lab.fail(
            f"{count}; {where}",
            told(want[place]),
            told(out[place]),
            picture=picture,
            seen=[f"{number:.1e}" for number in out.flatten().tolist()],
        )
    lab.expect("numbers of out that are wrong", 0, 0)


def told(numbers: Any) -> list[float]:
    """Return the numbers as a message shows them."""
    return [float(f"{number:.4g}") for number in numbers.tolist()]


def count_reads(lab: LabUnderTest, memory: KernelMemory, **want: int) -> None:
    """Compare how many numbers were read from each of these tensors. Draw the lanes if it is another number."""
    read = memory.lanes_read()
    got = {name: read[name] for name in want}
    if got != want:
        picture = [LEGEND, *drawn(memory)[:SHOWN]]
        lab.fail("numbers read from each tensor", want, got, picture=picture)
    lab.expect("numbers read from each tensor", want, got)


def play_gather(
    lab: LabUnderTest, torch: ModuleType, num_tokens: int, block_size: int, head_size: int, gap: int = 0
) -> None:
    """Gather tokens from blocks 5, 2 and 6 of eight. Stale numbers are after the last token and around each block.

    `gap`: places between two blocks that belong to none.
    """
    cache = part(torch, 8, block_size + gap, head_size, around=STALE)[:, :block_size]
    cache[:] = STALE
    ids = [5, 2, 6][: -(-num_tokens // block_size)]
    rows = torch.arange(float(num_tokens))[:, None] * 100 + torch.arange(float(head_size))
    for position, row in enumerate(rows):
        cache[ids[position // block_size], position % block_size] = row
    out = part(torch, num_tokens, head_size)
    table = torch.tensor([*ids, 1 << 30], dtype=torch.int32)
    memory = start(lab, "gather", {"out": out, "cache": cache, "table": table})
    compare(lab, memory, out, rows)
    count_reads(lab, memory, cache=num_tokens * head_size)


def play_heads(lab: LabUnderTest, torch: ModuleType, num_tokens: int, head_size: int) -> None:
    """Score keys in tiles of eight, parts of longer rows, for two heads."""
    query, keys = part(torch, 2, head_size, around=STALE), part(torch, num_tokens, head_size, around=STALE)
    query[:], keys[:] = noise(torch, 2, head_size), noise(torch, num_tokens, head_size)
    out = part(torch, 2, num_tokens)
    memory = start(lab, "shared_load", {"out": out, "query": query, "keys": keys}, 8)
    compare(lab, memory, out, query @ keys.T)


def refuse_what_no_compiler_takes(lab: LabUnderTest, torch: ModuleType, launcher: str) -> None:
    """Compile all five kernels for tiles as large as on a GPU, once for all tests. Fail for this one's."""
    compiled.refuse_what_no_compiler_takes(lab, launcher, gpu_sized_calls(torch))


def gpu_sized_calls(torch: ModuleType) -> dict[str, Sequence[Any]]:
    """Return the arguments of each launcher for the compiler."""
    rows, wide = torch.zeros(4, 1000), torch.zeros(4, 4096)
    cache, table = torch.zeros(8, 16, 128, dtype=torch.float16), torch.zeros(4, dtype=torch.int32)
    return {
        "masked_copy": [torch.zeros(4096), torch.zeros(4096), 1024],
        "row_softmax": [rows, rows],
        "online_softmax": [torch.zeros(4), wide, wide, 1024],
        "gather": [torch.zeros(60, 128, dtype=torch.float16), cache, table],
        "shared_load": [torch.zeros(2, 100), torch.zeros(2, 128), torch.zeros(100, 128), 32],
    }
