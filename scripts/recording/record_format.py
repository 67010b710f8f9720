"""A recorded step as a record: the format of `tests/validation/records.json`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scripts.recording.steps import Event, Sent, Step, Work, run_length

PHASES = ("forward", "backward", "recompute", "optimizer")
SCALARS = ("count", "out_numel", "in_bytes", "out_bytes")


def flops_of(events: Sequence[Event]) -> dict[str, Any]:
    """FLOPs by phase, and their totals. `attention_causal` leaves masked pairs out."""
    words = ("matmul", "attention", "attention_causal")
    phases = {each.phase for each in events if isinstance(each, Work)} | {"forward", "backward"}
    found: dict[str, Any] = {phase: dict.fromkeys(words, 0) for phase in PHASES if phase in phases}
    for event in events:
        if isinstance(event, Work):
            row = found[event.phase]
            if "attention" in event.name:
                row["attention"] += event.flops
                row["attention_causal"] += event.seen
            else:
                row["matmul"] += event.flops
    return found | {f"total_{word}": sum(found[phase][word] for phase in PHASES if phase in found) for word in words}


def order_of(events: Sequence[Event]) -> dict[str, Any]:
    """Collectives and operators by row, and the program order by the ids of rows."""
    calls: dict[Event, int] = {}
    works: dict[Event, int] = {}
    counts: dict[Event, int] = {}
    words: list[str] = []
    for event in events:
        rows, letter = (calls, "c") if isinstance(event, Sent) else (works, "m")
        words.append(f"{letter}{rows.setdefault(event, len(rows))}")
        counts[event] = counts.get(event, 0) + 1
    return {
        "collectives": [
            _sent(event, place, counts[event]) for event, place in calls.items() if isinstance(event, Sent)
        ],
        "collective_order": run_length([word[1:] for word in words if word[0] == "c"]),
        "matmuls_and_attention": [
            {
                "id": f"m{place}",
                "phase": event.phase,
                "op": event.name,
                "dims": list(event.dims),
                "flops": event.flops,
                "count": counts[event],
            }
            for event, place in works.items()
            if isinstance(event, Work)
        ],
        "timeline": run_length(words),
        "dims_of": "matmul [batch,] m, n, k; attention batch, q heads, kv heads, q length, kv length, head dim",
    }


def _sent(event: Sent, place: int, count: int) -> dict[str, Any]:
    row = {
        "id": place,
        "phase": event.phase,
        "op": event.kind,
        "axis": event.axis,
        "group_size": event.group,
        "dtype": event.dtype,
        "count": count,
        "bytes_in": event.bytes_in,
        "bytes_out": event.bytes_out,
    }
    return row if event.peer is None else row | {"peer": event.peer}


def categorise(step: Step, phased: bool) -> None:
    """Give the storages that the step made their categories, by when they were made and how long they lived.

    phased: the step has one forward and then one backward. Without it their phases interleave.
    """
    living: dict[Any, int] = {}
    if phased:
        for held, size in step.changes[: step.at("forward_end")]:
            living[held] = size
    for held, _ in step.changes:
        if held.category:
            continue
        if held.phase == "forward":
            held.category = ("activation" if living.get(held) else "forward_temporary") if phased else UNPHASED
        else:
            held.category = "recomputed" if held.phase == "recompute" else f"{held.phase}_temporary"


UNPHASED = "activation_or_temporary"


def memory_of(step: Step) -> dict[str, Any]:
    """Live bytes by category at the ends of phases and at the peak."""
    places = [("start", 0), *step.marks]
    spans = {name.removesuffix("_end"): (begin, end) for (_, begin), (name, end) in pairwise(places)}
    peaks = {phase: step.peak(*span) for phase, span in spans.items()}
    during = max(peaks, key=lambda phase: peaks[phase][0])
    levels = {name: dict(step.live(place)) for name, place in step.marks}
    return {
        "peak": peaks[during][0],
        "peak_during": during,
        "peak_breakdown": dict(step.live(peaks[during][1])),
        "peak_by_phase": {phase: peak for phase, (peak, _) in peaks.items()},
        "at": {name: {"total": sum(held.values()), "breakdown": held} for name, held in levels.items()},
    }


def operators_of(step: Step) -> dict[str, Any]:
    """The operators that made or changed tensors, by phase, the largest results first."""
    return {
        "ops": {
            phase: dict(sorted(rows.items(), key=lambda item: -item[1][1]))
            for phase, rows in step.operators.rows.items()
        },
        "ops_columns": list(SCALARS),
    }


def row(config: Mapping[str, Any], step: Step, about: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """One record. about: what a rank's model has apart from the step. The recorder holds no bytes of its own."""
    categorise(step, config["pp"] == 1 and config["microbatches"] == 1)
    return {
        "name": name_of(config),
        "mode": "fake",
        "config": dict(config),
        **about,
        "flops": flops_of(step.events),
        **operators_of(step),
        **order_of(step.events),
        "memory": memory_of(step),
        "recorder_bytes": 0,
        "saved_for_backward": dict(saved),
    }


def name_of(config: Mapping[str, Any]) -> str:
    """The label of a record, from its degrees."""
    if config.get("label"):
        return str(config["label"])
    degrees = [f"{word}{config[word]}" for word in ("tp", "dp", "cp", "ep", "pp") if config[word] > 1]
    return f"{config['model']}/{'-'.join(degrees) or 'single'}/rank{config['rank']}"
