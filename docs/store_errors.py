"""The errors of the store layer, from its code: cog writes docs/store-errors.md with it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stagedb.mentions import OPTIONS, Mention, VerbCall, Word, shown_in

LAYER = Path(__file__).parents[1] / "stagedb" / "store"

ANSWERS = Path(__file__).parents[1] / "stagedb" / "files" / "stored_values.py"
"""What the core checks of the values that a store answers."""

SETTINGS = ("store_targets", "store_settings", "settings_files")

HEADINGS = {
    "Reach a store": (*SETTINGS, "failures", "connection", "opening", "migrations"),
    "The embedded engine": ("embedded", "private_directory"),
    "While others work": ("leases",),
    "Names, tags, notes and saved queries": ("naming", "saved_queries"),
    "Queries": ("free_queries", "rank_nodes"),
    "Graphs, instances, memory, profiles, searches, runs and matches": (
        *("graphs", "instances", "stored_programs", "profiles", "exports", "searches", "runs", "matches"),
    ),
    "Damaged content": ("row_checks", "stored_values", "instance_digests", "content_proofs", "run_reading"),
    "Dumps": ("dump_contents", "dumping"),
    "Statements of stagedb itself": ("statements",),
}
"""By heading the modules whose errors are below it."""

ABOUT = {
    "Damaged content": "The first ones are reasons, which an error of the form *what is damaged in the store (reason)* "
    "has. It ends with what to do: make the thing again, or `stagedb store check`.",
    "Dumps": "A reason alone, such as *label … is there twice*, comes in an error that has the file and the line "
    "before it, and after it: *Nothing was written; make the dump again*.",
    "Statements of stagedb itself": "Users see these for the header of a saved query. Otherwise they are errors of "
    "stagedb.",
}


def errors(layer: Path = LAYER) -> str:
    """A list for each heading. Raises ValueError for a module with errors that no heading has."""
    found = {path.stem: [*messages(path)] for path in (*sorted(layer.rglob("*.py")), ANSWERS)}
    listed = {module for modules in HEADINGS.values() for module in modules}
    missing = [module for module, texts in found.items() if texts and module not in listed]
    if missing:
        raise ValueError(f"docs/store_errors.py lists no heading for errors of {', '.join(missing)}")
    parts = []
    for heading, modules in HEADINGS.items():
        lines = [line for module in modules for line in found.get(module, ())]
        about = f"{ABOUT[heading]}\n\n" if heading in ABOUT else ""
        parts.append(f"## {heading}\n\n{about}" + "\n".join(f"- {line}" for line in lines) + "\n")
    return "\n".join(parts)


def messages(path: Path) -> Iterator[str]:
    """The texts of a module's errors, in its order; what differs from case to case is in capitals, or `…`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            value = node.value.value if isinstance(node.value, ast.Constant) else _text(node.value, constants)
            constants |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args and _is_error(node.func)]
    for made in sorted(calls, key=lambda node: node.lineno):
        text = " ".join(_text(made.args[0], constants).split())
        # A text that is made elsewhere is listed there.
        if re.search("[a-z]", text):
            yield text


def _is_error(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and (
        function.id in ("ConnectionLost", "OutOfMemory")
        or (function.id.endswith("Error") and function.id != "AssertionError")
    )


def _name(node: ast.expr) -> str:
    """What differs from case to case, by the name that the code has for it."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").upper()
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").upper()
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value.upper()
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "upper"):
        return _name(node.func.value)
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return _name(node.args[0])
    return "…"


def _mention(node: ast.Call) -> Mention | None:
    """What a message mentions, `Word(…)` or `call(…)`; None for another call."""
    if not isinstance(node.func, ast.Name) or node.func.id not in ("Word", "call"):
        return None
    values = [each.value if isinstance(each, ast.Constant) else _name(each) for each in node.args]
    if node.func.id == "Word":
        return Word(str(values[0]), values[1] if len(values) > 1 else None)
    verb, *arguments = map(str, values)
    words = [
        Word(str(each.arg), each.value.value if isinstance(each.value, ast.Constant) else _name(each.value))
        for each in node.keywords
    ]
    return VerbCall(verb, tuple(arguments), tuple(words))


def _text(node: ast.expr, constants: dict[str, object]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, constants) for each in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Call):
        mention = _mention(node.value)
        return _name(node.value) if mention is None else shown_in(OPTIONS, str(mention))
    if isinstance(node, ast.FormattedValue):
        if isinstance(node.value, ast.Name) and isinstance(constants.get(node.value.id), str | int | float):
            return str(constants[node.value.id])
        return _name(node.value)
    if isinstance(node, ast.BinOp):
        return _text(node.left, constants) + _text(node.right, constants)
    return "…"
