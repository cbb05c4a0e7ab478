"""lab-02, examples: write them before you write the queue. Your work goes here.

Run it from the repository's root:

    LAB_IMPL=starter pytest labs/lab-02-examples
    $env:LAB_IMPL="starter"; pytest labs/lab-02-examples          (Windows, PowerShell)

Each function gets `make_queue`, which makes a queue of an unknown kind from block ids, the first in front:

    queue = make_queue([2, 0, 3, 1])
    queue.popleft()                  # takes the block at the front, returns its id
    queue.popleft_n(2)               # takes two, returns their ids
    queue.append(2)                  # puts a block at the back
    queue.append_n([0, 3])           # puts blocks at the back, in this order
    queue.prepend_n([5, 4])          # puts blocks at the front, in this order
    queue.remove(3)                  # takes a block out, wherever it is
    queue.order()                    # the ids in the queue, front to back
    queue.count()                    # the queue's own count
    queue.is_refused(queue.remove, 3)    # makes the call queue.remove(3), returns whether it raised an error

Write a few examples: a queue, some calls, and an `assert` with the result that README.md promises. An `AssertionError`
accuses the queue. Make a new queue for each example, so that one fault does not hide another.
"""

from mini_kv.course import todo
from mini_kv.course.given.faulty_queues import MakeQueue


def check_taking(make_queue: MakeQueue) -> None:
    """Give examples for `popleft` and `popleft_n`, also for more blocks than there are."""
    todo("lab-02-examples", "check_taking", "take one block of four, then two, then too many")


def check_returning(make_queue: MakeQueue) -> None:
    """Give examples for `append`, `append_n` and `prepend_n`, also for a block that is in the queue already."""
    todo("lab-02-examples", "check_returning", "put two blocks at the back, and two at the front")


def check_removing(make_queue: MakeQueue) -> None:
    """Give examples for `remove`: the others, the count, a block that is not there, a block that comes back."""
    todo("lab-02-examples", "check_removing", "take a block out of the middle")
