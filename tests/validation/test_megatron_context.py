"""What Transformer Engine's context parallelism sends under the `megatron` recipe, from exported traces.

Its ring (`cp_comm_type="p2p"`): keys and values of a rank's part in one message, 2·B·S/cp·KV·D/tp elements, to the next
rank in all turns of the forward but the last; in the backward to the one before, first alone, then with the sums of
their gradients, which the last message has alone. `a2a+p2p` has the same ring over the places of neighbours that
exchange heads.
"""

from collections import Counter
from pathlib import Path

import pytest

from stagedb.api import validate
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import TraceColumns, read_trace
from tests import lowered
from tests.ir.tiny import card

LAYERS, KV, D, WIDTH = 2, 4, 4, 2


def messages(trace: TraceColumns, type_: int, phase: str) -> Counter[tuple[int, int]]:
    """Other ends and sizes of the messages of a kind around rings of cp."""
    columns, name = trace.attributes, "comm_dst" if type_ == pb.COMM_SEND_NODE else "comm_src"
    return Counter(
        (columns[name][at], columns["comm_size"][at])
        for at, kind in enumerate(trace.types)
        if kind == type_ and columns["axis"][at] in ("cp", "cpr") and columns["phase"][at] == phase
    )


@pytest.mark.parametrize(
    ("tp", "cp", "ulysses", "pp", "recompute"),
    [(1, 2, 1, 1, "none"), (2, 4, 1, 2, "none"), (1, 3, 1, 1, "full"), (2, 4, 2, 2, "none"), (1, 8, 2, 1, "none")],
)
def test_messages_of_a_ring(tmp_path: Path, tp: int, cp: int, ulysses: int, pp: int, recompute: str) -> None:
    seq, microbatches = 16 * cp, 2
    made = lowered.workload(
        card("llama", layers=LAYERS, kv_heads=KV),
        recipe="megatron",
        tp=tp,
        cp=cp,
        pp=pp,
        dp=2,
        zero=1,
        ulysses=ulysses,
        seq_len=seq,
        global_batch_size=2 * microbatches,
        recompute=recompute,
    )
    out = lowered.export(made, tmp_path / "traces")
    report = validate(out)
    assert not report.faults
    assert report.replayed
    places, times = cp // ulysses, LAYERS // pp * microbatches
    one = 2 * (seq // places) * KV * D // (tp * ulysses) * WIDTH
    for rank in range(tp * cp * 2 * pp):
        trace = read_trace(next(out.glob(f"*.{rank}.et")))
        own, outside = rank // tp % cp, rank - rank // tp % cp * tp
        ahead, behind = (outside + (own + hop) % cp * tp for hop in (ulysses, -ulysses))
        forward, sizes = (places - 1) * times, {one: 2 * times, 2 * one: (places - 2) * times}
        for type_, onto, back in ((pb.COMM_SEND_NODE, ahead, behind), (pb.COMM_RECV_NODE, behind, ahead)):
            assert messages(trace, type_, "forward") == Counter({(onto, one): forward})
            again = Counter({(onto, one): forward if recompute == "full" else 0})
            assert messages(trace, type_, "recompute") == +again
            expected = Counter({(back, size): count for size, count in sizes.items()})
            assert messages(trace, type_, "backward") == +expected
        columns = trace.attributes
        for type_, name in ((pb.COMM_SEND_NODE, "comm_dst"), (pb.COMM_RECV_NODE, "comm_src")):
            ends = [
                (columns[name][at], columns["comm_tag"][at]) for at, kind in enumerate(trace.types) if kind == type_
            ]
            assert len(set(ends)) == len(ends)  # no two messages between two ranks have one tag
