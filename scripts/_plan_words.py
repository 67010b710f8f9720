"""Writes the words of a plan as keyword arguments, from their declarations in stagedb/plans/aspects.

Type checkers and editors read the file; the program itself does not need it. `--check` checks whether it is current.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from stagedb.api.python_words import KEYWORDS
from stagedb.mentions import shown_in
from stagedb.plans.aspects import GRAPH_WORDS, PLAN_WORDS, PlanWord

FILE = Path(__file__).parents[1] / "stagedb" / "api" / "plan_keywords.py"
WIDTH = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/plan_words", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is not current")
    check = parser.parse_args().check
    current = FILE.read_text(encoding="utf-8") == text()
    if check:
        if not current:
            print("stagedb/api/plan_keywords.py differs from the declared words of a plan: run scripts/plan_words")
        return 0 if current else 1
    if not current:
        FILE.write_text(text(), encoding="utf-8")
    print(f"{len(PLAN_WORDS)} words, {'nothing to write' if current else 'written'}")
    return 0


def text() -> str:
    """The text of the file."""
    layout = [word for name, word in PLAN_WORDS.items() if name not in GRAPH_WORDS]
    return _FILE.format(graph=_keywords(GRAPH_WORDS.values()), layout=_keywords(layout))


def _keywords(words: Iterable[PlanWord]) -> str:
    return "\n".join(f"{_typed(word)}\n{_described(word)}" for word in words)


def _typed(word: PlanWord) -> str:
    """The keyword with its type, as ruff formats it."""
    line = f"    {word.name}: {_type(word)}"
    if len(line) <= WIDTH:
        return line
    choices = "\n".join(f'        "{choice}",' for choice in word.choices)
    return f"    {word.name}: Literal[\n{choices}\n    ]"


def _type(word: PlanWord) -> str:
    if word.choices:
        values = ", ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in word.choices)
        return f"Literal[{values}]"
    if word.about.shares:
        return "Sequence[float] | str"
    if word.about.rows:
        return "Sequence[Sequence[int]] | Sequence[str] | str"
    return _TYPES.get(word.kind) or str(word.kind.__name__)


def _described(word: PlanWord) -> str:
    help_ = shown_in(KEYWORDS, word.help).replace("  [", " [")
    lines = textwrap.wrap(f'"""{help_}', WIDTH - 4 - len('"""'), break_on_hyphens=False)
    return "\n".join(f"    {line}" for line in lines) + '"""'


_TYPES: Mapping[type, str] = {tuple: "Sequence[int] | str", list: "Sequence[str] | str"}
"""The types of lists: a text is a list in the form of the command line."""

_FILE = '''"""The words of a plan as keyword arguments, for type checkers and editors.

`scripts/plan_words` writes this file from the declarations in `stagedb.plans.aspects`: change those.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class GraphWords(TypedDict, total=False):
    """Words that change the structure of a graph. See `stagedb.plans.GraphOptions`."""

{graph}


class PlanWords(GraphWords, total=False):
    """Words that lay a training step out over ranks. See `stagedb.plans.Plan`."""

{layout}
'''

if __name__ == "__main__":
    sys.exit(main())
