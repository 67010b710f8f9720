"""Units of what is printed."""

GIB = 1 << 30
"""Bytes of a GiB, in which memory is printed."""
