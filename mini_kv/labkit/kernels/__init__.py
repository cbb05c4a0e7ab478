"""What a lab about kernels needs: Triton's interpreter, for one file alone, its compiler, and a memory that sees loads.

Nothing here imports triton before it is used. Reading order: `interpreter`, `memory_access`, `compiled`.
"""
