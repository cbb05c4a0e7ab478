"""lab-15: detective. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-15
    $env:LAB_IMPL="starter"; pytest labs/lab-15          (Windows, PowerShell)

Write six checks, one for each part of the contract in README.md. Each gets a function that makes a new manager of an
unknown kind. Call it with a number of blocks (the null block included) and a block size, as often as you like:

    kv = make_manager(9, 4)                            # 8 blocks can be used, of 4 tokens each
    a = kv.new_request("A", range(10))                 # also: cache_salt="x", lora_request=LoRARequest("law", "/law")
    assert prefill(kv, a) == 0                         # look up, allocate, and count the prompt as computed
    assert len(kv.get_block_ids("A")[0]) == 3
    kv.free(a)
    assert kv.block_pool.num_free_blocks == 8

Raise an `AssertionError` if the manager breaks the contract, and return if it keeps it. `prefill` makes these calls.
Make them yourself where a check needs something between them, or only a part of a prompt:

    hit, num_hit_tokens = kv.get_computed_blocks(a)
    ids = hit.get_block_ids()[0]                       # the blocks of the hit; the result of allocate_slots has it too
    new = kv.allocate_slots(a, a.num_tokens - num_hit_tokens, num_hit_tokens, hit)     # None: refused
    a.num_computed_tokens = a.num_tokens               # after each step, or the next call counts from 0 again
    a.append_output_token_ids(7)                       # decoding: one token more
    kv.allocate_slots(a, 1)                            # one new token, without a hit
    kv.allocate_slots(a, 1, num_lookahead_tokens=3)    # the same, with slots for 3 tokens that do not exist yet

A check may make 500 calls per run. There is nothing else to call: a correct manager may have no hashes and no counts.
The calls are in `mini_kv/course/given/manager_under_test.py`, which you may read. README.md lists calls that raise.
"""

from collections.abc import Callable

from mini_kv.core.request import LoRARequest  # noqa: F401  # for check_identity
from mini_kv.course import todo
from mini_kv.course.given.manager_under_test import ManagerUnderTest, prefill  # noqa: F401  # for the checks

MakeManager = Callable[[int, int], ManagerUnderTest]


def check_sharing(make_manager: MakeManager) -> None:
    """Requests with one prompt share blocks: how many tokens are a hit, when, and what is in the tables."""
    todo("lab-15", "check_sharing", "let two requests with one prompt run at the same time")


def check_slots(make_manager: MakeManager) -> None:
    """A table has a slot for each token and each lookahead token, and no block more. Only full blocks are found."""
    todo("lab-15", "check_slots", "count the blocks of prompts around a block's end, then decode across one")


def check_refusals(make_manager: MakeManager) -> None:
    """A request is refused if too few blocks are free, and only then. A refusal changes nothing."""
    todo("lab-15", "check_refusals", "find a pool that is one block too small for a request, and one that is not")


def check_freeing(make_manager: MakeManager) -> None:
    """A block is free as soon as no table has it. At the end all blocks except the null block are free."""
    todo("lab-15", "check_freeing", "let two requests share a block, and free one of them")


def check_eviction(make_manager: MakeManager) -> None:
    """Which block is allocated next, and what is found afterwards: its old content, its new content, the others."""
    todo("lab-15", "check_eviction", "fill a small pool, free it, let others take some of it, and look up again")


def check_identity(make_manager: MakeManager) -> None:
    """Blocks are found by their tokens, all tokens before them, the salt and the adapter."""
    todo("lab-15", "check_identity", "cache a prompt, and look up others that are nearly equal")
