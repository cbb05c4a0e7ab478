"""What lab-05-examples needs: it runs a learner's examples on correct versions and on faulty ones."""

from mini_kv.labkit.detective.admissions import CORRECT_VERSIONS, FAULTY_VERSIONS, run_on_version
from mini_kv.labkit.detective.examples import Examples

EXAMPLES = Examples(
    noun="version",
    correct=[(version.title, version) for version in CORRECT_VERSIONS],
    faulty=[(version.check, version) for version in FAULTY_VERSIONS],
    run=run_on_version,
    hint="an exception on a correct version is a mistake of the example: assert before the call that fails",
)
accepts_all, catches = EXAMPLES.accepts_all, EXAMPLES.catches
