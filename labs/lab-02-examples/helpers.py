"""What lab-02-examples needs: it runs a learner's examples on correct queues and on faulty ones."""

from mini_kv.course.given.examples import Examples
from mini_kv.course.given.faulty_queues import CORRECT_QUEUES, FAULTY_QUEUES, MISREAD_QUEUES, QueueUnderTest

EXAMPLES = Examples(
    noun="queue",
    kind=QueueUnderTest,
    correct=CORRECT_QUEUES,
    faulty=FAULTY_QUEUES,
    misread=MISREAD_QUEUES,
    rules={"popleft": 1, "popleft_n": 2, "append": 4, "append_n": 5, "prepend_n": 6, "remove": 8, "count": 10},
    left_free="which error is raised, a number below 0, and how the queue is built.",
    hint="an exception on a correct queue is a mistake of the example. Use is_refused for a call that must raise",
)
accepts_all, catches = EXAMPLES.accepts_all, EXAMPLES.catches
