"""Recorded runs as small files: what no reader of traces needs is left out of them. Without torch."""

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.recording.run_requests import RunRequest


def saved_run(found: Path, request: RunRequest, output: Path, whole: bool) -> list[Path]:
    """Write the files of a run, from those that its processes wrote. Returns the files.

    whole: leave traces as they are, but for names of the machine.
    """
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in range(request.ranks):
        trace = json.loads((found / f"rank{rank}.json").read_text(encoding="utf-8"))
        nodes = json.loads((found / f"rank{rank}.et.json").read_text(encoding="utf-8"))
        for name in ("traceName", "host_name", "ERROR"):
            trace.pop(name, None)
        if not whole:
            kept = trim_trace(trace)
            trim_nodes(nodes, kept)
        written += [_written(output / f"rank{rank}.json.gz", trace), _written(output / f"rank{rank}.et.json.gz", nodes)]
    path = output / "expected.jsonl"
    path.write_text(_expected(found, request), encoding="utf-8")
    return [*written, path]


def _expected(found: Path, request: RunRequest) -> str:
    """What was asked for, and then a line for each rank: what it communicated in a step."""
    about: dict[str, Any] = {
        "program": request.program,
        "steps": request.steps,
        "config": request.config,
        "sleep": request.sleep and asdict(request.sleep),
        "slow_link": request.slow_link and asdict(request.slow_link),
        "fault": request.fault,
    }
    lists = [(found / f"rank{rank}.sent.json").read_text(encoding="utf-8") for rank in range(request.ranks)]
    rows = (json.dumps(json.loads(each), separators=(",", ":")) for each in lists)
    return "\n".join([json.dumps(about), *rows]) + "\n"


def _written(path: Path, content: dict[str, Any]) -> Path:
    text = json.dumps(content, separators=(",", ":")).encode()
    # Without a time and a name, so that the same content gives the same file.
    path.write_bytes(gzip.compress(text, 9, mtime=0))
    return path


_LEFT_OUT = (
    *("Ev Idx", "External id", "Fwd thread id", "Sequence number", "Concrete Inputs", "Input Strides"),
    *("Addr", "finished"),
)
"""Arguments of events that no reader needs."""


def trim_trace(trace: dict[str, Any]) -> set[int]:
    """Leave operators that another one called out, unless one of them communicates. Returns the ids that are left."""
    events = [event for event in trace["traceEvents"] if event.get("ph") in ("X", "M") or event["name"] == "[memory]"]
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    inner = _inner(sorted(operators, key=lambda event: (event["tid"], event["ts"], -event["dur"])))
    kept = [event for event in events if id(event) not in inner]
    for event in kept:
        args = event.get("args", {})
        for name in _LEFT_OUT:
            args.pop(name, None)
        if not multiplies(event["name"]):
            args.pop("Input Dims", None)
            args.pop("Input type", None)
    trace["traceEvents"] = kept
    return {event["args"]["Record function id"] for event in kept if "Record function id" in event.get("args", {})}


def _inner(operators: list[dict[str, Any]]) -> set[int]:
    """The operators, by thread and start, that are inside one which does not communicate, nor calls one that does.

    Matmuls are not among them if shapes were recorded.
    """
    shaped = any("Input Dims" in event.get("args", {}) for event in operators)
    above: list[list[dict[str, Any]]] = []
    stack: list[dict[str, Any]] = []
    opened = set()
    for event in operators:
        while stack and (stack[-1]["tid"] != event["tid"] or _end(stack[-1]) <= event["ts"]):
            stack.pop()
        above.append(list(stack))
        stack.append(event)
        if communicates(event["name"]):
            opened |= {id(each) for each in stack}
        elif event["name"].startswith("autograd::engine"):
            opened.add(id(event))
    return {
        id(event)
        for event, around in zip(operators, above, strict=True)
        if any(id(each) not in opened for each in around)
        and not communicates(event["name"])
        and not (shaped and multiplies(event["name"]) and not _is_in_attention(event, around))
    }


def _is_in_attention(event: dict[str, Any], around: list[dict[str, Any]]) -> bool:
    """Whether a matmul is a part of another operator that multiplies. A distributed tensor's calls itself."""
    return any(multiplies(each["name"]) and each["name"] != event["name"] for each in around)


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def communicates(name: str) -> bool:
    """Whether an operator is one of a collective."""
    return name.startswith(("c10d::", "gloo:", "_c10d_functional", "record_param_comms"))


def multiplies(name: str) -> bool:
    """Whether an operator is a matmul or an attention, as autograd calls them."""
    return name.startswith(("aten::mm", "aten::bmm", "aten::addmm", "aten::_scaled_dot_product"))


def trim_nodes(content: dict[str, Any], kept: set[int]) -> None:
    """Leave only nodes of collectives, process groups and threads in an execution trace, and of attributes those set.

    kept: ids of the events that the trimmed trace has.
    """
    nodes = content["nodes"]
    above = {node["id"]: node["ctrl_deps"] for node in nodes}
    chosen = {
        node["id"]
        for node in nodes
        if node["name"].startswith(("[", "##")) or (communicates(node["name"]) and _rf_id(node) in kept)
    }
    for node in nodes:
        while node["ctrl_deps"] not in chosen and node["ctrl_deps"] in above:
            node["ctrl_deps"] = above[node["ctrl_deps"]]
        node["attrs"] = [each for each in node["attrs"] if each["name"] == "rf_id" or each["value"] not in ("", 0, -1)]
    content["nodes"] = [node for node in nodes if node["id"] in chosen]


def _rf_id(node: dict[str, Any]) -> Any:
    return next((each["value"] for each in node["attrs"] if each["name"] == "rf_id"), None)
