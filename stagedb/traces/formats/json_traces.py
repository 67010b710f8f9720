"""A trace as JSON, with the keys that Chakra's own reader of JSON traces looks for."""

import io
import json
from typing import TYPE_CHECKING, Any

from stagedb.mentions import Word
from stagedb.traces.formats.trace_format import RankFiles, TraceFormat

if TYPE_CHECKING:
    from stagedb.traces import chakra_pb2 as pb


def as_json(data: bytes) -> bytes:
    """The JSON text of a trace's bytes: metadata, and one object a node with its fields and attributes side by side.

    data: messages of Chakra, each with its length before it.
    """
    # Writers of plain traces work without protobuf.
    from google.protobuf.proto import parse_length_prefixed

    from stagedb.traces import chakra_pb2 as pb

    stream = io.BytesIO(data)
    metadata = parse_length_prefixed(pb.GlobalMetadata, stream) or pb.GlobalMetadata()
    nodes = []
    while (node := parse_length_prefixed(pb.Node, stream)) is not None:
        nodes.append(_node(node))
    document = {"schema": metadata.version, **_attributes(metadata), "workload_graph": nodes}
    return json.dumps(document, separators=(",", ":")).encode()


def _node(node: "pb.Node") -> dict[str, Any]:
    return {
        "Id": node.id,
        "Name": node.name,
        "NodeType": node.type,
        "ctrl_deps": list(node.ctrl_deps),
        "data_deps": list(node.data_deps),
        "runtime": node.duration_micros,
        **_attributes(node),
    }


def _attributes(message: "pb.Node | pb.GlobalMetadata") -> dict[str, Any]:
    return {each.name: getattr(each, each.WhichOneof("value") or "doc_string") for each in message.attr}


JSON = TraceFormat(
    name="json",
    help="the same as JSON",
    what="one a rank: {name}.<rank>.json",
    files=RankFiles("json", as_json),
    takes=frozenset({"compress", "format", "resume", "simulator"}),
    refusal=f"{Word('format', 'json')} writes traces that a replay does not read",
)
