"""lab-05, examples: write them before you write `prefill`. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-05-examples
    $env:LAB_IMPL="starter"; pytest labs/lab-05-examples          (Windows, PowerShell)

Each function gets `make_cache`, which makes a cache. Its requests are admitted by a `prefill` of an unknown kind:

    cache = make_cache(6, 4)              # six blocks of four tokens can be used, and all are free
    cache.prefill(range(8), "A")          # admits A. Returns the tokens that were found, or None: no room
    cache.computed("A")                   # the tokens of A that are computed
    cache.table("A")                      # the ids of A's blocks
    cache.ref_counts("A")                 # how many tables have each of these blocks
    cache.hit_rate()                      # the share of all prompts' tokens so far that were found
    cache.num_free()                      # the number of free blocks
    cache.free("A")                       # ends A

Write a few examples: a cache, some calls, and an `assert` with the result that README.md promises. An `AssertionError`
accuses the version. Make a new cache for each example, so that one fault does not hide another.
"""

from mini_kv.course import todo
from mini_kv.course.given.faulty_admissions import MakeCache


def check_prefill(make_cache: MakeCache) -> None:
    """Give examples for `prefill`: a prompt that comes twice, and a prompt for which there is no room."""
    todo("lab-05-examples", "check_prefill", "admit two equal prompts, and compare the tables")


def check_ref_counts(make_cache: MakeCache) -> None:
    """Give examples for `ref_counts`: blocks of one table, and of two."""
    todo("lab-05-examples", "check_ref_counts", "which blocks do two prompts with a common beginning share")


def check_hit_rate(make_cache: MakeCache) -> None:
    """Give examples for `hit_rate`: before the first request, after a miss, after a hit."""
    todo("lab-05-examples", "check_hit_rate", "count found tokens and all tokens on paper")
