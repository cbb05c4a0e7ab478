"""lab-02, examples: the reference solution."""

from mini_kv.course.given.faulty_queues import MakeQueue


def check_taking(make_queue: MakeQueue) -> None:
    """Give examples for `popleft` and `popleft_n`."""
    assert make_queue([2, 0, 3, 1]).popleft() == 2, "the front goes first"
    assert make_queue([2, 0, 3, 1]).popleft_n(3) == [2, 0, 3], "in their order"
    short = make_queue([2, 0])
    assert short.is_refused(short.popleft_n, 3), "three of two"
    assert short.order() == [2, 0], "a refusal changes nothing"


def check_returning(make_queue: MakeQueue) -> None:
    """Give examples for `append_n` and `prepend_n`."""
    back = make_queue([2])
    back.append_n([0, 3])
    assert back.order() == [2, 0, 3], "at the back"
    front = make_queue([2])
    front.prepend_n([0, 3])
    assert front.order() == [0, 3, 2], "at the front"
    counted = make_queue([2])
    counted.append_n([0, 3])
    assert counted.count() == 3
    twice = make_queue([2])
    assert twice.is_refused(twice.append_n, [0, 2]), "2 is in the queue"
    assert twice.order() == [2], "an error changes nothing"


def check_removing(make_queue: MakeQueue) -> None:
    """Give examples for `remove`."""
    queue = make_queue([2, 0, 3, 1])
    queue.remove(0)
    assert queue.order() == [2, 3, 1], "the others keep their order"
    counted = make_queue([2, 0])
    counted.remove(0)
    assert counted.count() == 1
    other = make_queue([2, 0])
    assert other.is_refused(other.remove, 5), "5 is not in the queue"
    again = make_queue([2, 0])
    again.remove(2)
    again.append(2)
    assert again.order() == [0, 2], "at the back"
