"""The section of a report about its provenance: versions, inputs by their digests, the commands that make it again."""

from collections.abc import Mapping, Sequence
from html import escape

from stagedb.reports.page_parts import facts

Made = Mapping[str, str]
"""Facts of a provenance by name."""


def provenance_section(made: Sequence[tuple[str, Made]], what: str = "page") -> str:
    """The section; empty without facts. made: the facts of each step, with its name where there are several. what: the
    same inputs make again.
    """
    shown = [(name, each) for name, each in made if each]
    if not shown:
        return ""
    parts = [f"{f'<h3>{escape(name)}</h3>' if name else ''}{facts(each)}" for name, each in shown]
    columns = f'<div class="columns">{"".join(f"<div>{part}</div>" for part in parts)}</div>'
    return (
        "<section><h2>How this was made</h2><p>The same inputs, by their digests, with the same versions make the same "
        f"{what}.</p>{columns if len(parts) > 1 else parts[0]}</section>"
    )
