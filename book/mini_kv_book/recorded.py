"""Tables of what was recorded: measured times, hit rates, compiled kernels, vLLM's states. Needs no MkDocs.

Results that a page can compute are computed at the build. What takes another machine, a real trace or hours is kept in
`book/data`, with the command that wrote it:

    <!-- table league -->                     `mini-kv replay TRACE --policy all --json`, cut to the columns
    <!-- table recorded cpu cache small -->   generate-cpu.json: `python -m mini_kv.dev.generate --json FILE`
    <!-- table kernels 9.0 -->                kernels.json: `python -m mini_kv.tests.attention.compiled --write`
    <!-- table kernels-measured h200 -->      gpu-h200.json: `python -m mini_kv.dev.attention --json FILE`
    <!-- table tiers -->                      tiers.json: `python -m mini_kv.dev.tiers --server ADDRESS --json FILE`
    <!-- table drafts -->                     drafts.json: `python -m mini_kv.dev.draft_acceptance --json FILE`

`conformance` counts the scenarios recorded from vLLM, and `licences` the packages that constraints.txt pins.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from mini_kv.course.verify import manager, scheduler
from mini_kv.course.verify.deviations import UPSTREAM
from mini_kv.course.verify.scenario_language import Scenario
from mini_kv.tools.traces.league import BELADY
from mini_kv_book.places import DOCS, ROOT


def table(head: Sequence[str], rows: Iterable[Iterable[object]], *, of_words: bool = False) -> str:
    """Return a table of which all columns but the first are aligned to the right, unless it is one of words.

    >>> print(table(["policy", "hits"], [["lru", 3]]))
    | policy | hits |
    |---|---:|
    | lru | 3 |
    """
    lines = [f"| {' | '.join(head)} |", "|---|" + ("---|" if of_words else "---:|") * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


@cache
def load(name: str) -> dict[str, Any]:
    """Return a recording. Raises `ValueError` if it is missing."""
    path = ROOT / "book" / "data" / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"nothing is recorded in {path.relative_to(ROOT)}")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# Policies on real traces ----------------------------------------------------------------------------------------------


def hit_rates(name: str = "league") -> dict[str, dict[int, float]]:
    """Return the hits as a share of the prompt tokens, by policy and by number of blocks."""
    found: dict[str, dict[int, float]] = {}
    for row in load(name)["rows"]:
        found.setdefault(row["policy"], {})[row["num_blocks"]] = row["hit_tokens"] / row["prompt_tokens"]
    return found


def league(name: str = "league") -> str:
    """Return the table, the best of each size in bold, and below it where the figures come from."""
    recorded, rates = load(name), hit_rates(name)
    ceiling = rates.pop(BELADY)
    best = {size: max(rates, key=lambda policy: rates[policy][size]) for size in ceiling}
    rows = [
        [policy, *(_bold(f"{100 * of_policy[size]:.1f}", best[size] == policy) for size in ceiling)]
        for policy, of_policy in (rates | {BELADY: ceiling}).items()
    ]
    how = f"{recorded['requests']:,} requests, one at a time"
    source = f"*Recorded on {recorded['date']} by `{recorded['command']}`: {how}.*"
    return f"{table(['blocks', *(f'{size:,}' for size in ceiling)], rows)}\n\n{source}"


def _bold(cell: str, is_bold: bool) -> str:
    return f"**{cell}**" if is_bold else cell


# Generation on a CPU --------------------------------------------------------------------------------------------------

COLUMNS = {
    "cache": {
        "tokens before it": ("tokens", "{:,}"),
        "no cache": ("no cache ms", "{:,.1f} ms"),
        "contiguous": ("contiguous ms", "{:,.1f} ms"),
        "blocks": ("paged ms", "{:,.1f} ms"),
    },
    "prefix": {
        "prefix caching": ("prefix caching", "{}"),
        "prompt tokens a second": ("prompt tokens/s", "{:,.0f}"),
        "first word, median": ("first token ms, median", "{:,.0f} ms"),
        "first word, last": ("first token ms, last", "{:,.0f} ms"),
        "found": ("found", "{:.0%}"),
    },
    "batch": {
        "requests in a step": ("requests", "{:,}"),
        "a step": ("ms per step", "{:,.1f} ms"),
        "tokens a second": ("tokens/s", "{:,.0f}"),
        "a step at the least": ("floor ms", "{:,.1f} ms"),
    },
}
"""The columns of each part's table: heading, then the key of the value and the format that it is written in."""


def rows(machine: str, part: str, shape: str) -> list[dict[str, Any]]:
    """Return the rows of a part, measured with the model of that shape. Raises `ValueError` if there are none."""
    for found in load(f"generate-{machine}")["parts"]:
        if (found["part"], found["shape"]) == (part, shape) and "rows" in found:
            return list(found["rows"])
    raise ValueError(f"generate-{machine}.json has no {part!r} of the model {shape!r}")


def generation(machine: str, part: str, shape: str) -> str:
    """Return the table, and below it the source of its figures."""
    columns = COLUMNS[part]
    cells = []
    for row in rows(machine, part, shape):
        values = [(row.get(key), form) for key, form in columns.values()]
        cells.append(["not tried" if value is None else form.format(value) for value, form in values])
    found = load(f"generate-{machine}")
    header = found["header"]
    told = f"{header['machine']}; {header['versions']}; {header['method']}"
    source = f"*Recorded on {found['date']} by `{header['command']}`: {told}.*"
    return f"{table([*columns], cells, of_words=True)}\n\n{source}"


# Kernels: what the compiler makes of each without a GPU, and how fast they were on one --------------------------------

_COMPILED = ("kernel", "registers", "spills", "shared memory", "programs", "tensor cores", "loads of 16 bytes")
_OTHERS = {
    "flash": "torch's FlashAttention",
    "cudnn": "cuDNN",
    "flex": "FlexAttention",
    "flashinfer": "FlashInfer",
    "vllm": "vLLM's Triton kernel",
}
"""The peers of `mini_kv.dev.attention.gpu_peers`, as the table's head names them."""


def kernels(capability: str) -> str:
    """Return the table of one compute capability, and its source. A slash separates the figures of two versions."""
    versions = load("kernels")["triton"]
    recorded = [tables[capability] for tables in versions.values() if capability in tables]
    if not recorded:
        raise ValueError(f"no kernels are recorded for compute capability {capability}")
    rows = [[name, *_figures([of_version[name] for of_version in recorded])] for name in recorded[0]]
    command = f"python -m mini_kv.tests.attention.compiled --capability {capability}"
    return f"{table(_COMPILED, rows)}\n\n*`{command}`, Triton {' / '.join(versions)}.*"


def _figures(facts: list[dict[str, Any]]) -> list[str]:
    """Return a row's cells, with one figure if the versions of Triton agree."""
    loads = [(one["wide_loads"], one["wide_loads"] + one["narrow_loads"]) for one in facts]
    columns: list[list[str]] = [
        [f"{one['registers']}" for one in facts],
        [f"{one['spills']}" for one in facts],
        [f"{one['shared'] / 1024:.0f} KB" for one in facts],
        [f"{one['programs']}" for one in facts],
        [one["tensor_cores"] or "none" for one in facts],
        [f"{wide} of {both}" if both else "-" for wide, both in loads],
    ]
    return [" / ".join(dict.fromkeys(column)) for column in columns]


def kernels_measured(card: str) -> str:
    """Return the measurements on a GPU: our time, and the time of others as a multiple of ours."""
    record = load(f"gpu-{card}")
    others = [name for name in _OTHERS if any(name in row["times_as_fast_as"] for row in record["rows"])]
    head = ("batch", "microseconds", "TB/s", "of a copy's speed", "TFLOP/s", *(_OTHERS[name] for name in others))
    rows = []
    for row in record["rows"]:
        ratios = [row["times_as_fast_as"].get(name) for name in others]
        cells = [f"{1e6 * row['seconds']:,.1f}", f"{row['bytes_per_second'] / 1e12:.2f}", f"{row['share_of_copy']:.2f}"]
        cells.append("" if row["row"].startswith("write") else f"{row['flops_per_second'] / 1e12:.0f}")
        rows.append([row["row"], *cells, *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    about = dict(line.split(maxsplit=1) for line in record["about"])
    limits = f"a copy moves {record['copy'] / 1e12:.2f} TB/s, a product does {record['multiply'] / 1e12:.0f} TFLOP/s"
    return f"{table(head, rows)}\n\n*`{about['command']}`, {about['machine']}, {about['versions']}; {limits}.*"


# Tiers and drafts -----------------------------------------------------------------------------------------------------


def tiers() -> str:
    """Return the time to the first token, in bold where it is shorter than computing, and the crossovers."""
    recorded = load("tiers")
    computed: dict[str, float] = recorded["milliseconds"]["computed"]
    rows = []
    for name, row in recorded["milliseconds"].items():
        crossing = recorded["crossover"].get(name)
        cells = [_bold(f"{row[length]:.1f}", row[length] < computed[length]) for length in computed]
        title = "computed again" if crossing is None else f"from {name}"
        rows.append([title, *cells, "" if crossing is None else _crossing(crossing)])
    note = f"Median of {recorded['repeats']} runs on one machine, in turns. In bold: quicker than computing."
    shown = table(["known tokens", *computed, "reloading is quicker from"], rows)
    return shown.replace("---:|\n", "---|\n", 1) + f"\n\n{note}"  # the last column has words


def _crossing(crossing: dict[str, int | None]) -> str:
    """Return the length from which on reloading was faster, and the predicted one."""
    measured, predicted = crossing["measured"], crossing["predicted"]
    return f"{measured or 'no length on'}, predicted {predicted or 'none'}"


def drafts() -> str:
    """Return the shares of right drafts, and the saved steps."""
    rows = []
    for name, row in load("drafts").items():
        share = row["num_accepted_tokens"] / max(1, row["num_draft_tokens"])
        counts = (row["num_tokens"], row["steps"], row["steps_with_drafts"], row["num_draft_tokens"])
        rows.append([name, *counts, f"{row['num_accepted_tokens']}, {share:.0%}"])
    return table(["text", "tokens", "steps without drafts", "with drafts", "drafts", "of them right"], rows)


# How much of what was recorded from vLLM is the same here -------------------------------------------------------------

PARTS = {"KVCacheManager": manager.load_scenarios, "Scheduler": scheduler.load_scenarios}
"""What was recorded, and its scenarios."""


def conformance() -> str:
    """Return the table: a row per part, then per group of its scenarios."""
    rows = []
    for name, load_scenarios in PARTS.items():
        scenarios = load_scenarios()
        rows.append(_equality(f"**`{name}`**", scenarios))
        for group in dict.fromkeys(scenario.group for scenario in scenarios):
            rows.append(_equality(group, [scenario for scenario in scenarios if scenario.group == group]))
    return table([UPSTREAM, "scenarios", "equal in every call", "calls", "equal", "differ as listed"], rows)


def conformance_summary() -> str:
    """Return the sentence for the README."""
    scenarios = [scenario for load_scenarios in PARTS.values() for scenario in load_scenarios()]
    num_calls, num_equal = count(scenarios)
    return (
        f"{len(scenarios)} scenarios were recorded from {UPSTREAM}: after {num_equal:,} of {num_calls:,} calls "
        f"the observable state is equal, and {num_calls - num_equal} differ as listed"
    )


def count(scenarios: Sequence[Scenario]) -> tuple[int, int]:
    """Return the number of calls, and of those after which all is equal.

    The tests replay the scenarios. They fail if a call differs without naming a difference, and if it names one that is
    not there. So the calls that name one are those that differ.
    """
    calls = [call for scenario in scenarios for call in scenario.calls]
    return len(calls), sum(not call.differs and not call.unchanged for call in calls)


def _equality(name: str, scenarios: Sequence[Scenario]) -> list[str]:
    num_calls, num_equal = count(scenarios)
    num_same = sum(not scenario.deviations for scenario in scenarios)
    return [name, f"{len(scenarios)}", f"{num_same}", f"{num_calls:,}", f"{num_equal:,}", f"{num_calls - num_equal}"]


# Packages that the site carries for its labs --------------------------------------------------------------------------

LICENCES = DOCS / "assets" / "kv-lab" / "LICENCES.txt"
"""File that `npm run labs` writes beside the packages."""
WHEELS = {
    "iniconfig": ("MIT", "reads pytest's settings"),
    "packaging": ("Apache-2.0 OR BSD-2-Clause", "compares versions for pytest"),
    "pluggy": ("MIT", "how pytest calls its plugins"),
    "pygments": ("BSD-2-Clause", "colours pytest's messages"),
    "pytest": ("MIT", "runs the tests of a lab in the page"),
}
"""Per package: the licence in its wheel, and its use in the labs."""


def licences() -> str:
    """Return the packages with their pinned versions, and a link to their licences if this site carries the texts."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    versions = dict(re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE))
    rows = [(f"{name} {versions[name]}", *about) for name, about in WHEELS.items()]
    where = "\n\nAll their texts are in [one file](../assets/kv-lab/LICENCES.txt)." if LICENCES.is_file() else ""
    return table(["package", "licence", "what it does here"], rows, of_words=True) + where
