"""Strategies as plug-ins of core's seams. Standard library only.

`admission`: when a waiting request may enter.
"""
