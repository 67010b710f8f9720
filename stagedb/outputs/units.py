"""Units of what is printed."""

from collections.abc import Mapping

GB = 10**9
"""Bytes of a GB. Memory is printed in GB, as makers give it. Sizes that users write may have another unit."""


def reserve_text(room: int, reserve: Mapping[str, int]) -> str:
    """What an accelerator's memory consists of: what is for tensors, and what holds the rest; empty without a reserve.

    Makers round the memory in the name of an accelerator (80GB), so that its bytes are here in GiB, too.

    room: bytes for tensors. reserve: the other bytes of the accelerator, by what holds them.
    """
    if not reserve:
        return ""
    held = sum(reserve.values())
    parts = ", ".join(f"{name} {size / GB:,.2f} GB" for name, size in reserve.items())
    whole = f"{(room + held) / GB:,.2f} GB ({(room + held) / 2**30:,.2f} GiB)"
    return f"an accelerator has {whole}: {room / GB:,.2f} GB for tensors, {held / GB:,.2f} GB reserved ({parts})"
