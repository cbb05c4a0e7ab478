"""lab-15, in which learners write tests: faulty and correct cache managers, and the code that runs a check on them.

In reading order: `manager_under_test` (the calls that a check may use, recorded), `suspects` (the faulty managers),
`correct_managers` (managers that keep the contract in different ways), `trial` (runs a check on one manager), `replay`
(repeats recorded calls, and finds the shortest ones in which a manager breaks the contract), `own_manager` (runs the
checks on a manager of the learner's own parts), `queues`, `admissions` and `examples` (the same for lab-02-examples and
lab-05-examples).
"""
