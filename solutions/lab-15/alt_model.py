"""lab-15, another way: a small model of a cache says what each lookup, table and count must be, over fixed stories."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mini_kv.core.request import LoRARequest, Request
from mini_kv.course.given.manager_under_test import ManagerUnderTest

MakeManager = Callable[[int, int], ManagerUnderTest]
SIZE = 2
"""Tokens per block."""


@dataclass
class Story:
    """A manager, the requests that run, and the expected content of each block id in use."""

    make_manager: MakeManager
    num_usable: int
    running: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kv = self.make_manager(self.num_usable + 1, SIZE)
        self.counts()

    def come(self, name: str, text: str, hit: int | None, **identity: object) -> None:
        """Admit a prompt of digits. `None`: it must be refused."""
        request = self.kv.new_request(name, [int(digit) for digit in text], **identity)  # type: ignore[arg-type]
        blocks, num_hit = self.kv.get_computed_blocks(request)
        if hit is not None and num_hit != hit:
            raise AssertionError(f"{name} hits {num_hit} tokens, not {hit}")
        free_before = self.kv.block_pool.num_free_blocks
        new = self.kv.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
        if (new is None) != (hit is None):
            raise AssertionError(f"{name} was {'refused' if new is None else 'admitted'}")
        if new is None:
            if free_before != self.kv.block_pool.num_free_blocks or self.kv.get_block_ids(name)[0]:
                raise AssertionError(f"the refusal of {name} has changed the pool")
            return
        request.num_computed_tokens = request.num_tokens
        self.running[name] = request
        if self.table(name) != blocks.get_block_ids()[0] + new.get_block_ids()[0]:
            raise AssertionError(f"{name} has not got its hit and its new blocks")
        self.counts()

    def go(self, *names: str) -> None:
        """Free these requests."""
        for name in names:
            self.kv.free(self.running.pop(name))
            self.counts()

    def table(self, name: str) -> list[int]:
        """Return a table."""
        return self.kv.get_block_ids(name)[0]

    def counts(self) -> None:
        """Compare the number of free blocks, and the tables' lengths and sharing, with the texts."""
        holders: dict[int, tuple[int, ...]] = {}
        for name, request in self.running.items():
            table, tokens = self.table(name), tuple(request.token_ids)
            if len(table) != -(-len(tokens) // SIZE):
                raise AssertionError(f"{name} has {len(table)} blocks")
            for place, block_id in enumerate(table):
                content = tokens[: (place + 1) * SIZE]
                if not 0 < block_id <= self.num_usable or holders.setdefault(block_id, content) != content:
                    raise AssertionError(f"block {block_id} of {name} belongs to another request")
        if self.kv.block_pool.num_free_blocks != self.num_usable - len(holders):
            raise AssertionError(f"{len(holders)} blocks are in use")

    def found(self, text: str, want: int, **identity: object) -> None:
        """Compare a lookup."""
        request = self.kv.new_request("probe", [int(digit) for digit in text], **identity)  # type: ignore[arg-type]
        got = self.kv.get_computed_blocks(request)[1]
        if got != want:
            raise AssertionError(f"{text} finds {got} tokens, not {want}")


def check_sharing(make_manager: MakeManager) -> None:
    story = Story(make_manager, 12)
    story.come("A", "123456", 0)
    story.come("B", "123456", 4)
    story.come("C", "1234567", 6)
    if len({*story.table("A"), *story.table("B"), *story.table("C")}) != 5:
        raise AssertionError("A, B and C need five blocks: three of A, one of B, one of C")


def check_slots(make_manager: MakeManager) -> None:
    for length in range(1, 6):
        story = Story(make_manager, 12)
        story.come("A", "12345"[:length], 0)
        for _ in range(3):
            story.running["A"].append_output_token_ids(9)
            if story.kv.allocate_slots(story.running["A"], 1) is None:
                raise AssertionError("A was refused")
            story.running["A"].num_computed_tokens += 1
            story.counts()
    story = Story(make_manager, 12)
    part = story.kv.new_request("P", [1, 2, 3, 4, 5, 6])
    story.kv.allocate_slots(part, 3, num_lookahead_tokens=2)
    if len(story.table("P")) != 3:
        raise AssertionError("3 tokens and 2 lookahead tokens need 3 blocks")
    story.found("123456", 2)


def check_refusals(make_manager: MakeManager) -> None:
    story = Story(make_manager, 3)
    story.come("A", "1234", 0)
    story.go("A")
    story.come("B", "12345678", None)
    story.found("12345", 4)
    story.come("C", "123456", 4)
    story.come("D", "9", None)


def check_freeing(make_manager: MakeManager) -> None:
    story = Story(make_manager, 6)
    story.come("A", "123", 0)
    story.come("B", "12567", 2)
    story.go("A")
    story.come("C", "777777", 0)
    story.go("B", "C")


def check_eviction(make_manager: MakeManager) -> None:
    story = Story(make_manager, 4)
    story.come("A", "1111", 0)
    story.go("A")
    story.come("B", "2222", 0)
    story.go("B")
    story.come("C", "3", 0)
    story.found("11111", 2)
    story.found("22222", 4)
    story.go("C")
    story.come("D", "3", 0)
    story.found("11111", 2)
    story.come("E", "444444", 0)
    story.found("11111", 0)
    story.found("22222", 0)
    story.go("E")
    story.found("4444444", 6)

    story = Story(make_manager, 2)
    story.kv = make_manager(3, SIZE)
    for name in "AB":
        request = story.kv.new_request(name, [1, 1])
        story.kv.allocate_slots(request, 2)
        request.num_computed_tokens = 2
        story.running[name] = request
    story.kv.free(story.running.pop("A"))
    story.kv.allocate_slots(story.kv.new_request("C", [3]), 1)
    story.found("111", 2)

    story = Story(make_manager, 3)
    story.come("A", "11", 0)
    story.come("B", "2", 0)
    story.go("A", "B")
    story.come("C", "345", 0)
    story.found("111", 2)


def check_identity(make_manager: MakeManager) -> None:
    adapter = LoRARequest("law", "/law")
    story = Story(make_manager, 12)
    story.come("A", "1234", 0, cache_salt="x", lora_request=adapter)
    story.found("12345", 4, cache_salt="x", lora_request=adapter)
    story.found("12345", 0, cache_salt="y", lora_request=adapter)
    story.found("12345", 0, cache_salt="x")
    story.found("12345", 0, cache_salt="x", lora_request=LoRARequest("law", "/med"))
    story.found("345", 0, cache_salt="x", lora_request=adapter)
    request = story.kv.new_request("B", [1, 10, 2, 2])
    story.kv.allocate_slots(request, 4)
    probe = story.kv.new_request("C", [11, 0, 2, 2, 2])
    if story.kv.get_computed_blocks(probe)[1] != 0:
        raise AssertionError("1 10 and 11 0 are not the same tokens")
