"""What lab-02-examples needs: it runs a learner's examples on correct queues and on faulty ones."""

from mini_kv.course.given.examples import Examples
from mini_kv.course.given.faulty_queues import CORRECT_QUEUES, FAULTY_QUEUES, QueueUnderTest

EXAMPLES = Examples(
    noun="queue",
    kind=QueueUnderTest,
    correct=CORRECT_QUEUES,
    faulty=FAULTY_QUEUES,
    contract={
        "popleft": "`popleft` takes the block at the front.",
        "popleft_n": "`popleft_n` takes the blocks at the front, and returns them in their order. If there are too few"
        " blocks, the call raises an error.",
        "append": "`append` puts a block at the back, also one that was removed.",
        "append_n": "`append_n` puts blocks at the back in the order given",
        "prepend_n": "`prepend_n` puts them at the front in the order given.",
        "remove": "The others keep their order. A block that is not in the queue raises an error.",
        "count": "The count is the number of blocks in the queue.",
    },
    left_free="which error is raised, and how the queue is built.",
    hint="an exception on a correct queue is a mistake of the example. Use is_refused for a call that must raise",
)
accepts_all, catches = EXAMPLES.accepts_all, EXAMPLES.catches
