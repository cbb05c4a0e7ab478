"""lab-02, examples: the order is read by taking all blocks, not from `order`."""

from mini_kv.course.given.faulty_queues import MakeQueue, QueueUnderTest


def check_taking(make_queue: MakeQueue) -> None:
    """Take one, all, and more than all."""
    assert make_queue([7, 3, 5]).popleft() == 7
    assert make_queue([7, 3, 5]).popleft_n(2) == [7, 3]
    queue = make_queue([7, 3, 5])
    assert queue.is_refused(queue.popleft_n, 4)
    assert _all_of(queue) == [7, 3, 5]


def check_returning(make_queue: MakeQueue) -> None:
    """Put two blocks to each end."""
    queue = make_queue([0])
    queue.append_n([2, 1])
    assert queue.count() == 3
    queue.prepend_n([4, 3])
    assert _all_of(queue) == [4, 3, 0, 2, 1]
    other = make_queue([0])
    assert other.is_refused(other.append_n, [1, 0])
    assert other.count() == 1


def check_removing(make_queue: MakeQueue) -> None:
    """Remove the block in the middle, and put it to the back."""
    queue = make_queue([6, 5, 4])
    queue.remove(5)
    assert queue.count() == 2
    assert queue.is_refused(queue.remove, 5)
    assert _all_of(queue) == [6, 4]
    again = make_queue([6, 5, 4])
    again.remove(5)
    again.append(5)
    assert _all_of(again) == [6, 4, 5]


def _all_of(queue: QueueUnderTest) -> list[int]:
    """Take every block from the front, one by one."""
    return [queue.popleft() for _ in range(queue.count())]
