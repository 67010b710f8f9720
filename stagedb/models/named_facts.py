"""What operators and tensors are, by the names that this package gives them: the one place that takes names apart."""

import re
from functools import lru_cache

from stagedb.collectives import ALL_GATHER, ALL_TO_ALL
from stagedb.ir.facts import ATTENTION, FEED_FORWARD, Casts, InExperts, OpFacts, TensorFacts
from stagedb.models.kinds.experts import EXPERT_MATMULS
from stagedb.models.multi_token_prediction import depth_of

_IN_EXPERTS = re.compile(rf"\.(ffn\.dispatch|ffn\.back|{EXPERT_MATMULS})\b|\.ffn\.combine\.input_gradient\.")
"""What the results of experts become is outside, and so is the gradient of that, before it is sent to the experts."""

_RETURN = f".{EXPERT_MATMULS}.w2.{ALL_TO_ALL.name}."
_BETWEEN = ("add", "residual")
"""What is between the parts of a layer, though a part is in its name."""

_CASTS = (
    (".cast_weight.again", Casts.WEIGHT_AGAIN),
    (".cast_weight", Casts.WEIGHT),
    (".cast_input", Casts.INPUT),
    (".cast_gradient", Casts.GRADIENT),
)
_RING = re.compile(rf"(?P<ring>.+)\.(?:turn|exchange|return|{ALL_GATHER.name})(?:\.recompute)?(?:\.(?:send|recv))?")


@lru_cache(maxsize=1 << 14)
def op_facts(name: str) -> OpFacts:
    """What an operator of this name in a graph is."""
    words = name.split(".")
    inside = words[1] if len(words) > 1 else ""
    part = next((each for each in (ATTENTION, FEED_FORWARD) if inside.startswith(each)), None)
    called = inside == part and len(words) > 2 and words[2] not in _BETWEEN
    return OpFacts(
        origin=(name.rpartition("_gradient")[0].rpartition(".")[0] or None),
        part=part,
        module=".".join(words[:3]) if called else None,
        depth=depth_of(name),
        experts=_experts(name),
        casts=next((cast for text, cast in _CASTS if text in name), None),
        ring=_ring(name),
    )


def _experts(name: str) -> InExperts | None:
    if not in_experts(name):
        return None
    if _RETURN in name:
        return InExperts.RETURN
    return InExperts.MATMUL if f".{EXPERT_MATMULS}." in name else InExperts.MODULE


def _ring(name: str) -> str | None:
    found = _RING.fullmatch(name)
    return None if found is None else found["ring"]


def in_experts(name: str) -> bool:
    """Whether an operator, or a tensor, of this name is in the module of a layer's experts."""
    return _IN_EXPERTS.search(name) is not None


@lru_cache(maxsize=1 << 14)
def tensor_facts(name: str, role: str) -> TensorFacts:
    """What a tensor of this name in a graph is."""
    owner, _, word = name.rpartition(".") if role == "optimizer_state" else (None, "", None)
    return TensorFacts(
        depth=depth_of(name),
        experts=in_experts(name),
        joined=role == "weight" and name.endswith("attn.wqkv.weight"),
        owner=owner,
        word=word,
    )


def turn_of(sym: str, name: str, block: str) -> int:
    """The turn of its loop that a copy of an operator runs in, from 0; -1 outside loops.

    sym: the operator's name in its graph, or its id. name: the copy's, which ends with the turn. A bucket's ends with
    its number.
    """
    last = name.rpartition(".")[2]
    looped = block != "bucket" and last.isdecimal() and sym.rpartition(".")[2] != last
    return int(last) if looped else -1
