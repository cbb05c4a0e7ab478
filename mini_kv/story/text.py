"""The state of the cache drawn in plain characters: the one notation of terminal, failure messages and notebooks.

A     [1x2#] [2x2#] [8x1#]        a block table: block 1 has two references (x2) and is cached (#)
B     [1x2#] [2x2#] [9x1 ]        block 9 has no block hash: no other request can find it
W     [null] [3x1 ]               a null block: the block here left the window
free  next-> 10 7# <-last         the free queue: 10 is reused next, and 7 can still be hit
"""

from collections.abc import Collection, Sequence

from mini_kv.story.frame import BlockView, Frame
from mini_kv.story.language import fill, words

LEGEND = "#=cached  xN=ref_cnt"
"""The meaning of the marks, printed with the first drawing that a reader sees."""

BOLD, PLAIN = "\033[1m", "\033[0m"


def draw_state(
    frame: Frame, changed: Collection[int] = (), *, colour: bool = False, max_blocks: int = 10, lang: str = "en"
) -> list[str]:
    """Return the lines of the drawing: one row per table (one per group, if there are several), then the free queue.

    Args:
        frame: the state.
        changed: ids of blocks to set in bold. Needs `colour`.
        colour: whether terminal escape codes may be used.
        max_blocks: in longer rows a count replaces the middle.
        lang: the language of the words in the drawing.
    """
    rows: list[tuple[str, list[str]]] = []
    bold, t = changed if colour else (), words(lang)
    for request_id, groups in frame.tables.items():
        for group_id, ids in enumerate(groups):
            name = request_id if len(groups) == 1 else f"{request_id}.{group_id}"
            cells = [_bold(_held(frame.blocks[block_id], t["nullBlock"]), block_id in bold) for block_id in ids]
            rows.append((name, elide(cells, max_blocks, lang)))
    free = [_bold(_free(frame.blocks[block_id]), block_id in bold) for block_id in frame.free_order]
    rows.append((t["freeRow"], [f"{t['next']}->", *elide(free, max_blocks + 2, lang), f"<-{t['end']}"]))
    width = max(_columns(name) for name, _ in rows)
    return [f"{name}{' ' * (width - _columns(name))}  {' '.join(cells)}".rstrip() for name, cells in rows]


def elide(cells: Sequence[str], max_cells: int, lang: str = "en") -> list[str]:
    """Return the cells. In a longer row a count replaces the middle."""
    if len(cells) <= max_cells:
        return list(cells)
    side = (max_cells - 1) // 2
    return [*cells[:side], fill(words(lang)["between"], len(cells) - 2 * side), *cells[-side:]]


def _columns(text: str) -> int:
    """Return the columns of a text. A Chinese character takes two."""
    return sum(2 if character >= "\u2e80" else 1 for character in text)


def _held(block: BlockView, null: str) -> str:
    if block.block_id == 0:
        return f"[{null}]"
    return f"[{block.block_id}x{block.ref_cnt}{'#' if block.block_hash else ' '}]"


def _free(block: BlockView) -> str:
    return f"{block.block_id}{'#' if block.block_hash else ''}"


def _bold(text: str, bold: bool) -> str:
    return f"{BOLD}{text}{PLAIN}" if bold else text
