"""What a node of `record_param_comms` in an execution trace has of a collective, in files of all ages.

Its inputs are tensors, then the sequence number, the group, a rank, the name, how the operands are split, and in newer
files the group's first rank, stride and size. The newest have attributes with the names of these, too. A group is its
name and description, or in older files a number, which the list of groups has as `backend_id`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.runs.clocks import MEETINGS, MESSAGES
from stagedb.runs.kernel_names import collective_kind
from stagedb.runs.kineto_events import Arguments, recorded
from stagedb.runs.rank_trace import RecordedCollective

RECORD = "record_param_comms"


@dataclass(frozen=True)
class RecordedCall:
    """A collective or message. place: the rank's own in its group, None where the call has another rank."""

    collective: RecordedCollective
    place: int | None


def recorded_call(
    values: Sequence[Any],
    attributes: Mapping[str, Any],
    groups: Sequence[Any],
    operands: tuple[int | None, int | None, str],
) -> RecordedCall | None:
    """The collective of a node; None for what is none, such as a wait.

    values: its inputs. attributes: by name. groups: rows of the file's list. operands: elements of what goes in and of
    what comes out, and their type.
    """
    at = next((at for at, each in enumerate(values) if isinstance(each, str) and at >= 3), None)
    if at is None or collective_kind(str(values[at])) is None:
        return None
    sequence, group, rank = values[at - 3 : at]
    name, description = _group(group, groups)
    rest = values[at + 3 :]
    first, stride, size = rest if len(rest) == 3 else (None, None, rest[0] if len(rest) == 1 else None)
    sent, received, dtype = operands
    found = recorded(
        Arguments(
            collective=values[at],
            group=attributes.get("pg_name", name),
            description=attributes.get("pg_desc", description),
            first=attributes.get("global_rank_start", first),
            stride=attributes.get("global_rank_stride", stride),
            size=attributes.get("pg_size", size),
            dtype=attributes.get("dtype", dtype),
            sent=attributes.get("in_msg_nelems", sent),
            received=attributes.get("out_msg_nelems", received),
            # The newest files have a pair: whether it is a message is the other half.
            sequence=sequence[0] if isinstance(sequence, list) and sequence else sequence,
            source=rank,
            target=rank,
        )
    )
    if found is None:
        return None
    # In other calls the rank is the root, or the other end of a message.
    own = found.kind in MEETINGS and type(rank) is int and rank >= 0 and found.kind not in MESSAGES
    return RecordedCall(found, rank if own else None)


def _group(group: Any, rows: Sequence[Any]) -> tuple[str | None, str | None]:
    """Name and description of a group; None where the file does not have them."""
    if isinstance(group, list) and len(group) == 2 and group[0]:
        return str(group[0]), str(group[1])
    row = next((row for row in rows if isinstance(row, dict) and row.get("backend_id") == group), None)
    return (None, None) if row is None or group is None else (str(row.get("pg_name")), row.get("pg_desc"))
