"""A calendar of boundaries visits a sixteenth of the requests, and leaves the same blocks: a chapter's figure."""

import pytest

from mini_kv.course.lessons.boundaries import visit_all, visit_by_calendar

LENGTHS = (1, 15, 16, 17, 40, 47, 48)


def test_a_request_is_visited_in_the_steps_that_open_a_block():
    visits = visit_by_calendar([40], 100).visits
    assert [step for step, count in enumerate(visits, start=1) if count] == [9, 25, 41, 57, 73, 89]


@pytest.mark.parametrize(("length", "first"), [(47, 2), (48, 1), (49, 16), (1, 16)])
def test_the_first_visit_opens_the_next_block(length, first):
    assert visit_by_calendar([length], 17).visits.index(1) + 1 == first


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("num_steps", [1, 16, 50])
def test_both_give_the_same_blocks_to_each_request(block_size, num_steps):
    all_of_them = visit_all(LENGTHS, num_steps, block_size)
    calendar = visit_by_calendar(LENGTHS, num_steps, block_size)
    assert all_of_them.tables == calendar.tables
    assert all_of_them.visits == (len(LENGTHS),) * num_steps


def test_over_a_block_of_steps_the_calendar_visits_each_request_once():
    lengths = range(20, 84)
    assert sum(visit_all(lengths, 16).visits) == 16 * 64
    assert visit_by_calendar(lengths, 16).visits == (4,) * 16


def test_requests_of_one_length_are_visited_in_one_step():
    assert visit_by_calendar([32] * 8, 16).visits == (8,) + (0,) * 15
