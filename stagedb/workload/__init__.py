"""The operators that the rank classes of a stored instance issue: its rows as columns, and each task's nodes in order.

Traces are written from these columns, and timelines are computed from them.
"""
