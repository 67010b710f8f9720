"""Traces with a profile's durations: each node has its lane's, in every form of a set, and they can be read back."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Profile, Stagedb, unpack, validate
from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store
from stagedb.systems import System, parse_system
from stagedb.traces import chakra_pb2 as pb
from tests.api.test_client import CARD
from tests.traces.plain import parse
from tests.traces.written import files_of

SLOW = parse_system(
    json.dumps(
        {
            "name": "slow",
            "sources": ["made up"],
            "accelerator": {
                "name": "slow",
                "peak": {"bf16": 0.007, "fp32": 0.003},
                "memory": {"bandwidth": 1.3, "capacity": 1},
                "launch": 100,
            },
            "network": [
                {"name": "inner", "size": 2, "kind": "switch", "bandwidth": 3, "latency": 10},
                {"name": "outer", "size": None, "kind": "switch", "bandwidth": 0.7, "latency": 5000},
            ],
        }
    )
)
"""Every second stage boundary is between nodes, so stages of one class take different times."""

EIGHT = dataclasses.replace(CARD, name="eight", layers=8)
PLAN: dict[str, Any] = {"pp": 8, "tp": 1, "dp": 1, "global_batch_size": 8, "schedule": "gpipe"}


@pytest.fixture
def db(store: Store) -> Stagedb:
    return Stagedb(store)


def nodes_of(directory: Path, rank: int) -> list[pb.Node]:
    (path,) = directory.glob(f"*.{rank}.et")
    return parse(path.read_bytes())[1]


def ns_of(node: pb.Node) -> int:
    (found,) = (each.int64_val for each in node.attr if each.name == "duration_ns")
    return int(found)


def untimed(node: pb.Node) -> pb.Node:
    plain = pb.Node.FromString(node.SerializeToString())
    plain.ClearField("duration_micros")
    del plain.attr[:]
    plain.attr.extend(each for each in node.attr if each.name != "duration_ns")
    return plain


def by_stage(profile: Profile) -> dict[int, dict[str, int]]:
    """Durations [ns] of each stage by the name of the op, in plans whose stages are one lane each."""
    net = profile.job.times.network
    lanes = zip(net.lanes, net.columns, profile.job.durations.ns, strict=True)
    return {lane.stage: dict(zip(columns.ops.name, ns.tolist(), strict=True)) for lane, columns, ns in lanes}


def test_nodes_take_as_long_as_in_the_profile(db: Stagedb, tmp_path: Path) -> None:
    profile = db.profile(model=EIGHT, system=SLOW, scale=["stage:3=1.7", "stage:0=0.01"], name="mine", **PLAN)
    done = db.export(profile="mine", out=tmp_path / "timed", replay=True)
    db.export(profile.instance.id, out=tmp_path / "plain")
    assert done.instance == dataclasses.replace(profile.instance, new=False)
    assert done.profile == dataclasses.replace(profile.info, new=False)
    report = validate(done.path)
    assert (report.faults, report.nodes) == ((), done.nodes)
    wanted = by_stage(profile)
    for rank in range(8):
        timed = nodes_of(tmp_path / "timed", rank)
        assert [untimed(node) for node in timed] == nodes_of(tmp_path / "plain", rank)
        for node in timed:
            ns = ns_of(node)
            assert ns == wanted[rank][node.name.rpartition(" ")[0]]
            assert (ns == 0) == (node.type == pb.COMM_RECV_NODE)
            if node.type != pb.COMP_NODE:
                assert node.duration_micros == (max(1, int(ns / 1000 + 0.5)) if ns else 0)
            else:
                # Rounded so that those of compute add up.
                assert abs(node.duration_micros * 1000 - ns) < 1000
    assert any(0 < ns_of(node) < 500 for node in nodes_of(tmp_path / "timed", 0))


def test_a_class_falls_apart_where_its_lanes_differ(db: Stagedb, tmp_path: Path) -> None:
    profile = db.profile(model=EIGHT, system=SLOW, **PLAN)
    assert profile.instance.classes == 3
    db.export(profile=profile.info.id, out=tmp_path / "timed")
    manifest = json.loads((tmp_path / "timed" / "manifest.json").read_text())
    assert manifest["profile"] == {"id": profile.info.id, "system": "slow", "step": profile.step}
    assert manifest["system"] == SLOW.to_dict()
    rows = manifest["classes"]
    # Every second stage in the middle sends its activations to another node.
    assert [(row["lanes"], row["ranks"]) for row in rows] == [
        ([0], "0"), ([1, 3, 5], "1-5:2"), ([2, 4, 6], "2-6:2"), ([7], "7"),
    ]  # fmt: skip
    assert rows[1]["class"] == rows[2]["class"]
    assert rows[1]["digest"] == rows[2]["digest"]
    db.export(profile.instance.id, system=SLOW, out=tmp_path / "plain")
    assert (tmp_path / "timed" / "network.yml").read_text() == (tmp_path / "plain" / "network.yml").read_text()
    timed, plain = (json.loads((tmp_path / name / "system.json").read_text()) for name in ("timed", "plain"))
    changed = {name for name, value in plain.items() if timed[name] != value}
    assert changed == {"roofline-enabled", "local-mem-bw"}


def test_blocks_take_as_long_as_their_operators(db: Stagedb, tmp_path: Path) -> None:
    profile = db.profile(model=CARD, system=SLOW, pp=2, tp=2, ranks=4)
    for granularity in ("op", "block"):
        db.export(profile=profile.info.id, granularity=granularity, out=tmp_path / granularity)
    assert validate(tmp_path / "block").faults == ()
    for rank in range(4):
        fine, coarse = (nodes_of(tmp_path / granularity, rank) for granularity in ("op", "block"))
        assert len(coarse) < len(fine)
        assert sum(map(ns_of, coarse)) == sum(map(ns_of, fine))
        # Each block is the operators between two communications.
        spans, sums = ([0], [0])
        for node in fine:
            spans = [*spans, 0] if node.type != pb.COMP_NODE else [*spans[:-1], spans[-1] + ns_of(node)]
        for node in coarse:
            sums = [*sums, 0] if node.type != pb.COMP_NODE else [*sums[:-1], sums[-1] + ns_of(node)]
        assert spans == sums
    with pytest.raises(UsageError, match=r"holds several operators.*granularity='op'"):
        db.profile(profile.instance.id, system=SLOW, durations=tmp_path / "block")


def test_every_form_of_a_set_has_them(db: Stagedb, tmp_path: Path) -> None:
    profile = db.profile(model=EIGHT, system=SLOW, **PLAN).info.id
    whole = db.export(profile=profile, out=tmp_path / "whole")
    db.export(profile=profile, out=tmp_path / "all.packed", packed=True)
    unpack(tmp_path / "all.packed", out=tmp_path / "unpacked")
    assert files_of(tmp_path / "unpacked") == files_of(whole.path)
    db.export(profile=profile, out=tmp_path / "some", only="1-2,7")
    unpack(tmp_path / "all.packed", out=tmp_path / "unpacked-some", only="1-2,7")
    assert files_of(tmp_path / "unpacked-some") == files_of(tmp_path / "some")
    assert validate(tmp_path / "some").faults == ()
    for part in (0, 1):
        db.export(profile=profile, out=tmp_path / f"part{part}", shard=f"{part}/2")
    traces = {path.name: path.read_bytes() for path in tmp_path.glob("part*/*.et")}
    assert traces == {path.name: path.read_bytes() for path in whole.path.glob("*.et")}
    db.export(profile=profile, out=tmp_path / "json", format="json")
    unpack(tmp_path / "all.packed", out=tmp_path / "unpacked-json", format="json")
    assert files_of(tmp_path / "unpacked-json") == files_of(tmp_path / "json")
    document = json.loads((tmp_path / "json" / "eight.3.json").read_text())
    for ours, node in zip(document["workload_graph"], nodes_of(whole.path, 3), strict=True):
        assert (ours["runtime"], ours["duration_ns"]) == (node.duration_micros, ns_of(node))


def test_a_set_is_gone_on_with_under_its_own_profile_only(db: Stagedb, tmp_path: Path) -> None:
    one = db.profile(model=EIGHT, system=SLOW, **PLAN)
    other = db.profile(one.instance.id, system=SLOW, scale=["compute=2"])
    out = tmp_path / "timed"
    before = files_of(db.export(profile=one.info.id, out=out).path)
    (out / "eight.2.et").unlink()
    for words in ({"profile": other.info.id}, {"system": SLOW}):
        target = one.instance.id if "system" in words else None
        with pytest.raises(UsageError, match="is another export"):
            db.export(target, out=out, resume=True, **words)
    done = db.export(profile=one.info.id, out=out, resume=True)
    assert done.mended == ("eight.2.et",)
    assert files_of(out) == before


def test_what_contradicts_a_profile_is_refused(db: Stagedb, tmp_path: Path) -> None:
    profile = db.profile(model=CARD, system=SLOW, name="mine", pp=2)
    other = db.instantiate(CARD, tp=2)
    out = tmp_path / "traces"
    with pytest.raises(UsageError, match=r"on the system slow.*leave out system"):
        db.export(profile="mine", system="h100", out=out)
    for target, more in (
        (other.id, {}),
        (None, {"model": CARD}),
        (None, {"tp": 4}),
        (profile.instance.id, {"global_batch_size": 8}),
    ):
        with pytest.raises(UsageError, match=r"is of instance .* \(tiny\).*leave out INSTANCE.*`db.profile\(\)`"):
            db.export(target, profile="mine", out=out, **more)
    with pytest.raises(UsageError, match="no profile 'min'"):
        db.export(profile="min", out=out)
    assert not out.exists()
    assert len(db.instances()) == 2
    # What means the same is no contradiction.
    same: tuple[dict[str, Any], ...] = ({"pp": 2}, {"model": CARD, "pp": 2}, {"global_batch_size": 1})
    for number, words in enumerate(same):
        done = db.export(profile="mine", out=tmp_path / str(number), **words)
        assert done.instance.id == profile.instance.id
    assert db.export(profile.instance.id, profile="mine", out=tmp_path / "both").profile is not None


def test_a_name_means_the_profile_of_the_instance(db: Stagedb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEDB_USER", "ada")
    first = db.profile(model=CARD, system=SLOW, name="mine", pp=2)
    monkeypatch.setenv("STAGEDB_USER", "bob")
    second = db.profile(model=CARD, system=SLOW, name="mine", tp=2)
    for number, each in enumerate((first, second)):
        done = db.export(each.instance.id, profile="mine", out=tmp_path / str(number))
        assert done.profile is not None
        assert done.profile.id == each.info.id


def test_a_profile_that_does_not_fit_its_instance_is_refused(db: Stagedb, tmp_path: Path) -> None:
    profile = db.profile(model=CARD, system=SLOW, pp=2).info.id
    with db.store._session("WRITE") as session:
        session.run("MATCH (t:OpTime {profile: $p}) WHERE t.id ENDS WITH '/0/3' DETACH DELETE t", p=profile).consume()
    with pytest.raises(StagedbError, match=r"other operators of class 0.*profile again"):
        db.export(profile=profile, out=tmp_path / "traces")


@pytest.mark.parametrize(
    ("card", "system", "plan", "scale"),
    [
        ({"layers": 8}, SLOW, PLAN, []),
        ({"layers": 8}, SLOW, PLAN, ["stage:3=1.7", "send=0"]),
        ({"layers": 8}, SLOW, {"pp": 4, "dp": 2, "virtual_stages": 2, "global_batch_size": 8}, ["class:1=0.3"]),
        ({"layers": 4}, SLOW, {"pp": 2, "tp": 2, "cp": 2, "dp": 2, "zero": 3, "global_batch_size": 4}, []),
        ({"layers": 4}, "h100", {"pp": 2, "tp": 2, "dp": 2, "recompute": "full", "sp": True}, []),
    ],
)
def test_a_step_is_read_back_to_the_nanosecond(
    db: Stagedb, tmp_path: Path, card: dict[str, Any], system: str | System, plan: dict[str, Any], scale: list[str]
) -> None:
    model = dataclasses.replace(CARD, **card)
    first = db.profile(model=model, system=system, scale=scale, **plan)
    db.export(profile=first.info.id, out=tmp_path / "traces")
    again = db.profile(first.instance.id, system=system, durations=tmp_path / "traces")
    assert again.step == first.step
    assert again.coverage.share_of_ops == 1
    for ours, theirs in zip(again.job.durations.ns, first.job.durations.ns, strict=True):
        assert ours.tolist() == theirs.tolist()
    assert again.lanes == first.lanes


def test_some_ranks_represent_their_lanes(db: Stagedb, tmp_path: Path) -> None:
    inner, outer = SLOW.dimensions
    four = dataclasses.replace(SLOW, dimensions=(dataclasses.replace(inner, size=4), outer))
    first = db.profile(model=EIGHT, system=four, pp=4, dp=2, global_batch_size=8, schedule="gpipe")
    db.export(profile=first.info.id, out=tmp_path / "traces", only="1-7:2")
    again = db.profile(first.instance.id, system=four, durations=tmp_path / "traces")
    assert (again.step, again.coverage.share_of_ops) == (first.step, 1)
