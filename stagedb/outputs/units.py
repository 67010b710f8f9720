"""Units of what is printed."""

from collections.abc import Mapping

GB = 10**9
"""Bytes of a GB. Memory is printed in GB, as makers give it. Sizes that users write may have another unit."""


def reserve_text(room: int, reserve: Mapping[str, int]) -> str:
    """How much of an accelerator's memory is not for tensors, and what holds it; empty without a reserve.

    room: bytes for tensors. reserve: the other bytes of the accelerator, by what holds them.
    """
    if not reserve:
        return ""
    held = sum(reserve.values())
    parts = ", ".join(f"{name} {size / GB:,.2f} GB" for name, size in reserve.items())
    return f"{held / GB:,.2f} GB of an accelerator's {(room + held) / GB:,.2f} GB are reserved: {parts}"
