"""What single labs are given.

`slot_worker` (a worker that records the content of each slot), `small_tree` (a radix tree of plain nodes), `small_pool`
(a pool of plain lists, for a further part), `arena` (the workloads of lab-13), `second_home` (the pool and store of
lab-14), `toy_server` (for a lab about attacks), `contract` (the contract of lab-17 and its variants), `kernels` (tools
for labs about Triton).

Parts of the engine with one fault each: `faulty_parts` (the parts) and `faulty_managers` (the table: place, part, the
rule that it breaks, public report). The first rows are the subjects of lab-15. Chapters, the finale and `mini-kv
verify` use them, too. `small_manager` makes a manager with replaced parts.

For the labs in which learners write tests, in reading order: `subjects` (what a check runs on), `manager_under_test`
(the calls that a check may use, recorded), `correct_managers` (managers that keep the contract in different ways),
`outcomes` (runs a check on one subject), `replayed_checks` (repeats recorded calls, and finds the shortest ones in
which a manager breaks the contract), `faulty_queues`, `faulty_admissions` and `examples` (the same for lab-02-examples
and lab-05-examples).
"""
