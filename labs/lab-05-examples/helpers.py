"""What lab-05-examples needs: it runs a learner's examples on correct versions and on faulty ones."""

from mini_kv.course.given.examples import Examples
from mini_kv.course.given.faulty_admissions import (
    CORRECT_VERSIONS,
    FAULTY_VERSIONS,
    MISREAD_VERSIONS,
    CacheUnderTest,
)

EXAMPLES = Examples(
    noun="version",
    kind=CacheUnderTest,
    correct=CORRECT_VERSIONS,
    faulty=FAULTY_VERSIONS,
    misread=MISREAD_VERSIONS,
    rules={"prefill": 1, "computed": 4, "table": 5, "ref_counts": 10, "hit_rate": 11, "num_free": 6},
    left_free="the ids of new blocks, and which cached block is evicted first.",
    hint="an exception on a correct version is a mistake of the example: assert before the call that fails",
)
accepts_all, catches = EXAMPLES.accepts_all, EXAMPLES.catches
