"""The instruments of blocks and hashes: each shows one idea with controls, with all numbers from the engine.

recomputed            the cost of a text with a cache and without, word by word
token_in_boxes        the bytes of a token: layers, KV heads, keys and values
rows_and_blocks       the same arrivals, in rows as long as the longest text, and in blocks
changed_token         the hashes of a prompt's blocks when one of its tokens changes
forgery               a forged prompt under a polynomial hash, and under the engine's
hits_of_a_pool        the hit rate of a pool, and the bound of a policy that knows the future
policies_by_size      the hit rate of each eviction policy on a trace, in pools of several sizes
sliding_window        a text under a window: the blocks of both kinds of layers
holes                 the common hit of two kinds of layers, when blocks are missing

`instruments_of_steps` has the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mini_kv.core.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.sched.config import SchedulerConfig
from mini_kv.core.sched.output import SchedulerOutput
from mini_kv.core.sched.scheduler import Scheduler
from mini_kv.course.lessons.instrument import Control, Instrument, Mark, View, handle
from mini_kv.course.lessons.timeline import FIRST_OUTPUT_TOKEN, Arrival, timeline
from mini_kv.course.lessons.windows import find_with_holes
from mini_kv.story.step_loop import run_step, sample_ready
from mini_kv.tools.traces.belady_bound import belady_hit_blocks
from mini_kv.tools.traces.curve import make_curve
from mini_kv.tools.traces.prompt_hashes import make_prompts
from mini_kv.tools.traces.readers.mooncake import TraceRequest

WIDTH = 420
"""Width of a drawing. Its letters are then large enough on a telephone."""
QUARTERS = (0, 0.25, 0.5, 0.75, 1)


def text(x: float, y: float, words: str, of: str = "") -> Mark:
    """Return a text of a drawing."""
    return Mark("text", words, x=x, y=y, of=of) if of else Mark("text", words, x=x, y=y)


def numbers(*values: int) -> list[str]:
    """Return the numbers as a control's labels."""
    return [f"{value:,}" for value in values]


def axis(
    name: str, ticks: Iterable[float], place: Callable[[float], float], at: float, *, up: bool = False, write: str = ","
) -> dict[str, Mark]:
    """Return the numbers of an axis, and below them (`up`: above them) what they count.

    `place`: where a number is. `at`: the height of the axis, or with `up` where it is from the left. `write`: a format.
    """
    places = {format(tick, write): place(tick) for tick in ticks}
    lines = "".join(f"M{at:g} {y:g}h-4" if up else f"M{y:g} {at:g}v4" for y in places.values())
    marks = {f"{name} ticks": Mark("path", d=lines, of="line soft")}
    for label, there in places.items():
        marks[f"{name}: {label}"] = text(at - 7, there + 4, label, "end") if up else text(there, at + 18, label, "mid")
    title = text(0, min(places.values()) - 11, name, "soft") if up else text(WIDTH, at + 35, name, "end soft")
    return marks | {name: title}


def recomputed(num_words: int = 64) -> Instrument:
    """Return the triangle of computed words: a line per step, a place per word."""
    left, top, wide, tall = 34, 26, 258 / num_words, 256 / num_words
    # Without a cache every step is a text that nothing is known of, with one all steps are one request's.
    texts = [Arrival(k, str(k), range(1000 * k, 1000 * k + k), max_tokens=1) for k in range(1, num_words + 1)]
    limits = SchedulerConfig(max_num_batched_tokens=num_words)
    without = timeline(texts, num_blocks=3 * num_words, block_size=16, limits=limits)
    kept = timeline([Arrival(1, "A", [0], max_tokens=num_words)], num_words, 16)
    computed = [
        [sum(moments[k].num_tokens for moments in without.values()) for k in range(num_words)],
        [moment.num_tokens for moment in kept["A"]],
    ]

    def draw(last: int, cached: int) -> View:
        new, old = "", ""
        for k in range(last + 1):
            before = left + wide * (k + 1 - computed[cached][k])
            new += f"M{before:g} {top + tall * (k + 0.5):g}H{left + wide * (k + 1):g}"
            old += f"M{left} {top + tall * (k + 0.5):g}H{before:g}"
        total = sum(computed[cached][: last + 1])
        marks = {
            "frame": Mark("path", d=f"M{left} {top}v256h258", of="line soft"),
            f"new {cached}": Mark("path", d=new, stroke="#0072b2", stroke_width=tall * 0.8),
            "hand": handle(left, top, 258, 256, across=0),
            "computed": text(304, 128, f"{total:,}", "big huge"),
            "times": text(304, 148, "times a word goes"),
            "through": text(304, 166, "through the model"),
        }
        ticks = (1, *range(num_words // 4, num_words + 1, num_words // 4))
        marks |= axis("step", ticks, lambda number: top + tall * (number - 0.5), left, up=True)
        marks |= axis("word", ticks, lambda number: left + wide * (number - 0.5), top + 256)
        if cached:
            marks["old"] = Mark("path", d=old, of="pale", stroke="#0072b2", stroke_width=tall * 0.8)
        return View(marks, (
            "A text of ", f"{last + 1}", " words: without a cache " if not cached else " words: with a cache ",
            f"{sum(computed[0][: last + 1]):,}" if not cached else f"{total:,}",
            " passes; the last step alone makes " if not cached else " passes; the last step makes ",
            f"{computed[cached][last]}", "." if not cached else ", and reads what is kept of the others (pale).",
        ))  # fmt: skip

    words = Control("words", numbers(*range(1, num_words + 1)), start=num_words - 1)
    cache = Control("cache", ("off", "on"), choice=True)
    return Instrument("What the model computes", (words, cache), draw, (WIDTH, 318))


def token_in_boxes() -> Instrument:
    """Return the bytes of one token: a column per layer, a line per head's key and value, as thick as its bytes."""
    full = partial(FullAttentionSpec, block_size=1, head_size=128)
    shapes: dict[str, tuple[int, Callable[..., AttentionSpec]]] = {
        "Llama 2 7B": (32, partial(full, num_kv_heads=32)),
        "Llama 2 70B": (80, partial(full, num_kv_heads=8)),
        "Llama 3 8B": (32, partial(full, num_kv_heads=8)),
        "Qwen2.5 7B": (28, partial(full, num_kv_heads=4)),
        "DeepSeek-V3": (61, partial(MLAAttentionSpec, block_size=1, num_kv_heads=1, head_size=576)),
    }

    def draw(model: int, bits: int) -> View:
        name = list(shapes)[model]
        num_layers, make = shapes[name]
        spec = make(dtype_bytes=2 - bits)
        planes = spec.num_planes
        pitch, wide = 3.5 * spec.head_size / 128, 5.1
        thick, height = 0.8 * pitch / (1 + bits), pitch * planes * spec.num_kv_heads
        token = num_layers * spec.page_size_bytes
        marks = {}
        for plane, colour in enumerate(("#0072b2", "#e69f00")[:planes]):
            rows = (226 - height + pitch * (planes * head + plane + 0.5) for head in range(spec.num_kv_heads))
            path = "".join(f"M2 {y:g}h{wide * num_layers:g}" for y in rows)
            marks[f"plane {plane}"] = Mark(
                "path", d=path, stroke=colour, stroke_width=thick, stroke_dasharray="4.2 0.9"
            )
        marks |= axis("layers", range(0, 81, 20), lambda number: 2 + wide * number, 228)
        heads = (
            f"{spec.num_kv_heads} KV heads: key and value of each"
            if planes == 2
            else "one vector, key and value at once"
        )
        marks["heads"] = text(0, 262, heads, "soft")
        return View(marks, (
            f"A token of {name} leaves ", f"{token:,}", " bytes; a text of 4,096 tokens ",
            f"{4096 * token / 2**30:.2f}", " GiB. Blue: keys, orange: values; a line is as thick as its bytes.",
        ))  # fmt: skip

    models = Control("model", list(shapes), choice=True)
    return Instrument("The KV of one token", (models, Control("bits", ("16", "8"), choice=True)), draw, (WIDTH, 266))


def rows_and_blocks(longest: int = 16, block_size: int = 4, num_slots: int = 96) -> Instrument:
    """Return two memories of the same size under the same arrivals, step by step: in rows, and in blocks.

    A row is a block as long as the longest possible text, so the same scheduler serves both memories.
    """
    lengths = ((3, 8), (5, 9), (2, 9), (6, 8), (3, 7), (4, 8), (2, 12), (5, 8), (3, 10), (4, 6), (2, 8), (3, 9))
    arrivals = [
        Arrival(1 + index, name, range(100 * index, 100 * index + prompt), max_tokens=answer)
        for index, (name, (prompt, answer)) in enumerate(zip("ABCDEFGHIJKL", lengths, strict=True))
    ]
    sizes = (longest, block_size)
    told = [_held_after_each_step(arrivals, num_slots, size) for size in sizes]
    num_steps = max(map(len, told))
    for steps in told:
        steps += [steps[-1]] * (num_steps - len(steps))

    def draw(step: int) -> View:
        marks = {
            "rows": text(0, 14, "rows of 16", "soft"),
            "blocks": text(222, 14, f"blocks of {block_size}", "soft"),
        }
        said = []
        for size, steps in zip(sizes, told, strict=True):
            held, waiting, ended = steps[step]
            per_line = longest // size
            for block in range(num_slots // size):
                x = 222 * (size == block_size) + 12 * size * (block % per_line)
                y = 22 + 30 * (block // per_line)
                name, used = held.get(block + 1, ("", 0))
                box = {"x": x, "y": y, "width": 12 * size - 2, "height": 26}
                marks[f"{size}.{block} box"] = Mark("rect", of="line" if name else "dash soft", **box)
                marks[f"{size}.{block} used"] = Mark("rect", of="pale", **(box | {"width": max(0, 12 * used - 2)}))
                marks[f"{size}.{block} name"] = text(x + 4, y + 17, name)
            tokens = sum(used for _, used in held.values())
            said.append((len({name for name, _ in held.values()}), tokens, size * len(held), waiting, ended))
        says = [f"Step {step + 1}. "]
        for what, (running, tokens, taken, waiting, ended) in zip(("Rows: ", " Blocks: "), said, strict=True):
            says += [
                what,
                f"{running} run and {waiting} wait, {tokens} of {taken} slots taken hold a token; {ended} done.",
            ]
        return View(marks, says)

    control = Control("step", numbers(*range(1, num_steps + 1)), start=8)
    return Instrument("One memory of 96 slots, twice", (control,), draw, (WIDTH, 206))


Held = tuple[dict[int, tuple[str, int]], int, int]
"""Request and tokens per block, number of waiting requests, number of ended requests."""


def _held_after_each_step(arrivals: Sequence[Arrival], num_slots: int, block_size: int) -> list[Held]:
    """Serve these requests in a memory of that many slots and return its content after each step."""
    kv = KVCacheManager.for_full_attention(1 + num_slots // block_size, block_size, enable_caching=False)
    scheduler = Scheduler(kv)
    told: list[Held] = []
    while len(told) < len(arrivals) or scheduler.has_unfinished_requests:
        if len(told) < len(arrivals):
            arrival = arrivals[len(told)]
            scheduler.add_request(kv.new_request(arrival.request_id, arrival.token_ids), max_tokens=arrival.max_tokens)
        held: dict[int, tuple[str, int]] = {}

        def note(output: SchedulerOutput, held: dict[int, tuple[str, int]] = held) -> dict[str, list[int]]:
            for request in scheduler.running:
                computed = request.num_computed_tokens + output.num_scheduled_tokens.get(request.request_id, 0)
                for place, block in enumerate(kv.get_block_ids(request.request_id)[0]):
                    held[block] = (request.request_id, min(block_size, computed - place * block_size))
            return sample_ready(scheduler, output, lambda request: FIRST_OUTPUT_TOKEN + request.num_tokens)

        run_step(scheduler, note)
        num_come = min(len(told) + 1, len(arrivals))
        ended = num_come - len(scheduler.waiting) - len(scheduler.running)
        told.append((held, len(scheduler.waiting), ended))
    return told


def changed_token(num_blocks: int = 6, block_size: int = 4) -> Instrument:
    """Return a prompt as blocks with their hashes. The reader changes one token."""
    kv = KVCacheManager.for_full_attention(num_blocks + 1, block_size)
    num_tokens = num_blocks * block_size

    def names(changed: int) -> list[str]:
        tokens = [99 if place == changed else place for place in range(num_tokens)]
        return [name.hex()[:4] for name in kv.new_request("A", tokens).block_hashes]

    first = names(-1)

    def draw(position: int) -> View:
        changed, marks = position - 1, {}
        for index, (one, other) in enumerate(zip(first, names(changed), strict=True)):
            x = 70 * index
            for row, (name, y) in enumerate(((one, 22), (other, 118))):
                marks[f"{row}.{index} box"] = Mark("rect", x=x, y=y, width=69, height=66, of="line")
                of = "orange" if name == one else "pink"
                marks[f"{row}.{index} tag"] = Mark("rect", x=x + 6, y=y + 41, width=57, height=20, of=of)
                marks[f"{row}.{index} name"] = text(x + 34, y + 56, name, "mid dark")
                tokens = [99 if row and place == changed else place for place in range(index * 4, index * 4 + 4)]
                for half in range(2):
                    words = ", ".join(map(str, tokens[2 * half : 2 * half + 2]))
                    marks[f"{row}.{index} tokens {half}"] = text(x + 34, y + 17 + 17 * half, words, "mid")
        marks["first"] = text(0, 14, "the prompt, in blocks of 4 tokens, and their hashes", "soft")
        marks["second"] = text(0, 110, "the prompt with one token changed", "soft")
        same = sum(one == other for one, other in zip(first, names(changed), strict=True))
        what = f"Token {changed} is another: " if changed >= 0 else "No token is changed: "
        return View(marks, (
            what, f"{same} of {num_blocks} block hashes are unchanged",
            ", and none after a changed one." if changed >= 0 else ".",
        ))  # fmt: skip

    control = Control("changed token", ["none", *numbers(*range(num_tokens))], start=10)
    return Instrument("One token, and every block hash after it", (control,), draw, (WIDTH, 186))


def forgery() -> Instrument:
    """Return four tokens, two of them movable, with a polynomial of 31 as hash and with the engine's hash."""
    kv = KVCacheManager.for_full_attention(2, 4)

    def polynomial(tokens: Sequence[int]) -> int:
        return sum(token * 31**power for power, token in enumerate(tokens))

    def draw(more: int, less: int) -> View:
        ours, theirs = (100, 7, 5, 9), (100 + more, 7 - less, 5, 9)
        marks = {}
        for row, (whose, tokens) in enumerate((("a prompt in use", ours), ("yours", theirs))):
            y = 14 + 56 * row
            sha = kv.new_request("A", tokens).block_hashes[0].hex()[:6]
            marks[f"{row} whose"] = text(0, y, f"{whose}:  {', '.join(map(str, tokens))}", "big")
            alike = polynomial(tokens) == polynomial(ours)
            hashes = {"sum": (f"{polynomial(tokens):,}", alike), "sha": (sha, tokens == ours)}
            for x, (kind, (name, same)) in zip((0, 215), hashes.items(), strict=True):
                of = "orange" if same else "pink"
                marks[f"{row} {kind} tag"] = Mark("rect", x=x, y=y + 7, width=205, height=22, of=of)
                marks[f"{row} {kind}"] = text(x + 102, y + 23, name, "mid dark")
        marks["polynomial"] = text(102, 118, "powers of 31", "mid soft")
        marks["digest"] = text(317, 118, "SHA-256, six digits", "mid soft")
        if theirs == ours:
            said = "The same tokens, the same hashes."
        elif polynomial(ours) == polynomial(theirs):
            said = "Other tokens, and one hash under the polynomial: your lookup finds the other prompt's KV."
        else:
            said = "Other tokens, other hashes. Find a pair that has the polynomial hash of the prompt in use."
        return View(marks, (said,))

    first = Control("add to the first", [f"+{more}" for more in range(63)])
    second = Control("take from the second", [f"-{less}" for less in range(3)])
    return Instrument("A hash forged by hand", (first, second), draw, (WIDTH, 126))


def hits_of_a_pool(trace: Sequence[TraceRequest]) -> Instrument:
    """Return a chart of a trace's hit rate over the size of the pool, with the bound that no policy exceeds."""
    prompts = make_prompts(trace, trace[0].block_size)
    curve = make_curve(prompts, trace[0].block_size)
    sizes = range(40, 310, 10)
    blocks = {size: belady_hit_blocks(prompts, trace[0].block_size, size) for size in sizes}
    ideal = {size: number * trace[0].block_size / curve.prompt_tokens for size, number in blocks.items()}
    rates = {"the queue": {size: curve.at(size).hit_rate for size in sizes}, "belady": ideal}

    def draw(at: int) -> View:
        size, found, most = sizes[at], rates["the queue"][sizes[at]], ideal[sizes[at]]
        marks = _plot(rates, "belady", "the queue", size, range(50, 301, 50))
        return View(marks | {"hand": handle(*_PLOT, across=0)}, (
            "A pool of ", f"{size}", " blocks: the engine's queue finds ", f"{found:.1%}", " (blue), and ",
            f"{most:.1%}", " is the most that any policy could find (dashed), ", f"{100 * (most - found):.1f}",
            " points more.",
        ))  # fmt: skip

    control = Control("blocks", numbers(*sizes), start=sizes.index(100))
    return Instrument("The hits of a pool, and the upper bound", (control,), draw, (WIDTH, 254))


_PLOT = (44, 26, 356, 190)
"""Place and size of a chart of hit rates."""

Rates = Mapping[str, Mapping[int, float]]
"""By policy and blocks of the pool, hit tokens as a share of the prompt tokens. All policies have the same sizes."""


def _plot(rates: Rates, ceiling: str, policy: str, size: int, ticks: Sequence[int], most: float = 1) -> dict[str, Mark]:
    """Return a chart of a line per policy over the pool's size, with one policy and one size highlighted."""
    left, top, width, height = _PLOT
    sizes, paths = list(rates[ceiling]), {}

    def across(size: float) -> float:
        return left + width * sizes.index(int(size)) / (len(sizes) - 1)

    def above(share: float) -> float:
        return top + height * (1 - share / most)

    marks = {"frame": Mark("path", d=f"M{left} {top}v{height}h{width}", of="line soft")}
    for name, line in rates.items():
        paths[name] = "M" + "L".join(f"{across(x):.0f} {above(y):.0f}" for x, y in line.items())
        of, wide, dash = ("line", 1, "6 3") if name == ceiling else ("line soft", 0.6, "none")
        marks[f"{name} line"] = Mark("path", d=paths[name], of=of, stroke_width=wide, stroke_dasharray=dash)
    marks["chosen"] = Mark("path", d=paths[policy], fill="none", stroke="#0072b2", stroke_width=3)
    x = across(size)
    marks["here"] = Mark("path", d=f"M{x:.0f} {top}v{height}", of="line soft")
    marks["other"] = Mark("circle", cx=x, cy=above(rates[ceiling][size]), r=4, of="orange")
    marks["dot"] = Mark("circle", cx=x, cy=above(rates[policy][size]), r=5, of="blue")
    marks |= axis("blocks of the pool", ticks, across, top + height)
    return marks | axis("hit rate", (most * share for share in QUARTERS), above, left, up=True, write=".0%")


def policies_by_size(
    hit_rates: Rates,
    ceiling: str = "belady",
    *,
    most: float = 0.4,
    start: int = 5000,
    title: str = "Eight policies, one hour of traffic",
) -> Instrument:
    """Return a chart over the pool's size: a line per eviction policy, one of them highlighted.

    The first policy is the one with which the others are compared. `ceiling` names the policy that is the upper bound,
    `most` the highest share drawn, `start` the size shown first.
    """
    policies = [policy for policy in hit_rates if policy != ceiling]
    sizes = list(hit_rates[ceiling])

    def draw(chosen: int, at: int) -> View:
        policy, size = policies[chosen], sizes[at]
        found, best, compared = (hit_rates[name][size] for name in (policy, ceiling, policies[0]))
        points = 100 * (found - compared)
        beside = "the policy to beat." if chosen == 0 else f"{points:+.1f} points compared with {policies[0]}."
        marks = _plot(hit_rates, ceiling, policy, size, sizes, most)
        return View(marks | {"hand": handle(*_PLOT, across=1)}, (
            f"{policy} in ", f"{size:,}", " blocks (blue): ", f"{found:.1%}", " of the tokens are found, ", beside,
            " No policy could find more than ", f"{best:.1%}", " (dashed).",
        ))  # fmt: skip

    controls = (
        Control("policy", policies, start=policies.index("seen-twice"), choice=True),
        Control("blocks", numbers(*sizes), start=sizes.index(start)),
    )
    return Instrument(title, controls, draw, (WIDTH, 254))


def sliding_window(num_tokens: int = 48, block_size: int = 4) -> Instrument:
    """Return a row of tokens with a window on it, and below it the block tables of two kinds of layers."""
    windows = (8, 12, 16)
    side = 416 / num_tokens
    held = {window: _tables_after_each_token(num_tokens, block_size, window) for window in windows}

    def draw(last: int, width: int) -> View:
        window, now = windows[width], last + 1
        first = max(0, now - window)
        tables = held[window][last]
        marks = {"strip": text(0, 14, "the newest token reads those in its window (orange)", "soft")}
        marks |= axis("token", range(0, num_tokens, 8), lambda token: side * (token + 0.5), 40)
        for token in range(num_tokens):
            of = "line soft" if token >= now else "orange" if token >= first else "pale"
            marks[f"token {token}"] = Mark("rect", x=side * token, y=20, width=side - 1, height=18, of=of)
        for row, (kind, blocks) in enumerate(zip(("full attention", f"window {window}"), tables, strict=True)):
            y = 96 + 58 * row
            name = f"{kind}: {sum(map(bool, blocks))} blocks"
            marks[f"{row} name"] = text(0, y - 7, name, "soft")
            for place, block_id in enumerate(blocks):
                x, wide = side * block_size * place, side * block_size - 2
                of = "pale" if block_id else "dash"
                marks[f"{row} {place}"] = Mark("rect", x=x, y=y, width=wide, height=26, of=of)
                words = str(block_id) if block_id else ""
                marks[f"{row} {place} id"] = text(x + wide / 2, y + 18, words, "mid")
        marks["hand"] = handle(0, 16, 416, 26, across=0)
        full, kept = (sum(map(bool, blocks)) for blocks in tables)
        return View(marks, (
            "Token ", f"{last}", " is computed. Full attention holds ", f"{full}", " blocks, a window of ", f"{window}",
            " holds ", f"{kept}", ". Of its table ", f"{full - kept}", " fell out and are free for others (dashed).",
        ))  # fmt: skip

    controls = (
        Control("tokens", numbers(*range(1, num_tokens + 1)), start=29),
        Control("window", numbers(*windows), start=1, choice=True),
    )
    return Instrument("What a window holds", controls, draw, (WIDTH, 184))


def _tables_after_each_token(num_tokens: int, block_size: int, window: int) -> list[tuple[tuple[int, ...], ...]]:
    """Compute a text token by token and return the tables of full attention and of a window, by block id, 0 for null.

    They are read when the next token has its slot. The blocks outside this token's window are freed by then.
    """
    specs = (
        FullAttentionSpec(block_size),
        SlidingWindowSpec(block_size, sliding_window=window),
    )
    groups = tuple(KVCacheGroupSpec((str(index),), spec) for index, spec in enumerate(specs))
    kv = KVCacheManager(KVCacheConfig(2 + 2 * num_tokens // block_size, groups))
    request = kv.new_request("A", range(num_tokens))
    result = []
    for _ in range(num_tokens):
        kv.allocate_slots(request, 1)
        result.append(tuple(map(tuple, kv.get_block_ids("A"))))
        request.num_computed_tokens += 1
    return result


def holes(num_blocks: int = 10, window: int = 48) -> Instrument:
    """Return a prompt in two kinds of layers. The reader removes a block from each and sees the common hit."""
    num_tokens = 16 * num_blocks + 1
    kinds = ("full", f"window {window}")

    def hit(missing: dict[str, int]) -> int:
        groups = list(missing)
        gone = {group: [missing[name]] for group, name in enumerate(groups) if missing[name] >= 0}
        return find_with_holes(groups, num_tokens, gone).num_tokens

    def place(token: float) -> float:
        return 8 + 2.5 * token

    def draw(*lost: int) -> View:
        missing = {kind: at - 1 for kind, at in zip(kinds, lost, strict=True)}
        marks = axis("token", range(0, num_tokens, 32), place, 134)
        for row, kind in enumerate(kinds):
            y = 26 + 70 * row
            alone = hit({kind: missing[kind]})
            marks[f"{kind} name"] = text(0, y - 8, f"{kind}: alone it goes on from token {alone}", "soft")
            for block in range(num_blocks):
                of = "dash" if block == missing[kind] else "pale"
                marks[f"{kind} {block}"] = Mark("rect", x=40 * block + 10, y=y, width=36, height=26, of=of)
            marks[f"{kind} alone"] = Mark("path", d=f"M{place(alone):g} {y - 4}v34", of="line soft")
        both = hit(missing)
        x = place(both)
        marks["both"] = Mark("path", d=f"M{x:g} 20v38M{x:g} 90v38", stroke="#e69f00", stroke_width=5)
        return View(marks, (
            "Each layer goes on from one place: both kinds together from token ", f"{both}",
            " (orange). A window needs only the last three blocks before that place; full attention needs all.",
        ))  # fmt: skip

    labels = ["none", *numbers(*range(num_blocks))]
    controls = (Control("missing in full", labels, start=9), Control(f"missing in {kinds[1]}", labels, start=6))
    return Instrument("Where both kinds can go on", controls, draw, (WIDTH, 172))
