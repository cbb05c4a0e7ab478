"""lab-02, examples: few queues with long stories."""

from mini_kv.course.given.faulty_queues import MakeQueue, QueueUnderTest


def check_taking(make_queue: MakeQueue) -> None:
    """Take until nothing is left."""
    queue = make_queue([5, 1, 4, 2])
    assert queue.popleft() == 5
    assert queue.is_refused(queue.popleft_n, 4)
    _has(queue, 1, 4, 2)
    assert queue.popleft_n(3) == [1, 4, 2]
    _has(queue)
    assert queue.is_refused(queue.popleft)


def check_returning(make_queue: MakeQueue) -> None:
    """Put blocks to both ends."""
    queue = make_queue([])
    queue.append(3)
    queue.append_n([1, 2])
    _has(queue, 3, 1, 2)
    queue.prepend_n([5, 4])
    _has(queue, 5, 4, 3, 1, 2)
    assert queue.is_refused(queue.append_n, [0, 3])
    assert queue.is_refused(queue.prepend_n, [0, 0])
    _has(queue, 5, 4, 3, 1, 2)


def check_removing(make_queue: MakeQueue) -> None:
    """Remove blocks and put them back."""
    queue = make_queue([4, 3, 2, 1])
    queue.remove(3)
    _has(queue, 4, 2, 1)
    assert queue.is_refused(queue.remove, 3)
    queue.append(3)
    _has(queue, 4, 2, 1, 3)


def _has(queue: QueueUnderTest, *block_ids: int) -> None:
    """Raise unless the queue has these blocks, and counts them."""
    assert queue.order() == list(block_ids)
    assert queue.count() == len(block_ids)
