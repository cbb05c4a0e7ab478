"""A second computation of the answers of `mini-kv questions`: a question's calls, repeated on lists and dicts.

It shares no code with the learner's parts or the engine: `NaiveCache` and `NaiveScheduler` have no hashes and counts,
and `ReferenceCache` is the tests' slow model of windows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from mini_kv.course.labkit.naive import NaiveCache, NaiveScheduler, NaiveTables
from mini_kv.course.questions import of_cache, of_policy, of_pool, of_steps, of_windows
from mini_kv.course.questions.question import BLOCK_SIZE, Call, Question
from mini_kv.tests.reference import Group, Namespace, ReferenceCache, ReferenceRequest


def naive_answer(question: Question) -> str:
    """Return the answer by the naive models."""
    answer = ANSWERS[question.lab_id](question)
    if isinstance(answer, int):
        return str(answer)
    return " ".join(map(str, answer)) or "none"


def of_queue(question: Question) -> Sequence[int]:
    start, *calls = question.calls
    queue = list(start.tokens)
    for call in calls:
        if call.verb == "remove":
            queue.remove(call.tokens[0])
        elif call.verb == "popleft_n":
            del queue[: call.number]
        elif call.verb == "prepend_n":
            queue[:0] = call.tokens
        else:
            queue += call.tokens
    return {"next block": queue[:1], "next three": queue[:3], "queue order": queue}[question.kind]


def of_pool_calls(question: Question) -> int | Sequence[int]:
    pool: NaiveTables[str] = NaiveTables(of_pool.NUM_BLOCKS)
    for call in question.calls:
        if call.verb == "end":
            pool.leave(call.name)
        elif call.verb == "take":
            pool.tables[call.name] = pool.take(call.number)
        else:
            pool.tables[call.name] = pool.tables[chr(call.tokens[0])][: call.number] + pool.take(call.other)
    if question.kind == "reference count":
        return sum(int(question.about) in table for table in pool.tables.values())
    return pool.free_queue if question.kind == "free queue" else len(pool.free_queue)


def of_hash_calls(question: Question) -> int:
    first, *others = question.calls
    if question.kind == "hash calls":
        num_prompt, num_all = len(first.tokens), len(first.tokens) + len(others[0].tokens)
        grown = num_all // BLOCK_SIZE - num_prompt // BLOCK_SIZE
        return grown if others[0].number else num_prompt // BLOCK_SIZE + 1  # the root
    rows = [[_content(call, end) for end in _block_ends(call)] for call in question.calls]
    if question.kind == "different hashes":
        return len({content for row in rows for content in row})
    return sum(one == other for one, other in zip(*rows, strict=True))


def _block_ends(call: Call) -> range:
    return range(BLOCK_SIZE, len(call.tokens) + 1, BLOCK_SIZE)


def _content(call: Call, end: int) -> tuple[tuple[int, ...], bool]:
    """Return all that decides the KV of a block that ends here: tokens, and whether an image begins before."""
    return call.tokens[:end], call.other > 0 and call.number < end


class _CacheReplay:
    """The calls of a question on `NaiveCache`, and what the last one did."""

    def __init__(self, question: Question) -> None:
        self.cache = NaiveCache(of_cache.NUM_BLOCKS, BLOCK_SIZE)
        self.tokens: dict[str, list[int]] = {}
        for call in question.calls:
            self.hit = self.cache.hit(call.tokens) if call.verb in ("come", "need") else []
            self.revived = [block for block in self.hit if block in self.cache.free_queue]
            self.num_needed = self.cache.num_needed(call.name, len(call.tokens), self.hit)
            before = set(self.cache.cached)
            self.new = self.make(call) or []
            self.evicted = [block for block in self.new if block in before]
        self.name = question.calls[-1].name

    def make(self, call: Call) -> list[int] | None:
        if call.verb == "end":
            self.cache.leave(call.name)
        elif call.verb == "come":
            self.tokens[call.name] = list(call.tokens)
            return self.cache.allocate(call.name, call.tokens, self.hit)
        elif call.verb == "grow":
            tokens = self.tokens[call.name]
            tokens += call.tokens
            return self.cache.allocate(call.name, tokens, num_slots=len(tokens) + call.number)
        return None

    def answer(self, kind: str) -> int | Sequence[int]:
        if kind == "free queue":
            return self.cache.free_queue
        if kind == "blocks needed":
            return self.num_needed
        if kind in ("hit", "cached tokens"):
            return len(self.hit) * BLOCK_SIZE
        table = self.cache.tables[self.name]
        counts = [sum(block in each for each in self.cache.tables.values()) for block in table]
        num_cached = sum(block in self.cache.cached for block in table)
        answers: dict[str, int | Sequence[int]] = {
            "block table": table,
            "reference counts": counts,
            "new blocks": self.new,
            "cached blocks": num_cached,
            "evicted": self.evicted,
            "revived": self.revived,
        }
        return answers[kind]


def of_cache_calls(question: Question) -> int | Sequence[int]:
    return _CacheReplay(question).answer(question.kind)


def of_window_calls(question: Question) -> int | Sequence[int]:
    if question.kind == "layers per group":
        return _group_sizes(question.calls[0].number, question.calls[0].other)
    groups = [Group("full", BLOCK_SIZE), Group("window", BLOCK_SIZE, of_windows.WINDOW)]
    cache = ReferenceCache(of_windows.NUM_BLOCKS, groups)
    requests: dict[str, ReferenceRequest] = {}
    num_hit, before, after = 0, [], []
    for call in question.calls:
        request = requests.setdefault(call.name, ReferenceRequest(call.name, Namespace(), []))
        before = list(cache.tables.get(call.name, [[], []])[1])
        if call.verb == "end":
            cache.release(request)
            continue
        request.append(call.tokens)
        hit, num_hit = cache.lookup(request) if call.verb == "come" else ([[], []], 0)
        num_new = len(request.token_ids) - request.num_computed - num_hit
        if cache.allocate(request, hit, num_hit, num_new, call.number) is not None:
            request.num_computed = len(request.token_ids)
            after = cache.tables[call.name][1]
    if question.kind == "common hit":
        return num_hit
    gone = [old for old, new in zip(before, after, strict=False) if old != new]
    return gone if question.kind == "blocks left of the window" else after


def _group_sizes(num_full: int, num_window: int) -> list[int]:
    """Deal the layers of each kind out to groups: one layer at a time, to each group in turn."""
    small, large = sorted((num_full, num_window))
    size = large if large < 1.5 * small else small
    sizes = []
    for num_layers in (num_full, num_window):
        dealt = [0] * ceil(num_layers / size)
        for layer in range(num_layers):
            dealt[layer % len(dealt)] += 1
        sizes += dealt
    return sizes


def of_step_calls(question: Question) -> int | Sequence[str]:
    scheduler = NaiveScheduler(
        of_steps.NUM_BLOCKS,
        BLOCK_SIZE,
        max_num_batched_tokens=of_steps.BUDGET,
        max_num_seqs=of_steps.MAX_SEQS,
        reserved_blocks=0,
    )
    step: dict[str, int] = {}
    preempted: list[str] = []
    for call in question.calls:
        if call.verb == "arrive":
            scheduler.arrive(call.name, call.tokens, call.number, -1)
        else:
            scheduler.finish(step, of_steps.next_token)
            step, preempted = scheduler.schedule()
    answers: dict[str, int | Sequence[str]] = {
        "preempted": preempted,
        "waiting order": scheduler.waiting,
        "tokens of a request": step.get(question.about, 0),
        "tokens of the step": sum(step.values()),
    }
    return answers[question.kind]


@dataclass(eq=False)
class _Letter:
    """A cached block of the policy's run: the letters up to its own, and what LFU knows of it."""

    prefix: str
    uses: int
    worth: int
    entered: int = 0


def of_policy_calls(question: Question) -> int | Sequence[str]:
    """LFU with ageing, as lab-13's docstring defines it. Two blocks may have one prefix; the older one is found."""
    blocks: list[_Letter] = []
    age = num_entered = 0
    found, evicted = list[_Letter](), list[str]()
    for call in question.calls:
        prefixes = [call.name[:end] for end in range(1, len(call.name) + 1)]
        found, evicted = _hit(blocks, prefixes), []
        for block in found:
            block.uses += 1
            block.worth = age + block.uses
        new = prefixes[len(found) :]
        while len(blocks) + len(new) > of_policy.NUM_LETTERS:
            victim = min(
                (block for block in blocks if block not in found), key=lambda block: (block.worth, block.entered)
            )
            blocks.remove(victim)
            age = victim.worth
            evicted.append(victim.prefix[-1])
        used = found + [_Letter(prefix, 1, age + 1) for prefix in new]
        blocks += used[len(found) :]
        for block in reversed(used):
            num_entered += 1
            block.entered = num_entered
    return len(found) if question.kind == "found letters" else evicted


def _hit(blocks: Sequence[_Letter], prefixes: Sequence[str]) -> list[_Letter]:
    """Return the cached blocks of the first prefixes, until one is not cached."""
    found = []
    for prefix in prefixes:
        same = [block for block in blocks if block.prefix == prefix]
        if not same:
            break
        found.append(same[0])
    return found


ANSWERS: dict[str, Callable[[Question], int | Sequence[int] | Sequence[str]]] = {
    "lab-02": of_queue,
    "lab-03": of_pool_calls,
    "lab-04": of_hash_calls,
    "lab-05": of_cache_calls,
    "lab-06": of_cache_calls,
    "lab-07": of_cache_calls,
    "lab-11": of_step_calls,
    "lab-12": of_window_calls,
    "lab-13": of_policy_calls,
}
