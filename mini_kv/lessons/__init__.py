"""What notebooks and chapters call, and nothing else does: numbers for charts, and controls for cells.

In reading order, first the numbers, counted on the real engine: `curves` (waste, hit rates, memory over time),
`timeline` (what each request does in each step), `windows` (what groups of layers hold and find), `policies` (a
scenario under another eviction policy), `tiers_in_letters` (a cache with tiers, in letters), `misbehave` (servers with
a fault each, their counters and calls), `boundaries` (which requests a decode step has to visit), `helpers` (several
requests admitted together, one that is freed in any case). With torch: `tensors` (slots, online softmax, 8 bits),
`quantization_error` (what 8 bits cost), `watched` (an engine whose batches are kept), `generation` (texts that this
engine writes).

Then what a cell shows: `notebook` (players with buttons), `element` (the figure among them), `small_cache` (a cache
behind buttons), `chain` (two prompts and their block hashes), `lever` (a slider over pictures) and `levers` (those of
the notebooks), `instrument` (a drawing under the reader's hand), `instruments` (those of blocks and names) and
`instruments_of_steps` (those of steps, kernels and seconds), `challenge` (what is to be brought about with one of
these), `predict` (questions that lock their answers), `chart` (lines, areas and bars, drawn by matplotlib), `slot_map`
(a memory's slots as a table), `needs` (packages that only notebooks need).
"""
