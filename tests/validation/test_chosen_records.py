"""Configurations that somebody chose, under PyTorch: all that a record has agrees with stagedb's.

`scripts/record --config tests/validation/KIND_configurations.json` made each file of records.

chunked: a loss in parts of the tokens, as a function of autograd around the head.
experts: matrices of experts that tensor parallelism cuts, in the layouts of torchtitan's
`models/common/MOE_SHARDING.md` (August 2026) without expert parallelism.
shared_experts: experts that ranks divide under FSDP, in the layout of torchtitan's `distributed/fsdp.py`.
further: layers that predict further tokens, in the layout of torchtitan's `models/deepseek_v3/mtp.py`.
split_sum: split backwards whose gradients are added up in a wider format.
expert_unit: experts that are a unit of their own, with the prefetch that torchtitan sets for them (`apply_fsdp` of its
`models/llama4/infra/parallelize.py`).
optimizer: `torch.optim.Muon` for the matrices of layers, with AdamW for the rest; `torch.optim.SGD`.
reshard: `fully_shard(reshard_after_forward=N)`.
trained: adapters as torchtune's `LoRALinear` has them, and frozen parts.
"""

import json
from pathlib import Path

import pytest

from stagedb.validation import check_record, read_records

KINDS = ("chunked", "expert", "expert_unit", "further", "optimizer", "reshard", "shared_expert", "split_sum", "trained")
HERE = Path(__file__).parent
RECORDS = {kind: {each.name: each for each in read_records(HERE / f"{kind}_records.json")} for kind in KINDS}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in RECORDS[kind]])
def test_a_step_is_counted_alike(kind: str, name: str) -> None:
    checked = check_record(RECORDS[kind][name])
    assert checked.unsupported is None
    assert [row for row in checked.differences if not row.agrees] == []
    # Between two messages a split backward may have its matmuls in another order.
    assert checked.exact or kind == "split_sum" or RECORDS[kind][name].config["pp_schedule"] == "izb"


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_has_the_configurations(kind: str) -> None:
    wanted = json.loads((HERE / f"{kind}_configurations.json").read_text(encoding="utf-8"))
    assert [each["label"] for each in wanted] == list(RECORDS[kind])
    for each in wanted:
        assert each.items() <= RECORDS[kind][each["label"]].config.items()
