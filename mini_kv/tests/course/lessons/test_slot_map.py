"""A cache as a table: what lies where, and what was written over."""

import re

from mini_kv.course.lessons.slot_map import SlotMap


def test_a_row_a_block_and_a_cell_a_slot():
    page = SlotMap("Two blocks.", [["a0", ""], ["b0", "b1"]], [])._repr_html_()
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert rows == [["block", "0", "1"], ["0", "a0", "&middot;"], ["1", "b0", "b1"]]
    assert "<figcaption>Two blocks.</figcaption>" in page


def test_all_that_lay_in_a_slot_before_is_struck_through_the_latest_first():
    page = SlotMap("", [["a6", "a1"]], [("a0", "a5"), ("a5", "a6")])._repr_html_()
    cells = re.findall(r'<td style="border:(\d)px[^>]*>(.*?)</td>', page)
    assert cells == [("3", "a6 <s>a5</s> <s>a0</s>"), ("1", "a1")]


def test_text_is_text():
    assert "<b>" not in SlotMap("<b>", [["<b>"]], [("<b>x", "<b>")])._repr_html_()
