"""What a lab about kernels needs: Triton's interpreter for one file alone, and a memory that sees every load.

Nothing here imports triton before it is used. Reading order: `interpreter`, `memory`.
"""
