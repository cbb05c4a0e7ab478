"""What lab-02-examples needs: it runs a learner's examples on correct queues and on faulty ones."""

from mini_kv.labkit.detective.examples import Examples
from mini_kv.labkit.detective.queues import CORRECT_QUEUES, FAULTY_QUEUES, run_on_queue

EXAMPLES = Examples(
    noun="queue",
    correct=CORRECT_QUEUES,
    faulty=[(queue.check, queue.make) for queue in FAULTY_QUEUES],
    run=run_on_queue,
    hint="an exception on a correct queue is a mistake of the example. Use is_refused for a call that must raise",
)
accepts_all, catches = EXAMPLES.accepts_all, EXAMPLES.catches
