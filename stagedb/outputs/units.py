"""Units of what is printed."""

GB = 10**9
"""Bytes of a GB. Memory is printed in GB, as makers give it. Sizes that users write may have another unit."""
