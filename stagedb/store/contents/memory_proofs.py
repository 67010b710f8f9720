"""What the memory of rank classes must have, by its own digest and by its levels."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from stagedb.files import shown
from stagedb.store.contents.comparisons import Row, one_each, without_none
from stagedb.store.dump_contents import ThingContent


def memory_digest(row: Mapping[str, Any]) -> str:
    """sha256 of the memory of a class, for any order of its levels and tensors. row: as `memory/record` takes it."""
    levels = sorted((each["moment"], each["category"], each["bytes"]) for each in row["levels"])
    tensors = sorted((without_none(each) for each in row["tensors"]), key=lambda each: int(each["place"]))
    content = [row["class"], row["task"], row["op"], without_none(row["values"]), levels, tensors]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def memory_problems(section: ThingContent) -> Iterator[str]:
    """What is wrong with the memory of an instance."""
    tasks = _ends(section, "PEAKS_IN", "Memory", "Task")
    ops, syms = _ends(section, "PEAKS_AT", "Memory", "Op"), _ends(section, "COPY_OF", "MemoryTensor", "SymTensor")
    memories = section.nodes.get("Memory", {})
    yield from one_each("PEAKS_IN", section.edges.get(("PEAKS_IN", "Memory", "Task"), ()), memories)
    for found, kind in ((ops, ("PEAKS_AT", "Memory", "Op")), (syms, ("COPY_OF", "MemoryTensor", "SymTensor"))):
        yield from one_each(kind[0], section.edges.get(kind, ()), sorted(found))
    levels, tensors = _below(section, "MemoryLevel"), _below(section, "MemoryTensor")
    for id, (_, parent, values) in memories.items():
        held = sum(level["bytes"] for level in levels[id] if level["moment"] == "peak")
        if values["peak"] != held:
            yield f"peak of Memory {shown(id)} is {values['peak']}, and its levels give {held}"
        if f"{section.id}/{values['class']}" != parent:
            yield f"Memory {shown(id)} belongs to another class"
        if any(each["class"] != values["class"] for each in (*levels[id], *tensors[id])):
            yield f"a part of Memory {shown(id)} has another class"
        row = {
            "class": values["class"],
            "task": tasks[id],
            "op": ops.get(id),
            "values": {name: value for name, value in values.items() if name not in ("id", "content")},
            "levels": levels[id],
            "tensors": [_tensor(each, syms.get(each["id"])) for each in tensors[id]],
        }
        if values.get("content") not in (None, memory_digest(row)):
            yield f"the content of Memory {shown(id)} does not match its digest"


def _tensor(values: Row, sym: str | None) -> Row:
    own = ("name", "layer", "category", "count", "bytes")
    return {"place": int(values["id"].rpartition("/")[2]), "sym": sym, **{name: values.get(name) for name in own}}


def _below(section: ThingContent, label: str) -> Mapping[str, list[Row]]:
    """The properties of nodes by the id of the node that they belong to."""
    found = defaultdict[str, list[Row]](list)
    for _, parent, values in section.nodes.get(label, {}).values():
        found[str(parent)].append(values)
    return found


def _ends(section: ThingContent, type_: str, source: str, target: str) -> dict[str, str]:
    return {start: end for start, end, _ in section.edges.get((type_, source, target), ())}
