"""A class: hand-ins graded in isolation, a gradebook, a student's tree, files for two graders on the web.

In reading order: `handins` (reads the hand-ins, never unpacks them), `static_check` (checks the code before it runs),
`settable` (the attributes that it may set), `hidden_tests` (a fresh copy of the tests), `isolation` (the isolation of a
process), `inside` (the half that runs in the process of the submission), `grade` (the half that gives the marks),
`gradebook` and `class_report` (the results and beliefs of a class), `solution_leaks` and `release` (the student's
tree), `gradescope` (its autograder).
"""
