"""The colours of what the time of a step goes to, the same on every page, in every report and in every picture.

A style is a name of `shared/colors.css`, which has the colour for light and for dark.
"""

from collections.abc import Mapping
from typing import Final

TERM_STYLES: Final[Mapping[str, str]] = {
    "busy": "m0",
    "tp": "m8",
    "cp": "m5",
    "ep": "m6",
    "dp": "m2",
    "pp": "m7",
    "bubble": "m4",
    "idle": "m9",
    "other": "m3",
    "kv": "m1",
    "cpr": "m3",
    "cpa": "m1",
    "epn": "m3",
    "epr": "m1",
    "edp": "m3",
    "dp_replicate": "m3",
    "dp_reshard": "m1",
    "data": "m1",
    "embedding": "m1",
}
"""Styles of terms. An axis is the communication over it that nothing hides."""

EXPOSED: Final = TERM_STYLES["tp"]
"""The style of exposed communication over all axes."""

REASON_STYLES: Final[Mapping[str, str]] = {
    "compute": TERM_STYLES["busy"],
    "bubble": TERM_STYLES["bubble"],
    "idle": TERM_STYLES["idle"],
    **{f"exposed {axis}": TERM_STYLES[axis] for axis in ("tp", "cp", "ep", "dp", "pp")},
    "best": "m10",
    "memory": "m11",
    "untried": "m1",
    "other": TERM_STYLES["other"],
}
"""Styles of why plans of a search lose: that of the term by which they lose, and no two alike."""

PALETTE: Final = ("m0", "m8", "m5", "m6", "m4", "m7", "m2", "m1", "m3", "m9", "m10", "m11")
"""Styles in the order in which values have them: `k0` of `shared/candidates.css` is the first."""


def term_style(name: str) -> str:
    """The style of a term: a key of `TERM_STYLES`, or as a search calls it (`compute`, `exposed tp`).

    name: of the term.
    """
    key = "busy" if name == "compute" else name.removeprefix("exposed ")
    return TERM_STYLES.get(key, TERM_STYLES["other"])
