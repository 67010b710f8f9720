"""Steps of small models, to be looked at."""

from typing import Any

from stagedb.api import Stagedb
from stagedb.api.views import job_of
from stagedb.reports import StepView
from stagedb.store import Store
from stagedb.store.contents.memory import analyse
from stagedb.systems import load_system
from stagedb.timing import ProfileInputs
from tests.ir.tiny import card

PLANS: dict[str, dict[str, Any]] = {
    "pipeline": {"tp": 2, "sp": True, "pp": 2, "dp": 2, "global_batch_size": 8},
    "interleaved": {"pp": 2, "virtual_stages": 2, "dp": 2, "zero": 1, "recipe": "megatron", "global_batch_size": 8},
    "zb-h1": {"pp": 4, "schedule": "zb-h1", "tp": 2, "global_batch_size": 6},
    "one rank": {"recompute": "full", "global_batch_size": 2},
    "experts": {"style": "moe", "dp": 4, "ep": 2, "pp": 2, "global_batch_size": 8},
    "overlapped experts": {
        "style": "moe",
        "dp": 2,
        "ep": 2,
        "pp": 2,
        "virtual_stages": 2,
        "zero": 1,
        "overlap_experts": True,
        "global_batch_size": 8,
    },
}


def job(store: Store, name: str = "pipeline", system: str = "h100", **changes: Any) -> StepView:
    words = {**PLANS[name], **changes}
    made = Stagedb(store).instantiate(card(words.pop("style", "llama"), layers=4), seq_len=8, **words)
    return StepView.of(job_of(store, made, ProfileInputs(load_system(system))), analyse(store, made.id))
