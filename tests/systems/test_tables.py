"""Tables of measured times: grids, errors on rows that the carried tables never had, files, costs of a system."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from stagedb import api
from stagedb.errors import UsageError
from stagedb.systems import CollectiveWork, Costs, Work, load_system, parse_system, system_names
from stagedb.systems.cost_model import time_work
from stagedb.systems.tables.curves import errors
from stagedb.systems.tables.grids import Floats, Grid, filled, gridded
from stagedb.systems.tables.measured_table import COLLECTIVES, SHAPES, MeasuredTable, seen_pairs, table_of
from stagedb.systems.tables.operator_times import BACKWARD
from stagedb.systems.tables.table_files import digest_of, load_table, packed, shipped, unpacked

SAMPLE: Mapping[str, Mapping[str, list[float]]] = json.loads((Path(__file__).parent / "held_out_rows.json").read_text())
"""Some of the rows of each table that it was made without, drawn by a seed: `scripts/tables sample`."""

BOUNDS = {"matmul": 0.05, "experts": 0.05, "attention": 0.07, "from 64 KB": 0.1, "below 64 KB": 0.2}
NEW = ("a100", "h100", "h200", "b200", "gb200")


def columns(rows: Mapping[str, list[float]]) -> tuple[dict[str, Floats], Floats]:
    read = {name: np.array(values, np.float64) for name, values in rows.items()}
    return read, read.pop("ns")


def carried(name: str) -> MeasuredTable:
    _, operator, dtype = name.rsplit("-", 2)
    return load_table(name, operator, dtype, digest_of(name))


@pytest.mark.parametrize("name", [name for name in SAMPLE if name.split("-")[0] in NEW])
def test_held_out_shapes_are_within_the_bounds(name: str) -> None:
    rows, ns = columns(SAMPLE[name])
    for error in errors(carried(name), rows, ns):
        assert error.mean <= BOUNDS[error.part or name.split("-")[-2]], (name, error)


def test_a_wrong_table_is_beyond_the_bounds() -> None:
    rows, ns = columns(SAMPLE["h100-sxm-matmul-bf16"])
    (error,) = errors(carried("a100-sxm-matmul-bf16"), rows, ns)
    assert error.mean > 0.5
    flat = replace(
        carried("h100-sxm-matmul-bf16"), grid=Grid(tuple(np.zeros(1) for _ in range(3)), np.zeros((1, 1, 1)))
    )
    assert next(errors(flat, rows, ns)).mean > 0.1


def test_the_carried_tables_are_small() -> None:
    assert sum(path.stat().st_size for path in shipped("x").parent.iterdir()) < 3_000_000


def test_a_grid_is_linear_between_crossings_and_level_outside() -> None:
    grid = Grid((np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0])), np.array([[0.0, 2.0], [1.0, 3.0], [5.0, 7.0]]))
    points = np.array([[0.0, 0.0], [2.0, 1.0], [0.5, 2.0], [9.0, 9.0], [-1.0, -1.0]])
    assert grid.at(points).tolist() == [0.0, 4.0, 2.5, 7.0, 0.0]


def test_holes_of_a_grid_are_filled_from_their_neighbours() -> None:
    axis = np.arange(6.0)
    plane = (axis[:, None] + 2 * axis[None, :]) / 100
    holes = plane.copy()
    holes[2, 3] = holes[4, 1] = np.nan
    made = filled(Grid((axis, axis), holes))
    assert np.allclose(made.values, plane)
    with pytest.raises(ValueError, match="needs a value"):
        filled(Grid((axis, axis), np.full((6, 6), np.nan)))
    same = gridded(np.array([[0.0], [1.0], [1.0]]), np.array([1.0, 2.0, 4.0]))
    assert same.values.tolist() == [1.0, 3.0]


def test_pairs_of_a_causal_attention_are_counted() -> None:
    for queries, keys in ((5, 5), (5, 2), (3, 7), (1, 1), (6, 6)):
        start = max(keys - queries, 0)
        window = keys if keys < queries else queries + keys
        seen = sum(
            1 for query in range(queries) for key in range(max(queries, keys)) if 0 <= query + start - key < window
        )
        assert float(seen_pairs(np.array(float(queries)), np.array(float(keys)))) == seen


def test_a_table_gives_its_own_rows_and_grows_beyond_them() -> None:
    sides = np.array([64.0, 256.0, 1024.0])
    m, n, k = (each.ravel() for each in np.meshgrid(sides, sides, sides, indexing="ij"))
    ns = 2000 + m * n * k / 1000
    table = table_of("matmul", "bf16", {"m": m, "n": n, "k": k}, ns)
    assert np.allclose(table.ns({"m": m, "n": n, "k": k}), ns)
    one = {name: np.array([value]) for name, value in (("m", 8192.0), ("n", 1024.0), ("k", 1024.0))}
    assert table.ns(one)[0] == pytest.approx(2000 + 8192 * 1024 * 1024 / 1000, rel=0.05)
    again = unpacked(packed(table))
    assert np.allclose(again.ns({"m": m, "n": n, "k": k}), ns, rtol=0.002)
    for wrong in ("matmuls", "bf16"), ("matmul", "int3"):
        with pytest.raises(UsageError, match="operators are matmul, attention, experts, collective"):
            table_of(*wrong, {"m": m, "n": n, "k": k}, ns)
    with pytest.raises(UsageError, match="k is missing"):
        table_of("matmul", "bf16", {"m": m, "n": n}, ns)
    with pytest.raises(UsageError, match="no table of matmul in mxfp4: those of weights in 4 bits are of experts"):
        table_of("matmul", "mxfp4", {"m": m, "n": n, "k": k}, ns)


SYSTEM = """\
name: own
sources: [measured]
accelerator:
  name: chip
  peak: {bf16: 100, fp16: 100}
  memory: {bandwidth: 1000, capacity: 32}
  launch: 500
  sustained: 0.5
network:
  - {name: inside, size: 8, kind: switch, bandwidth: 100, latency: 500}
  - {name: outside, size: null, kind: switch, bandwidth: 10, latency: 500}
tables:
  - {operator: matmul, dtype: bf16, file: mine.csv, source: "my machine"}
"""


def own(folder: Path, rows: str, text: str = SYSTEM) -> Path:
    (folder / "mine.csv").write_text(rows, encoding="utf-8")
    (folder / "own.yaml").write_text(text, encoding="utf-8")
    return folder / "own.yaml"


ROWS = "m,n,k,us\n" + "".join(
    f"{m},{n},{k},{m * n * k / 1e6 + 3}\n" for m in (8, 64, 512) for n in (8, 64, 512) for k in (8, 64, 512)
)


def test_a_table_of_ones_own_times_matmuls(tmp_path: Path) -> None:
    system = load_system(own(tmp_path, ROWS))
    costs = Costs(system, 8)
    large = costs.work(Work("matmul", "bf16", 2 * 512**3, 2 * 3 * 512**2, (512, 512, 512)))
    assert (large.ns, large.rule) == (round((512**3 / 1e6 + 3) * 2000), "table:matmul"), (
        "at the speed that is sustained"
    )
    work = Work("matmul", "bf16", 2 * 64 * 64 * 512, 2 * (64 * 512 * 2 + 64 * 64), (64, 64, 512))
    assert costs.work(work).ns == round((64 * 64 * 512 / 1e6 + 3) * 1000), "which one that waits for memory keeps"
    assert costs.work(replace(work, dtype="fp16")) == costs.work(work)
    assert costs.work(replace(work, dims=())).rule.startswith("roofline")
    wider = costs.work(replace(work, bytes=work.bytes + 10**6)).ns
    assert wider == pytest.approx(costs.work(work).ns + 10**6 / 1000, abs=2)  # 1000 GB/s
    assert parse_system(json.dumps(system.to_dict())) == system
    batch = replace(work, dims=(4, 16, 64, 512))
    assert costs.work(batch).ns == costs.work(work).ns


@pytest.mark.parametrize("tokens", [8, 64, 512, 4096])
def test_a_weight_in_fewer_bits_takes_the_time_of_its_bytes(tokens: int, tmp_path: Path) -> None:
    """Kernels of 3 us, 100 TFLOP/s and 1,000 GB/s: a quarter of a weight takes a quarter of its time."""
    sizes = (8, 64, 512, 4096, 32768)
    rows = [
        (m, n, k, 3 + max(2 * m * n * k / 1e8, 2 * (m * k + n * k + m * n) / 1e6))
        for m, n, k in product(sizes, repeat=3)
    ]
    text = "m,n,k,us\n" + "".join(f"{m},{n},{k},{us}\n" for m, n, k, us in rows)
    costs = Costs(load_system(own(tmp_path, text, SYSTEM.replace("  sustained: 0.5\n", ""))), 8)
    side, flops = 4096, 2 * tokens * 4096**2
    wide, narrow = (2 * 2 * tokens * side + weight for weight in (2 * side**2, side**2 // 2))
    plain = costs.work(Work("matmul", "bf16", flops, wide, (tokens, side, side)))
    found = costs.work(Work("matmul", "bf16", flops, narrow, (tokens, side, side), spared=wide - narrow))
    assert plain.ns == pytest.approx(3000 + max(flops / 1e5, wide / 1e3), rel=0.01)
    assert found.ns == pytest.approx(3000 + max(flops / 1e5, narrow / 1e3), rel=0.02)
    assert (found.ns == plain.ns) == (tokens >= 512), "computing takes as long"


def test_the_kernels_of_that_cast_are_left_out_too(tmp_path: Path) -> None:
    """The smallest matmul in fp8 takes 9 us longer than that in bf16, which has no cast."""
    text = SYSTEM.replace("fp16: 100}", "fp16: 100, fp8: 200}") + (
        '  - {operator: matmul, dtype: fp8, cast: 5, file: narrow.csv, source: "my machine"}\n'
    )
    narrow = "".join(
        f"{m},{n},{k},{m * n * k / 2e6 + 12 + 5 * m * k / 1e6}\n" for m, n, k in product((8, 64, 512), repeat=3)
    )
    (tmp_path / "narrow.csv").write_text("m,n,k,us\n" + narrow, encoding="utf-8")
    costs = Costs(load_system(own(tmp_path, ROWS, text)), 8)
    work = Work("matmul", "fp8_e4m3", 2 * 64 * 64 * 512, 64 * 512 * 2 + 2 * 64 * 64, (64, 64, 512))
    assert costs.work(work).ns == pytest.approx((64 * 64 * 512 / 2e6 + 3) * 1000, rel=0.02)


def test_the_cast_that_was_measured_with_a_matmul_is_left_out(tmp_path: Path) -> None:
    """It is an operator of its own: 5 bytes an element of the first operand, at 1000 GB/s and half the speed."""
    text = SYSTEM.replace("bf16: 100, fp16", "bf16: 100, fp8: 200, fp16").replace("dtype: bf16", "dtype: fp8")
    m = n = k = 512
    plain, less = (
        load_system(own(tmp_path, ROWS, text.replace("file: mine.csv", f"file: mine.csv{cast}")))
        for cast in ("", ", cast: 5")
    )
    work = Work("matmul", "fp8_e4m3", 2 * m * n * k, m * k + n * k + 2 * m * n, (m, n, k))
    took, alone = (Costs(each, 8).work(work).ns for each in (plain, less))
    assert took == round((m * n * k / 1e6 + 3) * 2000)
    assert took - alone == pytest.approx(2 * 5 * m * k / 1000, abs=2)
    few = replace(work, dims=(m, 8, 8), flops=2 * m * 8 * 8, bytes=0)
    assert Costs(less, 8).work(few).ns >= 2 * m * 8 * 8 / 200e3
    assert parse_system(json.dumps(less.to_dict())) == less
    assert "cast" not in plain.to_dict()["tables"][0]


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "gb200-nvl72"])
def test_matmuls_in_fp8_are_not_slower_than_in_bf16(name: str) -> None:
    """With the measured cast, those with a large first operand were up to half as fast as in bf16."""
    costs = Costs(load_system(name), 8)
    for m, n, k in ((28672, 2048, 8192), (8192, 1024, 8192), (8192, 8192, 8192), (4096, 8192, 28672)):
        work = Work("matmul", "bf16", 2 * m * n * k, 0, (m, n, k))
        assert 0.98 < costs.work(work).ns / costs.work(replace(work, dtype="fp8_e4m3")).ns < 2.5, (m, n, k)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("m,n,us\n1,2,3\n", "k is missing"),
        ("m,n,k\n1,2,3\n", "no time: give one of the columns ns and us"),
        ("m,n,k,us,ns\n1,2,3,4,5\n", "us and ns: give one"),
        ("m,n,k,us,colour\n1,2,3,4,5\n", "unknown column 'colour'"),
        ("m,n,k,us\n1,2,3,0\n", "column us has 0 in row 1"),
        ("m,n,k,us\n1,2,x,4\n", "column k has 'x', which is no number"),
        ("m,n,k,us\n1,2,3\n", "line 2: 3 cells under 4 columns"),
        ("m,m,k,us\n1,2,3,4\n", "two columns have the same name"),
        ("m,n,k,us\n", "has no rows"),
        ("", "no line of column names"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, rows: str, message: str) -> None:
    system = load_system(own(tmp_path, rows))
    with pytest.raises(UsageError, match=f"mine.csv: .*{message}"):
        Costs(system, 8).work(Work("matmul", "bf16", 2, 6, (1, 1, 1)))


def test_files_of_tables_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mine.csv"):
        load_system(own(tmp_path, ROWS, SYSTEM.replace("mine.csv", "other/mine.csv")))
    with pytest.raises(UsageError, match=r"tables.0..file is 'mine'.*a table that stagedb carries"):
        load_system(own(tmp_path, ROWS, SYSTEM.replace("mine.csv", "mine")))
    with pytest.raises(UsageError, match="second table of matmul in bf16"):
        load_system(own(tmp_path, ROWS, SYSTEM + "  - {operator: matmul, dtype: bf16, file: mine.csv}\n"))
    with pytest.raises(UsageError, match="operator is 'matmuls': it takes one of matmul"):
        load_system(own(tmp_path, ROWS, SYSTEM.replace("operator: matmul", "operator: matmuls")))
    system = load_system(own(tmp_path, ROWS))
    (tmp_path / "mine.csv").write_text(ROWS + "1,1,1,1\n")
    with pytest.raises(UsageError, match="its content changed"):
        Costs(system, 8).work(Work("matmul", "bf16", 2, 6, (1, 1, 1)))
    for content in (b"", b"PK\x03\x04", packed(carried("h100-sxm-collective-bf16"))[:200]):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(UsageError, match=r"bad.npz: "):
            load_table(str(tmp_path / "bad.npz"), "matmul", "bf16", digest_of(str(tmp_path / "bad.npz")))
    (tmp_path / "nccl.npz").write_bytes(packed(carried("h100-sxm-collective-bf16")))
    with pytest.raises(UsageError, match="is a table of collective, and the system has it as one of matmul"):
        load_table(str(tmp_path / "nccl.npz"), "matmul", "bf16", digest_of(str(tmp_path / "nccl.npz")))


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    import pandas as pd

    path = own(tmp_path, ROWS)
    before = Costs(load_system(path), 8).work(Work("matmul", "bf16", 2 * 64**3, 1, (64, 64, 64)))
    pd.read_csv(tmp_path / "mine.csv").to_parquet(tmp_path / "mine.parquet")
    path.write_text(SYSTEM.replace("mine.csv", "mine.parquet"))
    assert Costs(load_system(path), 8).work(Work("matmul", "bf16", 2 * 64**3, 1, (64, 64, 64))) == before


def attention(queries: int, keys: int, *, causal: bool = True, backward: bool = False) -> Work:
    flops = (10 if backward else 4) * 32 * queries * keys * 128
    return Work("attention", "bf16", flops, 1, (1, 32, 8, queries, keys, 128), causal=causal)


@pytest.mark.parametrize("queries", [1, 4, 127])
def test_an_attention_over_a_cache_takes_the_time_in_which_its_keys_are_read(queries: int) -> None:
    """Tables have kernels of training and of prefills, whose blocks are queries: one of them would read all keys."""
    system = load_system("h100")
    batch, keys, heads, size = 64, 8_192, 8, 128
    read = batch * keys * heads * size * 2 * 2
    dims = (batch, 4 * heads, heads, queries, keys, size)
    work = Work("attention", "bf16", 4 * batch * 4 * heads * queries * keys * size, read, dims)
    found = Costs(system, 1).work(work)
    assert found.rule.startswith("roofline")
    assert found == time_work(system.accelerator, work)
    assert found.ns > read / float(system.accelerator.bandwidth)
    assert (
        Costs(system, 1).work(replace(work, dims=(batch, 4 * heads, heads, 128, keys, size))).rule.startswith("table")
    )


def test_attention_takes_the_time_of_the_pairs_that_its_mask_leaves() -> None:
    costs = Costs(load_system("h100"), 8)
    square = costs.work(attention(8192, 8192)).ns
    # Without a mask, it is the causal one of longer rows that has as many pairs, and so as fast as that.
    longer = round(8192 * 2**0.5)
    assert costs.work(attention(8192, 8192, causal=False)).ns == pytest.approx(
        costs.work(attention(longer, longer)).ns, rel=0.001
    )
    assert costs.work(attention(8192, 8192, backward=True)).ns == pytest.approx(2.5 / BACKWARD * square, rel=0.001)
    assert costs.work(attention(8192, 1024)).ns < square / 2
    # 4·32·8192²·128 FLOPs, half of them masked, at 578 TFLOP/s as FlashAttention 3 was measured.
    assert square == pytest.approx(2 * 32 * 8192**2 * 128 / 578e3, rel=0.05)


def test_experts_take_the_time_of_grouped_matmuls() -> None:
    costs = Costs(load_system("h100"), 8)

    def work(m: int, n: int, k: int, *, weights: bool = False) -> Work:
        return Work("matmul", "bf16", 2 * 32 * m * n * k, 1, (32, m, n, k), grouped=True, weights=weights)

    forward = costs.work(work(256, 2048, 7168))
    # 1,024 tokens that choose 8 of 256 experts on eight ranks: measured at 490 TFLOP/s, sustained 0.79.
    assert 2 * 32 * 256 * 2048 * 7168 / forward.ns / 1000 == pytest.approx(490 * 0.79, rel=0.15)
    assert costs.work(work(2048, 7168, 256, weights=True)).ns == pytest.approx(forward.ns, rel=0.01)
    packed_gate = costs.work(work(256, 4096, 7168))
    assert packed_gate.ns == pytest.approx(2 * forward.ns, rel=0.01)


# Measured with vLLM 0.24.0 on an H100 (aiconfigurator-core 0.12.0): tokens, us of gate, up and down of all experts. The
# kernels wait for the weights of 128 experts of gpt-oss, and of 384 of Kimi K2.
PACKED_EXPERTS = [
    ("mxfp4", (2880, 2880, 128, 4), ((32, 687.0), (64, 689.1), (256, 701.5), (512, 715.5))),
    ("int4_symmetric", (7168, 2048, 384, 8), ((64, 3242.4), (256, 3354.7), (512, 3468.6), (1024, 4479.8))),
]


@pytest.mark.parametrize(("stored", "sizes", "measured"), PACKED_EXPERTS, ids=lambda each: str(each)[:6])
def test_experts_with_weights_of_4_bits_take_the_time_that_was_measured(
    stored: str, sizes: tuple[int, ...], measured: tuple[tuple[int, float], ...]
) -> None:
    """Those of other sizes take the scaled time of kernels in 16 bits."""
    costs, spared = Costs(load_system("h100"), 8), {"mxfp4": 2 - 17 / 32, "int4_symmetric": 2 - 33 / 64}[stored]

    def took(stored: str, hidden: int, ffn: int, experts: int, tokens: int) -> int:
        found = 0
        for n, k in ((2 * ffn, hidden), (hidden, ffn)):
            less = int(spared * experts * n * k)
            moved = 2 * experts * (tokens * k + n * k + tokens * n) - less
            dims = (experts, tokens, n, k)
            flops = 2 * experts * tokens * n * k
            found += costs.work(Work("matmul", "bf16", flops, moved, dims, True, spared=less, stored=stored)).ns
        return found

    hidden, ffn, experts, top_k = sizes
    for tokens, us in measured:
        each = -(-tokens * top_k // experts)
        assert took(stored, hidden, ffn, experts, each) == pytest.approx(1000 * us, rel=0.03)
        assert took("", hidden, ffn, experts, each) < 0.92 * 1000 * us, "as much less as the bytes is too little"
    assert took(stored, 512, 256, 4, 8) == took("", 512, 256, 4, 8)
    if stored == "int4_symmetric":
        assert took("int4", hidden, ffn, experts, 4) == took(stored, hidden, ffn, experts, 4)


@pytest.mark.parametrize(("name", "tokens"), [("a100-80gb", 256), ("a100-80gb", 4096), ("h100", 4096)])
def test_experts_run_one_by_one_where_that_is_faster(name: str, tokens: int) -> None:
    system, (m, n, k), experts = load_system(name), (tokens, 2048, 7168), 16
    costs = Costs(system, 8)
    moved = 2 * (m * k + n * k + m * n)
    one = costs.work(Work("matmul", "bf16", 2 * m * n * k, moved, (m, n, k)))
    all_of_them = Work("matmul", "bf16", experts * 2 * m * n * k, experts * moved, (experts, m, n, k), grouped=True)
    assert costs.work(all_of_them).ns == pytest.approx(experts * one.ns, rel=1e-4)


def test_collectives_in_a_node_are_measured_and_others_start_a_kernel() -> None:
    system = load_system("h100")
    costs, plain = Costs(system, 16), Costs(replace(system, tables=()), 16)
    inside = CollectiveWork("all_reduce", 1 << 20, tuple(range(8)))
    assert costs.collective(inside).rule == "table:collective"
    assert 20_000 < costs.collective(inside).ns < 60_000
    assert costs.collective(inside).wires == plain.collective(inside).wires
    assert costs.collective(CollectiveWork("all_reduce", 1 << 20, (3,))).ns == 0
    across = CollectiveWork("all_reduce", 1 << 20, tuple(range(16)))
    start = costs.collective(across).ns - plain.collective(across).ns
    assert 4_000 < start < 10_000
    gathered = costs.collective(CollectiveWork("all_gather", 1 << 17, tuple(range(8))))
    table = carried("h100-sxm-collective-bf16")
    row = {"collective": COLLECTIVES.index("all_gather"), "ranks": 8, "bytes": 1 << 20}
    assert gathered.ns == round(table.ns({name: np.array([float(each)]) for name, each in row.items()})[0])


def test_h100_and_h200_agree_where_their_silicon_does() -> None:
    sides = np.array([1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
    rows = {"m": sides, "n": sides, "k": sides}
    one, other = (carried(f"{name}-sxm-matmul-bf16").ns(rows) for name in ("h100", "h200"))
    assert np.abs(one / other - 1).mean() < 0.06
    h100, h200 = (load_system(name) for name in ("h100", "h200"))
    assert h100.accelerator.sustained == h200.accelerator.sustained
    assert h100.accelerator.peak == h200.accelerator.peak
    less = load_system("h100-hbm2e")
    assert (less.tables, less.accelerator.peak) == (h100.tables, h100.accelerator.peak)
    assert less.accelerator.sustained == h100.accelerator.sustained
    assert (less.dimensions, less.collectives) == (h100.dimensions, h100.collectives)


def test_an_h800_is_an_h100_with_fewer_links() -> None:
    h100, h800 = (load_system(name) for name in ("h100", "h800"))
    assert replace(h800.accelerator, name=h100.accelerator.name) == h100.accelerator
    assert h800.tables == tuple(each for each in h100.tables if each.operator != "collective")
    assert [each.bandwidth for each in h800.dimensions] == [200, 50]  # half of 400 GB/s; 400 Gb/s
    sent = Costs(h800, 8).placed("all_gather", 1 << 30, Costs(h800, 8).placement(tuple(range(8))))
    # DeepSeek measured 160 GB/s in one direction.
    assert 150 < (1 << 30) * 7 / sent.ns < 165


@pytest.mark.parametrize(
    ("side", "measured"), [(1024, 95.12), (2048, 120.27), (4096, 133.41), (8192, 138.6), (10240, 142.25)]
)
def test_an_h20_has_the_matmuls_that_were_measured_on_one(side: int, measured: float) -> None:
    """TFLOP/s of square matmuls in bf16, of which the preset has the efficiencies; the launch comes on top."""
    h20 = load_system("h20")
    assert {each.operator for each in h20.tables} == {"collective"}
    flops = 2 * side**3
    took = Costs(h20, 8).work(Work("matmul", "bf16", flops, 6 * side**2, (side, side, side))).ns
    assert flops / (took - int(h20.accelerator.launch)) / 1000 == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("name", system_names())
def test_every_table_and_number_of_a_preset_has_a_source(name: str) -> None:
    system = load_system(name)
    for table in system.tables:
        assert table.source.startswith("aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/")
        assert table.operator in SHAPES
        assert carried(table.file).shape.name == table.operator
        assert bool(table.cast) == ((table.operator, table.dtype) == ("matmul", "fp8"))
    texts = " ".join(system.sources)
    if system.accelerator.sustained != Fraction(1):
        assert "sustained: " in texts
    if system.accelerator.power is not None:
        for watts in (system.accelerator.power.limit, system.accelerator.power.measured):
            assert f"{watts} W" in texts
    for word in ("latencies", "efficienc", "launch"):
        assert word in texts, (name, word)


def test_curves_are_below_the_peak() -> None:
    points = api.system_curves("h200")
    assert {(point["operator"], point["dtype"]) for point in points} == {
        (each.operator, each.dtype) for each in load_system("h200").tables
    }
    assert all(0 < point["share"] < 1 and math.isfinite(point["ns"]) for point in points)
    assert api.system_curves("tpu-v5p") == []
