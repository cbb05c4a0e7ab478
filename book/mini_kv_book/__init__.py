"""What the book is built with: fences that run code, figures that the engine draws, links, formulas, diagrams, checks.

Everything here is a Markdown extension or a fence's formatter, so that MkDocs and Zensical build the same site. Reading
order: places, runs, fences, extension; then what stands alone: diagram, maths, lab, generate, leaks.
"""
