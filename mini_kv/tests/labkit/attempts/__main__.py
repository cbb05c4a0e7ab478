"""Prints what each attempt is told, and the counts."""

import sys

from mini_kv.tests.labkit.attempts import all_attempts, answer_to, judged


def main(names: list[str]) -> None:
    """Run the attempts whose name begins with one of these, or all; with one name, print the message too."""
    counts = dict.fromkeys(("attempts", "full marks", "named rightly", "named wrongly", "first message leads"), 0)
    for attempt in all_attempts():
        if names and not attempt.name.startswith(tuple(names)):
            continue
        answer, said = answer_to(attempt), judged().get(attempt.name, {})
        is_right = answer.belief in said.get("right", [])
        counts["attempts"] += 1
        counts["full marks"] += answer.passed
        counts["named rightly"] += is_right
        counts["named wrongly"] += bool(answer.belief) and not is_right
        counts["first message leads"] += bool(said.get("leads")) and not answer.passed
        name = "FULL MARKS" if answer.passed else answer.belief or "-"
        print(f"{attempt.name}\n  fault  {attempt.fault}\n  named  {name}")
        if names:
            print(answer.message)
    print(*(f"{count:>3} {what}" for what, count in counts.items()), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
