"""The contract of the challenge, in twenty sentences, and its variants for a class.

An instructor gives a seed in `book/course.toml`, and three options are drawn from it: the cap of a hit, the order of
freeing, the null block. A solution of the public contract, which anybody can find, fails in a variant.
"""

import random
import re
import textwrap
from dataclasses import dataclass

SENTENCES = (
    "The pool has `num_blocks` blocks of `block_size` tokens, numbered from 0. Block 0 is the null block: it is never"
    " allocated and never free.",
    "The free queue begins as 1, 2, 3 and so on. A new block is always taken from its front.",
    "`allocate` adds blocks at the end of the request's table until it has a slot for each of `computed + hit + tokens`"
    " tokens, and no block more. It removes none.",
    "A granted `allocate` caches each block that is wholly filled by the first `computed + hit + tokens` tokens which"
    " the request has: it gets a block hash, even before its step has run. No other call does that, and no other block"
    " has a hash.",
    "Two blocks have the same block hash if and only if their tokens are equal and all tokens before them are equal.",
    "`lookup` finds the longest cached prefix: from the first block of the prompt to the last one before a block that"
    " is not cached.",
    "A hit has at most `num_tokens - 1` tokens, in whole blocks.",
    "`lookup` changes nothing, however often it is called.",
    "If several blocks have the same block hash, `lookup` finds the one of them that got it first.",
    "If `hit_of` is set, the table begins with all blocks that the last `lookup` of this request found: the same"
    " blocks, no copies. A block that the request computes itself stays in its table, even if another has its hash.",
    "`free` empties the table of a request. A block is free as soon as it is in no table.",
    "The blocks of a request are freed from the last one in its table to the first.",
    "Of the blocks that one `free` makes free, those that are not cached go to the front of the free queue and those"
    " that are cached go to its end, both in the order of sentence 12.",
    "A free block keeps its block hash and can be found. A hit takes its free blocks out of the free queue, wherever"
    " they are in it, before any new block is taken.",
    "A block that is taken as a new block loses its block hash, if it had one. No other block loses its own.",
    "`allocate` returns `granted: false` if it would need more blocks than are free, and only then. The free blocks of"
    " the hit are needed, too. A refusal changes nothing.",
    "Extra, `caching off`: no block is ever cached, so nothing is found.",
    "Extra, `salts` and `adapters`: two blocks have the same block hash only if the `salt` and the `lora` of their"
    " requests are equal, too.",
    "Extra, `windows`: in a group of the kind `window` a token needs itself and the `reach - 1` tokens before it. A"
    " granted `allocate` first frees each block that no token after the `computed + hit` first ones needs, the last one"
    " first, and puts block 0 in its place. A hit is as long as if it had all blocks, but needs only those that the"
    " token after it needs. Its others are block 0.",
    "Extra, `groups`: each group of layers has its own table and its own block hashes, in the same pool. A hit is the"
    " longest that all groups have. `allocate` takes the hits of all groups before it takes a new block for the first.",
)
"""The public contract. Sentence 1 is the first. The last four are extras."""
CAPS = {1: "num_tokens - block_size", 2: "num_tokens - 2 * block_size"}
NULLS = {1: ("The last block is the null block", "never allocated and never free"), 2: ("There is no null block", "")}
TO_THE_END = (
    "The blocks that one `free` makes free go to the end of the free queue, those that are not cached before those"
    " that are cached, both in the order of sentence 12."
)
IN_A_CLASS = "This is the contract of your class. It differs from vLLM's in the sentences 1, 2, 7 and 12 or 13.\n\n"


@dataclass(frozen=True, slots=True)
class Variant:
    """Three options of the contract. 0 is that of the public one."""

    cap: int = 0
    """Tokens of a prompt that cannot be in its hit. 0: the last one. 1 or 2: as many blocks."""
    order: int = 0
    """0: a table is freed from its end. 1: from its beginning. 2: from its end, and no block goes to the front."""
    null: int = 0
    """0: the first block is the null block. 1: the last one. 2: none."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The contract with these options."""
        sentences = list(SENTENCES)
        if self.cap:
            sentences[6] = sentences[6].replace("num_tokens - 1", CAPS[self.cap])
        if self.order == 1:
            sentences[11] = "The blocks of a request are freed from the first one in its table to the last."
        elif self.order:
            sentences[12] = TO_THE_END
        if self.null:
            name, what = NULLS[self.null]
            end = f"{name}: it is {what}." if what else f"{name}."
            sentences[0] = f"{sentences[0].partition(' Block 0')[0]} {end}"
            sentences[1] = sentences[1].replace("1, 2, 3", "0, 1, 2")
        return tuple(sentences)


PUBLIC = Variant()


def draw(seed: int) -> Variant:
    """Return the variant of a seed. Each option differs from the public one. Seed 0 is the public contract."""
    chance = random.Random(seed)
    return Variant(chance.choice((1, 2)), chance.choice((1, 2)), chance.choice((1, 2))) if seed else PUBLIC


def in_variant(page: str, variant: Variant) -> str:
    """Return the page of the challenge with the variant's sentences in its contract, and without its example."""
    if variant != PUBLIC:
        page = re.sub(r"\*\*An example\.\*\*.+?```text.+?```\n\n", IN_A_CLASS, page, flags=re.DOTALL)
    for number, (public, own) in enumerate(zip(SENTENCES, variant.sentences, strict=True), 1):
        if public != own:
            indent = " " * len(f"{number}. ")
            item = textwrap.fill(f"{number}. {own}", 120, subsequent_indent=indent, break_long_words=False)
            found = re.findall(rf"^{number}\. .+(?:\n   .+)*", page, re.MULTILINE)
            if len(found) != 1:
                raise ValueError(f"sentence {number} of the contract is {len(found)} times in the page")
            page = page.replace(found[0], item)
    return page
