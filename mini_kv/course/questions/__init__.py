"""Questions about a learner's own engine: it runs on a small random workload, and its results are the answers.

Reading order: `question` (a question and its calls), then the questions of each lab: `of_queue` (lab-02), `of_pool`
(lab-03), `of_hashes` (lab-04), `cache_run` (a manager on a random workload) and `of_cache` (lab-05 to lab-07),
`of_steps` (lab-11), `of_windows` (lab-12), `of_policy` (lab-13); at last `made` (finds the learner's files and chooses
five questions) and `sheet` (a page for an oral exam). No module needs PyTorch.
"""
