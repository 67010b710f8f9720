"""What the rank classes of a stored instance issue: its rows as columns, and every task's nodes in issue order.

Traces are written from it, and timelines are computed from it.
"""
