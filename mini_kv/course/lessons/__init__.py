"""Code for notebooks and chapters only: numbers for charts, and controls for cells.

In reading order, first the numbers, counted on the real engine: `curves` (waste, hit rates, memory over time),
`timeline` (the state of each request per step), `windows` (blocks and hits of groups of layers), `policies` (a scenario
under another eviction policy), `tiers_in_letters` (a cache with tiers, in letters), `misbehave` (servers with a fault
each, their counters and calls), `exhibits` (five public bugs at work), `play` (the engine of the page "Play"),
`planes` (other programs that execute its plans), `mirrored` (a mirror that loses messages), `boundaries` (the requests
that a decode step must visit), `helpers` (several requests admitted together, one that is always freed). With torch:
`tensors` (slots, online softmax, 8 bits), `quantization_error` (the error of 8 bits), `watched` (an engine whose
batches are kept), `generation` (texts from this engine), `torch_plane` (PyTorch for those plans), `served` (a server in
the same process).

Then the contents of cells: `notebook` (players with buttons), `element` (the figure), `small_cache` (a cache behind
buttons), `chain` (two prompts and their block hashes), `lever` (a slider over pictures) and `levers` (those of the
notebooks), `instrument` (a drawing with controls), `instruments` (those of blocks and hashes), `instruments_of_steps`
(those of steps, kernels and seconds) and `six_servers` (their symptoms and causes), `challenge` (tasks for one of
these), `predict` (questions that lock their answers), `chart` (lines, areas and bars, drawn by matplotlib),
`slot_map` (a memory's slots as a table), `trusted` (a sentence in place of a drawing that a notebook may not show),
`needs` (packages that only notebooks need).
"""
