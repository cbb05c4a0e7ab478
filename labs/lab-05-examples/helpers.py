"""What lab-05-examples needs: it runs a learner's examples on correct versions and on faulty ones."""

from mini_kv.course.given.examples import Examples
from mini_kv.course.given.faulty_admissions import CORRECT_VERSIONS, FAULTY_VERSIONS, CacheUnderTest

EXAMPLES = Examples(
    noun="version",
    kind=CacheUnderTest,
    correct=CORRECT_VERSIONS,
    faulty=FAULTY_VERSIONS,
    contract={
        "prefill": "A hit is the longest cached beginning in whole blocks, and has at most the tokens of the prompt but"
        " one. If there is no room, the result is `None`.",
        "computed": "`prefill` admits a request and computes its whole prompt.",
        "table": "The table begins with the blocks that were found. New blocks are taken for the other tokens only.",
        "ref_counts": "`ref_counts` has a count for each block of the table, first block first: the number of tables"
        " with this block.",
        "hit_rate": "`hit_rate` is the share of all tokens of the admitted prompts that were found, from 0.0 to 1.0.",
        "num_free": "New blocks are taken for the other tokens only.",
    },
    left_free="the ids of new blocks.",
    hint="an exception on a correct version is a mistake of the example: assert before the call that fails",
)
accepts_all, catches = EXAMPLES.accepts_all, EXAMPLES.catches
