"""Systems: presets have the content of their files, and other content is refused with file, line and key."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.systems import Curve, load_system, parse_system, system_names

TEXT = """\
name: mine
sources:
  - measured on Monday
accelerator:
  name: chip
  peak: {bf16: 100, fp32: 12.5}
  memory:
    bandwidth: 1e3
    capacity: 32
  launch: 500
  efficiency:
    matmul: [[1e9, 0.2], [1e12, 0.8]]
network:
  - name: inside
    size: 4
    kind: ring
    bandwidth: 100
    latency: 250.5
  - name: outside
    kind: switch
    bandwidth: .inf
    latency: 0
overlap:
  streams: one
  compute: exclusive
"""


def test_a_file_describes_a_system(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT, encoding="utf-8")
    system = load_system(path)
    assert system == load_system(str(path))
    assert (system.name, system.sources) == ("mine", ("measured on Monday",))
    assert system.accelerator.peak == {"bf16": 100, "fp32": Fraction(25, 2)}
    assert system.accelerator.bandwidth == 1000
    assert system.accelerator.launch == 500
    inside, outside = system.dimensions
    assert (inside.size, inside.kind, inside.latency) == (4, "ring", Fraction(501, 2))
    assert (outside.size, outside.bandwidth) == (None, math.inf)
    assert (system.overlap.streams, system.overlap.compute) == ("one", "exclusive")


def test_presets_are_complete_and_name_their_sources() -> None:
    assert {"a100-80gb", "h100", "h200", "b200", "gb200-nvl72", "mi300x", "tpu-v5p"} <= {*system_names()}
    for name in system_names():
        system = load_system(name)
        assert system.name == name
        assert any("sheet" in source or "documentation" in source for source in system.sources)
        assert "bf16" in system.accelerator.peak
        assert system.dimensions[-1].size is None


def test_published_numbers_are_those_of_the_presets() -> None:
    h100 = load_system("h100")
    assert (h100.accelerator.peak["bf16"], h100.accelerator.bandwidth) == (Fraction("989.4"), 3350)
    assert [each.bandwidth for each in h100.dimensions] == [450, 50]  # half of 900 GB/s; 400 Gb/s
    assert [each.bandwidth for each in load_system("a100-80gb").dimensions] == [300, 25]
    assert load_system("gb200-nvl72").dimensions[0].size == 72


@pytest.mark.parametrize("name", system_names())
def test_the_fields_of_a_system_make_the_system(name: str) -> None:
    system = load_system(name)
    assert parse_system(json.dumps(system.to_dict())) == system
    free = parse_system(TEXT)
    assert parse_system(json.dumps(free.to_dict())) == free


WRONG = {
    "an unknown key": (
        "launch:",
        "lunch:",
        10,
        "unknown key accelerator.lunch .did you mean launch.*allowed here: name",
    ),
    "a key of nobody": ("overlap:", "zzz: 1\noverlap:", 23, "unknown key zzz; allowed here: name, sources"),
    "a missing key": ("  launch: 500\n", "", 4, "accelerator has no launch"),
    "no sources": ("sources:\n  - measured on Monday\n", "", 1, "the system has no sources"),
    "empty sources": ("  - measured on Monday\n", "", 2, "sources is nothing: it takes a list of texts"),
    "a negative number": (
        "capacity: 32",
        "capacity: -1",
        9,
        "memory.capacity is '-1': it takes a number of GB above 0",
    ),
    "a number of words": ("bandwidth: 100", "bandwidth: fast", 17, r"network\[0\].bandwidth is 'fast'.*GB/s above 0"),
    "a quoted number": ("launch: 500", "launch: '500'", 10, "accelerator.launch is '500'"),
    "not a number": ("launch: 500", "launch: .nan", 10, "accelerator.launch is '.nan'"),
    "a huge number": ("launch: 500", "launch: 1e999999999", 10, "accelerator.launch is '1e999999999'"),
    "too many digits": ("launch: 500", "launch: 1.00000000000000001", 10, "at most 15 digits"),
    "an infinite launch": ("launch: 500", "launch: .inf", 10, "accelerator.launch is '.inf': it takes a number of ns"),
    "a list for a number": ("launch: 500", "launch: [1]", 10, "accelerator.launch is a list"),
    "a text that is a number": ("name: chip", "name: 5", 5, "accelerator.name is '5'"),
    "a name with a path": ("name: mine", "name: ../mine", 1, "name is '../mine': it takes letters"),
    "an unknown dtype": ("fp32: 12.5", "int4: 1", 6, "unknown key accelerator.peak.int4.*bf16, fp16, fp32, fp8"),
    "no dtype": ("{bf16: 100, fp32: 12.5}", "{}", 6, "accelerator.peak is a mapping: .*at least one"),
    "an unknown kind": (
        "kind: ring",
        "kind: star",
        16,
        r"network\[0\].kind is 'star': .*ring, switch, fully-connected",
    ),
    "an inner size left out": ("    size: 4\n", "", 14, r"network\[0\] has no size"),
    "an inner size left open": ("size: 4", "size: null", 15, r"network\[0\].size is nothing.*outermost"),
    "no place": ("size: 4", "size: 0", 15, r"network\[0\].size is '0': it takes a whole number"),
    "half a place": ("size: 4", "size: 4.5", 15, r"network\[0\].size is '4.5'"),
    "a name twice": ("name: outside", "name: inside", 19, "another dimension has that name"),
    "unknown streams": ("streams: one", "streams: two", 24, "overlap.streams is 'two': it takes one of axis, one"),
    "an unknown order": (
        "compute: exclusive",
        "compute: alone",
        25,
        "overlap.compute is 'alone': it takes one of in-order",
    ),
    "an unknown scale": (
        "launch: 500",
        "launch: 500\n  fp8_scales: row",
        11,
        "fp8_scales is 'row': it takes one of matrix",
    ),
    "a negative issue": (
        "launch: 500",
        "launch: 500\n  issue: -1",
        11,
        "accelerator.issue is '-1': it takes a number of ns",
    ),
    "half an ns of a call": (
        "streams: one",
        "streams: one\n  issued: {bf16: 1.5}",
        25,
        "overlap.issued.bf16 is '1.5': it takes ns in which the host issues a matmul of one expert, 0 to 1000000000",
    ),
    "a call in another format": (
        "streams: one",
        "streams: one\n  issued: {int8: 1}",
        25,
        "unknown key overlap.issued.int8",
    ),
    "a key twice": ("overlap:", "name: again\noverlap:", 23, "name appears twice"),
    "an efficiency above 1": ("[1e12, 0.8]", "[1e12, 1.8]", 12, r"matmul\[1\]\[1\] is '1.8': it takes an efficiency"),
    "half a point": ("[1e12, 0.8]", "[1e12]", 12, r"matmul\[1\] has 1 numbers"),
    "sizes that fall": ("[1e12, 0.8]", "[1e8, 0.8]", 12, "matmul: the sizes do not grow"),
    "an efficiency that leaps": ("[1e12, 0.8]", "[2e9, 0.8]", 12, "a larger operation would take less time"),
    "no yaml": ("name: mine", "name: [", 3, "not YAML"),
    "a list": (TEXT, "- 1", 1, "it is a list: it takes a mapping"),
    "an unsafe tag": ("name: mine", "name: !!python/object/apply:os.getcwd []", 1, "the tag .* is not read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_system_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    before, after, line, message = WRONG[case]
    assert before in TEXT
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=f"mine.yaml, line {line}: .*{message}") as refused:
        load_system(path)
    assert str(refused.value).isprintable()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown system 'h10' .did you mean h100.*stagedb systems"):
        load_system("h10")
    with pytest.raises(UsageError, match=r"cannot read the system missing.yaml: No such file.*--system"):
        load_system("missing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_system(tmp_path / "latin.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(UsageError, match=r"empty.yaml is empty"):
        load_system(tmp_path / "empty.yaml")
    (tmp_path / "deep.yaml").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="nested too deeply"):
        load_system(tmp_path / "deep.yaml")
    (tmp_path / "large.yaml").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(UsageError, match="larger than"):
        load_system(tmp_path / "large.yaml")


def test_a_network_has_a_place_for_every_rank() -> None:
    system = load_system("h100")
    assert [each.size for each in system.network(1)] == [8, 1]
    assert [each.size for each in system.network(20)] == [8, 3]
    closed = parse_system(TEXT.replace("    kind: switch", "    size: 2\n    kind: switch"))
    assert [each.size for each in closed.network(8)] == [4, 2]
    with pytest.raises(UsageError, match="mine has 4 x 2 = 8 places, and the job has 9 ranks"):
        closed.network(9)


def test_an_efficiency_is_between_those_of_its_neighbours() -> None:
    curve = Curve(((Fraction(10**2), Fraction(1, 5)), (Fraction(10**6), Fraction(4, 5))))
    assert curve.at(1) == curve.at(100) == Fraction(1, 5)
    assert curve.at(10**4) == Fraction(1, 2)  # half-way in orders of magnitude
    assert curve.at(10**6) == curve.at(10**9) == Fraction(4, 5)


GIB = 1 << 30
REPORTED = {
    "a100-40gb": 42_298_834_944,
    "a100-80gb": 84_987_740_160,
    "a100-80gb-400g": 84_987_740_160,
    "h100": 79.09 * GIB,
    "h100-hbm2e": 95.07 * GIB,
    "h200": 143_156 * (1 << 20),
    "h800": 79.09 * GIB,
    "h20": 97_285 * (1 << 20),
    "b200": 178.35 * GIB,
    "b300": 267.69 * GIB,
    "gb200-nvl72": 184.31 * GIB,
    "gb300-nvl72": 276.50 * GIB,
    "l40s": 44.39 * GIB,
    "mi300x": 206_141_652_992,
    "tpu-v5p": 95.74 * GIB,
}
"""Bytes that drivers report, as logs and programs have them."""


@pytest.mark.parametrize("name", system_names())
def test_a_preset_has_the_bytes_that_the_driver_reports(name: str) -> None:
    """Logs have two decimals of a GiB, so that a preset may be some 10 MB below them, and never above."""
    accelerator = load_system(name).accelerator
    assert REPORTED[name] - 11e6 <= accelerator.capacity * 10**9 <= REPORTED[name]
    assert accelerator.room is not None
    assert accelerator.room + sum(accelerator.reserved.values()) == accelerator.capacity * 10**9
    sources = load_system(name).sources
    assert [each.split(":")[0] for each in sources].count("capacity") == 1
    assert bool(accelerator.reserve) == any(each.startswith("reserve") for each in sources)


def test_a_reserve_is_taken_from_the_room() -> None:
    text = TEXT.replace("    capacity: 32\n", "    capacity: 32\n    reserve: {nccl: 0.5, context: 1.25}\n")
    accelerator = parse_system(text).accelerator
    assert accelerator.reserved == {"context": 1_250_000_000, "nccl": 500_000_000}
    assert accelerator.room == 30_250_000_000
    assert parse_system(json.dumps(parse_system(text).to_dict())) == parse_system(text)


def test_a_file_without_a_reserve_has_its_whole_capacity() -> None:
    """So had every system before there was a reserve, and its fields are what they were."""
    system = parse_system(TEXT)
    assert (system.accelerator.room, system.accelerator.reserved) == (32 * 10**9, {})
    assert system.to_dict()["accelerator"]["memory"] == {"bandwidth": 1000, "capacity": 32}


@pytest.mark.parametrize(
    ("reserve", "error"),
    [
        ("{context: 20, nccl: 12}", "reserve has 32 GB in all: it takes less than the capacity"),
        ("{context: -1}", "reserve.context is '-1': it takes a number of GB, 0 or more"),
        ("1.5", "reserve is '1.5': it takes GB that are not for tensors"),
        ("{a b: 1}", "a name in accelerator.memory.reserve has letters"),
    ],
)
def test_a_reserve_that_is_none_is_refused(reserve: str, error: str) -> None:
    text = TEXT.replace("    capacity: 32\n", f"    capacity: 32\n    reserve: {reserve}\n")
    with pytest.raises(UsageError, match=error):
        parse_system(text)
