"""Names of files made from texts of a store, such as a model's name: one part of a path, and nothing else."""

import re

_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 100


def file_name(text: str) -> str:
    """A file's name for a text: its letters, digits, `.`, `_` and `-`, with `_` for everything else.

    It has no separator of paths, does not begin with a dot or a hyphen, and is short. A text of none gives `unnamed`.
    """
    return _OTHERS.sub("_", text)[:_LONGEST].strip("._-") or "unnamed"
