"""Strategies as plug-ins of core's seams. Standard library only.

`admission`: when a waiting request may enter. The order of eviction is a part: KVCacheParts(make_queue=...), see core's
parts.
"""
