"""Banned words of code and documentation, behind scripts/style. "How we write" in CONTRIBUTING.md lists them.

Python, Cypher and shell files are searched whole: comments, docstrings, errors, help and identifiers. Markdown is
searched outside code blocks and inline code.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".cypher", ".sh"}
EVERYWHERE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "stagedb", "cypher", "scripts", "tests")
"""What is searched when no path is given."""

SKIPPED = {
    "scripts/_style.py": "it has the patterns",
    "stagedb/traces/chakra_pb2.py": "protoc writes it",
    "stagedb/traces/simulators/astra_files.py": "three comments of exported files, which stay byte for byte the same",
    "tests/test_style.py": "it tests the patterns",
}
"""Files that are not searched, each with the reason."""

GAP = r"""[\s#/"']+(?:f["'])?"""
"""What separates two words of a phrase. Comments, docstrings and adjacent literals can break the line there."""

PATTERNS = {
    "say": "say|says|said|saying|unsaid",
    # Files of Python have a method `tell()`.
    "tell": r"tell(?!\(\))|tells|told|telling|untold",
    "stand": "stand(?!-alone|-in)|stands(?!-alone|-in)|stood|standing",
    "lie": "lie|lies|lain|lying",
    "habit": "habits?",
    "whatever": "whatever|whatsoever",
    "beside": "beside",
    "amiss": "amiss|awry",
    "lest": "lest",
    "in vain": "in vain",
    "so-manieth": "so-manieth|so manieth",
    "as well as it can": "as well as (?:it|they) can",
    "none of which": "none of which|of which none",
    "archaic": "thereof|whereof|herein|therein|wherein|whence|hence|hitherto|naught|nought|forthwith|albeit|upon",
    "what it is of": "what (?:it is|they are) of",
}
"""Regular expressions of each banned word, matched without regard to case."""

INVERSIONS = (
    r"(?<![A-Za-z])Of (?!course)[a-z]",
    r"[:;,][\s#/]+of (?:each|every|all|both|several|those|these|what|one|two)(?![A-Za-z])",
)
"""Clauses that name their subject after an `of`, as "Of each rank, its operators". Case matters."""

FENCE = re.compile(r"^ {0,3}(```|~~~)")
INLINE_CODE = re.compile(r"(`+)(?:(?!\1).|\n(?!\n))+?\1")
LIST_ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)]) ")


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a banned word. path: relative to the checkout. line: counted from 1. text: the line."""

    path: str
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word}: {self.text}"


def uses(paths: Sequence[str], root: Path = ROOT) -> list[Use]:
    """Uses of banned words in these files and folders, given relative to `root`."""
    return [use for path in files(paths, root) for use in uses_in(path.relative_to(root).as_posix(), path.read_text())]


def files(paths: Sequence[str], root: Path) -> Iterator[Path]:
    """Files to search, sorted. A folder gives the files in it. Raises FileNotFoundError for a missing path."""
    for name in paths:
        path = root / name
        if not path.exists():
            raise FileNotFoundError(path)
        for found in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if found.is_file() and _is_searched(found) and found.relative_to(root).as_posix() not in SKIPPED:
                yield found


def uses_in(path: str, text: str) -> list[Use]:
    """Uses of banned words in the text of one file. The suffix of `path` decides what counts as prose."""
    prose = _without_code(text) if path.endswith(".md") else text
    lines = text.splitlines()
    found = []
    for word, pattern in _compiled():
        for match in pattern.finditer(prose):
            number = prose.count("\n", 0, match.start()) + 1
            found.append(Use(path, number, word, lines[number - 1].strip()))
    return sorted(found, key=lambda use: use.line)


def _is_searched(path: Path) -> bool:
    return path.suffix in SUFFIXES or (not path.suffix and path.parent.name == "scripts")


def _compiled() -> Iterator[tuple[str, re.Pattern[str]]]:
    """A word of an identifier is a word too: `said_by`, `was_told`."""
    for word, pattern in PATTERNS.items():
        spaced = pattern.replace(" ", GAP)
        yield word, re.compile(rf"(?<![A-Za-z])(?:{spaced})(?![A-Za-z])", re.IGNORECASE)
    for pattern in INVERSIONS:
        yield "of X, Y", re.compile(pattern.replace(" ", GAP))


def _without_code(text: str) -> str:
    """Markdown with its code blocks and inline code blank. Lines keep their numbers."""
    kept = list[str]()
    fence, before, in_list = "", "", False
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
            kept.append("")
        elif fence:
            fence = "" if mark and mark[1] == fence else fence
            kept.append("")
        else:
            indented = line.startswith("    ")
            code = indented and not in_list and (not before.strip() or (before.startswith("    ") and not kept[-1]))
            in_list = bool(LIST_ITEM.match(line)) or (in_list and (not line.strip() or line.startswith("  ")))
            kept.append("" if code else line)
        before = line
    return INLINE_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), "\n".join(kept))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/style", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=EVERYWHERE, help="files and folders to search (all)")
    parser.add_argument("--count", action="store_true", help="print the number of uses by folder, not the uses")
    arguments = parser.parse_args()
    found = uses(arguments.paths)
    if arguments.count:
        folders = Counter("/".join(use.path.split("/")[:2]) if "/" in use.path else use.path for use in found)
        for folder, number in sorted(folders.items()):
            print(f"{number:5} {folder}")
    else:
        for use in found:
            print(use)
    print(f"{len(found)} uses of banned words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
