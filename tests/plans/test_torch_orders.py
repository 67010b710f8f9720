"""Orders of tasks from files that torch writes, and orders over several chunks a stage without their placement."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api import validate
from stagedb.errors import UsageError
from stagedb.memory import memory_of
from stagedb.plans import Plan
from stagedb.schedules import order_text
from stagedb.systems import load_system
from stagedb.timing import profile_job
from tests import lowered
from tests.ir.tiny import card

CSV = Path(__file__).parents[1] / "schedules" / "torch_csv"
FILES = {"ZBVZeroBubble": "zb-v", "DualPipeV": "dualpipev", "InterleavedZeroBubble": "interleaved-zb"}
EACH = pytest.mark.parametrize("path", sorted(CSV.glob("*.csv")), ids=lambda path: str(path.stem))


def plans(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The words of a plan with the order of a file, and of the same plan by the name of the schedule."""
    name, pp, microbatches = path.stem.split("-")
    words = {"pp": int(pp), "global_batch_size": int(microbatches)}
    return {**words, "schedule": str(path)}, {**words, "schedule": FILES[name], "virtual_stages": 2}


@EACH
def test_the_csv_of_torch_is_the_schedule_of_the_same_name(path: Path) -> None:
    written, named = map(Plan.from_mapping, plans(path))
    assert written.orders() == named.orders()
    assert written.tasks() == named.tasks()
    assert written.placement is named.placement
    assert Plan.from_mapping(written.to_dict()) == written


def test_the_rows_of_a_csv_place_its_chunks(tmp_path: Path) -> None:
    """Also where no placement of a schedule is that of the file: here each stage has neighbours in the pipeline."""
    path = tmp_path / "orders.csv"
    path.write_text("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n")
    plan = Plan.from_mapping({"pp": 2, "schedule": str(path)})
    assert plan.chunk_placement == "0,0,1,1"
    assert [order_text(order) for order in plan.orders()] == ["F0 F0.1 B0.1 B0"] * 2


@EACH
def test_orders_without_a_placement_take_the_one_with_which_they_end(path: Path, tmp_path: Path) -> None:
    named = Plan.from_mapping(plans(path)[1])
    plain = tmp_path / "orders.yaml"
    plain.write_text("stages:\n" + "".join(f"- {order_text(order)}\n" for order in named.orders()))
    words = {"pp": named.pp, "global_batch_size": named.batch, "schedule": str(plain)}
    found = Plan.from_mapping(words)
    assert found.orders() == named.orders()
    assert found.placement is named.placement
    assert Plan.from_mapping(found.to_dict()) == found
    if found.chunk_placement is not None:
        with pytest.raises(UsageError, match="never ends: stage 0 waits"):
            Plan.from_mapping({**words, "chunk_placement": "loop"}).tasks()


def test_orders_that_end_with_no_placement_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text("stages: [B0 F0 F0.1 B0.1, F0 F0.1 B0.1 B0]")
    with pytest.raises(UsageError, match=r"never ends: .* and those up and down them do not end either: --chunk-pl"):
        Plan.from_mapping({"pp": 2, "schedule": str(path)})


@pytest.mark.parametrize(
    "path", [CSV / "ZBVZeroBubble-2-3.csv", CSV / "DualPipeV-2-4.csv"], ids=lambda path: str(path.stem)
)
def test_an_order_of_torch_has_the_figures_of_its_schedule(path: Path, tmp_path: Path) -> None:
    """Traces that replay, the memory of each class, and the step's time."""
    model = card("llama", layers=4)
    figures = []
    for index, words in enumerate(plans(path)):
        words |= {"tp": 2, "sp": True, "dp": 2, "global_batch_size": 2 * words["global_batch_size"], "seq_len": 16}
        program = lowered.program(model, **words)
        report = validate(lowered.export(program.workload, tmp_path / str(index)))
        assert (report.faults, report.replayed) == ((), True)
        levels = [(list(each.ends()), list(each.peaks())) for each in memory_of(program)]
        figures.append((report.nodes, levels, profile_job(program.workload, load_system("h100")).step))
        assert program.plan.virtual_stages == 2
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F0,0B0\n1F0,1SEND_B0\n", r"line 2: '1SEND_B0' is no task: .* format compute_only"),
        ("0F0,0UNSHARD\n1F0\n", "line 1: '0UNSHARD' is no task"),
        ("0F0,0B0\n0F1,0B1\n", "line 2: chunk 0 is on line 1 too"),
        ("0F0,0B0\n2F0,2B0\n", "no line has tasks of chunk 1, such as 1F0"),
        ("\n\n", "no line has tasks of chunk 0"),
        ("0F0,0REDUCE_GRAD,0B0\n1F0,1B0\n", "line 1: '0B0' is after the reduction of the gradients of chunk 0"),
        ("(0F0;x)OVERLAP_F_B\n", "line 1: 'x' is no task"),
        ('"0F0\n', "is no CSV file"),
        ("0F0,0F0,0B0\n1F0,1B0\n", "stage 0 runs F0 twice"),
        ("0F0,0B0,2F0,2B0\n1F0,1B0\n", "stage 1 does not run F0.1"),
        ("0F0,0B0\n", "orders of 1 stages, the plan has pp 2"),
    ],
)
def test_a_csv_with_other_content_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping({"pp": 2, "schedule": str(path)})


def test_reductions_after_the_last_backward_are_where_they_are_here(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n,1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n")
    assert Plan.from_mapping({"pp": 2, "schedule": str(path)}).orders() == Plan(pp=2, global_batch_size=1).orders()
