"""Tools for labs about kernels: Triton's interpreter for one file, its compiler, and a memory that records loads.

These modules import triton only when it is used. Reading order: `interpreter`, `memory_access`, `compiled`.
"""
