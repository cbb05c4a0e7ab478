"""Attention by WebGPU: its kernels against plain attention, and the page "Play" with and without a GPU."""

import math
import random
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from mini_kv.tests.browser.conftest import ARGS, chromium_path, silent_pages
from mini_kv.tests.browser.test_kv_planes import records  # noqa: F401
from mini_kv.tests.browser.test_kv_planes import site as planes_site  # noqa: F401
from mini_kv.tests.browser.test_kv_play import box, counters, press, run_to_the_end, status, text_of, wait_for_step
from mini_kv.tests.browser.test_kv_play import site as play_site  # noqa: F401

ASSETS = Path(__file__).parents[3] / "book" / "mini_kv_book" / "assets"
LEVER = "Attention computed by"
WITH_GPU = ("--enable-unsafe-webgpu", "--enable-unsafe-swiftshader")
TOLERANCE = 2e-6
"""Of float32 sums whose terms are between -1 and 1."""

pytestmark = pytest.mark.browser

ATTEND = """async ([what, shape, { key, value, slots, query, positions, requests, blockTables, tableStride }]) => {
  const { KV } = await import("./kv_runner.js");
  const { GpuKV, openGpu } = await import("./kv_gpu.js");
  const floats = (numbers) => Float32Array.from(numbers);
  const ints = (numbers) => Uint32Array.from(numbers);
  shape.windows = [shape.window ?? Infinity]; // one layer
  const kv = what === "KV" ? new KV(shape) : new GpuKV(await openGpu(), shape);
  const numSlots = shape.numBlocks * shape.blockSize;
  const unwritten = floats(Array(numSlots * shape.numKvHeads * shape.headSize).fill(NaN));
  kv.write(0, unwritten, unwritten, ints(Array(numSlots).keys()));
  kv.write(0, floats(key), floats(value), ints(slots));
  const step = { positions: ints(positions), requests: ints(requests), blockTables: ints(blockTables), tableStride };
  return [...(await kv.attend(0, floats(query), step))];
}"""


@contextmanager
def chromium(browser, *more):
    """Another Chromium, with more arguments."""
    started = browser.browser_type.launch(executable_path=chromium_path(), args=[*ARGS, *more])
    yield started
    started.close()


@pytest.fixture(scope="module")
def gpu_browser(browser):
    """Chromium with a GPU: SwiftShader, which computes on the CPU, where there is none."""
    with chromium(browser, *WITH_GPU) as started:
        yield started


@pytest.fixture
def open_gpu_page(gpu_browser):
    """`open_page` of the browser with a GPU."""

    def opened(url):
        page = opener(url)
        skip_without_gpu(page)
        return page

    with silent_pages(gpu_browser) as opener:
        yield opened


def skip_without_gpu(page):
    if not page.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
        pytest.skip("attention by WebGPU: this Chromium has no adapter for it, not even SwiftShader")


@pytest.fixture
def play_url(play_site, serve):  # noqa: F811
    """The address of the page "Play"."""
    return f"{serve(play_site)}/index.html"


@pytest.fixture
def bare_url(serve, tmp_path):
    """The address of an empty page beside the scripts."""
    for name in ("kv_runner.js", "kv_gpu.js", "kv_gpu.wgsl"):
        shutil.copy(ASSETS / name, tmp_path / name)
    (tmp_path / "index.html").write_text('<link rel="icon" href="data:,">', encoding="utf-8")
    return f"{serve(tmp_path)}/index.html"


class Step:
    """Random requests, each with new tokens after its past ones, and blocks in any order."""

    def __init__(self, shape, lengths):
        self.shape = shape
        self.chance = random.Random(1)
        self.free = list(range(1, shape["numBlocks"]))
        self.chance.shuffle(self.free)
        self.tables: list[list[int]] = []
        self.slots: list[int] = []
        self.positions: list[int] = []
        self.requests: list[int] = []
        self.key: dict[tuple[int, int], list[float]] = {}  # of (request, position): those that a new token sees
        self.value: dict[tuple[int, int], list[float]] = {}
        for request, (num_past, num_new) in enumerate(lengths):
            self.add(request, num_past, num_past + num_new)
        self.query = [self.random_row(shape["numHeads"]) for _ in self.positions]

    def add(self, request, begin, end):
        size, first = self.shape["blockSize"], self.first_visible(begin)
        ends = range(size, end + size, size)
        self.tables.append([self.free.pop() if block_end > first else 0 for block_end in ends])  # 0: the null block
        for position in range(first, end):
            self.key[request, position] = self.random_row(self.shape["numKvHeads"])
            self.value[request, position] = self.random_row(self.shape["numKvHeads"])
            self.slots.append(self.tables[request][position // size] * size + position % size)
        self.positions += range(begin, end)
        self.requests += [request] * (end - begin)

    def random_row(self, num_heads):
        return [self.chance.uniform(-1, 1) for _ in range(num_heads * self.shape["headSize"])]

    def first_visible(self, position):
        return max(0, position + 1 - self.shape["window"]) if "window" in self.shape else 0

    def data(self):
        """Return what the kernels get."""
        stride = max(map(len, self.tables))
        return {
            "key": flat(self.key.values()),
            "value": flat(self.value.values()),
            "slots": self.slots,
            "query": flat(self.query),
            "positions": self.positions,
            "requests": self.requests,
            "blockTables": flat(table + [0] * (stride - len(table)) for table in self.tables),
            "tableStride": stride,
        }

    def expected(self):
        """Return attention without blocks, one query and head at a time."""
        size, group = self.shape["headSize"], self.shape["numHeads"] // self.shape["numKvHeads"]
        result = []
        for query, position, request in zip(self.query, self.positions, self.requests, strict=True):
            seen = [(request, each) for each in range(self.first_visible(position), position + 1)]
            for head in range(self.shape["numHeads"]):
                kv = slice(head // group * size, (head // group + 1) * size)
                keys, values = [self.key[each][kv] for each in seen], [self.value[each][kv] for each in seen]
                result += attend(query[head * size : (head + 1) * size], keys, values)
        return result


def attend(query, keys, values):
    weights = [math.exp(dot(query, key) / math.sqrt(len(query))) for key in keys]
    return [dot(weights, column) / sum(weights) for column in zip(*values, strict=True)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def flat(rows):
    return [number for row in rows for number in row]


TINY = {"numBlocks": 60, "blockSize": 8, "numHeads": 4, "numKvHeads": 2, "headSize": 32}


STEPS = {
    "one token": (TINY, [(0, 1)]),
    "decode": (TINY, [(70, 1), (8, 1), (7, 1), (0, 1)]),
    "prompts and a decode": (TINY, [(0, 33), (40, 9), (3, 1)]),
    "blocks of 1": (TINY | {"blockSize": 1}, [(20, 3), (0, 12)]),
    "blocks of 16": (TINY | {"blockSize": 16}, [(20, 30), (99, 1)]),
    "a KV head per head": (TINY | {"numHeads": 6, "numKvHeads": 6, "headSize": 10}, [(25, 4), (10, 1)]),
    "one KV head": (TINY | {"numHeads": 8, "numKvHeads": 1, "headSize": 64}, [(25, 4), (10, 1)]),
    "a window": (TINY | {"window": 5}, [(0, 13), (40, 1), (38, 4)]),
    "a window of more than a tile": (TINY | {"window": 32, "blockSize": 4}, [(0, 50), (90, 1)]),
}


@pytest.mark.parametrize("what", ["KV", "GpuKV"])
@pytest.mark.parametrize("name", STEPS)
def test_attention_reads_the_slots_that_were_written_and_no_others(what, name, open_gpu_page, bare_url):
    """All other slots hold NaN: those of the null block, of other blocks, before a window and after the end."""
    shape, lengths = STEPS[name]
    step = Step(shape, lengths)
    page = open_gpu_page(bare_url)
    assert page.evaluate(ATTEND, [what, shape, step.data()]) == pytest.approx(step.expected(), abs=TOLERANCE)


def lever(page):
    return page.get_by_label(LEVER, exact=True)


def texts(page):
    return [text_of(page, name) for name in "ABC"]


def write_two_texts(page):
    box(page, "A").locator("textarea").fill("The cache keeps keys of")
    box(page, "B").locator("textarea").fill("A block is free when no request holds it, and")


@pytest.mark.parametrize("address", ["num_blocks=11", "num_blocks=24&model=tiny_windows"])
def test_a_gpu_writes_the_words_of_javascript_in_a_pool_that_preempts(address, open_gpu_page, play_url):
    page = open_gpu_page(f"{play_url}#{address}&max_tokens=48&done=[]")
    written = []
    for computed_by in ("javascript", "webgpu"):
        lever(page).select_option(computed_by)
        write_two_texts(page)
        run_to_the_end(page)
        assert int(counters(page)["preempted"]) > 0
        written.append(texts(page))
    assert lever(page).input_value() == "webgpu"
    assert written[0] == written[1]


def test_a_step_back_is_possible_with_a_gpu(open_gpu_page, play_url):
    page = open_gpu_page(play_url)
    run_to_the_end(page)
    before = texts(page)
    press(page, "From the start")
    lever(page).select_option("webgpu")
    for number in (1, 2, 3):
        press(page, "One step")
        wait_for_step(page, number)
    press(page, "Undo step")
    wait_for_step(page, 2)
    run_to_the_end(page)
    assert texts(page) == before


FAILED = "WebGPU failed, so JavaScript computes from here on. The browser says: "


def test_a_gpu_that_fails_is_left_with_a_sentence_and_the_words_are_the_same(browser, play_url):
    with chromium(browser, *WITH_GPU) as own, silent_pages(own) as opener:  # the crash is one of the whole browser
        page = opener(play_url)
        skip_without_gpu(page)
        run_to_the_end(page)
        before = texts(page)
        lever(page).select_option("webgpu")
        press(page, "One step")
        wait_for_step(page, 1)
        own.new_browser_cdp_session().send("Browser.crashGpuProcess")
        press(page, "One step")
        wait_for_step(page, 2)
        assert status(page).startswith(FAILED)
        assert lever(page).input_value() == "javascript"
        run_to_the_end(page)
        assert texts(page) == before


def test_kernels_that_do_not_compile_are_left_with_a_sentence(open_gpu_page, play_site, serve, tmp_path):  # noqa: F811
    folder = Path(shutil.copytree(play_site, tmp_path / "site"))
    (folder / "assets" / "kv_gpu.wgsl").write_text("fn attend() { a language of next year }", encoding="utf-8")
    page = open_gpu_page(f"{serve(folder)}/index.html")
    lever(page).select_option("webgpu")
    press(page, "One step")
    wait_for_step(page, 1)
    assert status(page).startswith(FAILED)


def test_without_a_gpu_there_is_no_lever_and_the_page_works(browser, play_url):
    with chromium(browser, "--disable-blink-features=WebGPU") as without, silent_pages(without) as opener:
        page = opener(play_url)
        run_to_the_end(page)
        assert not lever(page).is_visible()
        assert texts(page)[0].startswith("You help people in a small garden.")


def test_recorded_plans_get_the_tokens_of_pytorch(planes_site, records, serve, open_gpu_page):  # noqa: F811
    """The element of the chapter "Control plane, data plane" executes the same plans with attention on the GPU."""
    page = open_gpu_page(f"{serve(planes_site)}/index.html")
    page.get_by_label(LEVER, exact=True).select_option("webgpu")
    press(page, "Run all steps")
    num_steps = len(records["index"]["steps"])
    page.locator("kv-planes .status", has_text=f"{num_steps} of {num_steps} steps").wait_for(timeout=30_000)
    num_tokens = sum(len(step["tokens"]) for step in records["index"]["steps"])
    assert f"{num_tokens} of {num_tokens} tokens equal." in page.locator("kv-planes .status").inner_text()
