"""A class: hand-ins graded apart from each other, a gradebook, a student's tree, files for two graders on the web.

In reading order: `handins` (what was handed in, read and never unpacked), `look` (what the code says before it runs),
`copies` (a fresh copy of the tests), `isolation` (the walls around a process), `inside`
(the half that runs beside the submission), `grade` (the half that gives the marks), `gradebook` and `picture` (what a
class did, and believes), `solution_leaks` and `release` (the student's tree), `elsewhere` (Gradescope, Classroom 50).
"""
