"""The generated code is that of the schema, and the schema's numbers are Chakra's."""

from pathlib import Path

from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import generate_chakra as schema


def test_generating_again_gives_what_is_committed() -> None:
    made = schema.generate()
    assert sorted(made) == ["chakra_pb2.py", "chakra_pb2.pyi"]
    for name, text in made.items():
        assert Path(schema.HERE, name).read_text(encoding="utf-8") == text


def test_a_trace_on_the_wire() -> None:
    """The bytes give the field numbers, which are the format."""
    node = pb.Node(id=1, name="n", type=pb.COMM_COLL_NODE, ctrl_deps=[2], data_deps=[3, 300], duration_micros=4)
    node.attr.add(name="b", bool_val=False)
    node.attr.add(name="i", int64_val=5)
    node.attr.add(name="u", uint64_val=6)
    node.attr.add(name="t", int32_val=7)
    node.attr.add(name="s", string_val="x")
    assert node.SerializeToString() == (
        b"\x08\x01" b"\x12\x01n" b"\x18\x07" b"\x22\x01\x02" b"\x2a\x03\x03\xac\x02" b"\x38\x04"
        b"\x52\x06\x0a\x01b\xd8\x01\x00"
        b"\x52\x05\x0a\x01i\x48\x05"
        b"\x52\x05\x0a\x01u\x68\x06"
        b"\x52\x05\x0a\x01t\x38\x07"
        b"\x52\x07\x0a\x01s\xea\x01\x01x"
    )  # fmt: skip
    assert pb.GlobalMetadata(version="0.0.4").SerializeToString() == b"\x0a\x050.0.4"
    assert [pb.COMP_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE, pb.COMM_COLL_NODE] == [4, 5, 6, 7]
    assert [pb.ALL_REDUCE, pb.ALL_GATHER, pb.ALL_TO_ALL, pb.REDUCE_SCATTER] == [0, 2, 6, 7]


def test_names_are_the_projects_own() -> None:
    """Two descriptors of one name collide in a process that also loads Chakra's package."""
    assert pb.DESCRIPTOR.package == "stagedb.chakra"
    assert pb.DESCRIPTOR.name == "stagedb/traces/chakra.proto"
