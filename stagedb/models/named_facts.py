"""What operators and tensors are, by the names that this package gives them: the one place that takes names apart."""

import re
from collections.abc import Callable
from functools import lru_cache

from stagedb.collectives import ALL_GATHER, ALL_TO_ALL
from stagedb.ir.facts import ATTENTION, FEED_FORWARD, Casts, InExperts, OpFacts, TensorFacts
from stagedb.ir.tensors import Operation, Tensor
from stagedb.models.adapters import SECOND
from stagedb.models.blocks import LAYER, STACK
from stagedb.models.kinds.attention_experts import EXPERT_MATMULS as OF_ATTENTION
from stagedb.models.kinds.experts import EXPERT_MATMULS, TOKENS
from stagedb.models.multi_token_prediction import depth_of
from stagedb.models.multi_token_prediction import name_in_layer as of_further

_MATMULS = (EXPERT_MATMULS, OF_ATTENTION)
_IN_EXPERTS = re.compile(
    rf"\.(ffn\.dispatch|ffn\.back|attn\.dispatch(_contexts)?|{'|'.join(_MATMULS)})\b"
    r"|\.(ffn\.combine|attn\.combine(_results)?)\.input_gradient\."
)
"""What the results of experts become is outside, and so is the gradient of that, before it is sent to the experts."""

_OF_STACK = re.compile(rf"({STACK})\.({LAYER}\d+)\.")
"""The beginning of names in a layer of a block that has all layers."""

_RETURN = (
    f".{EXPERT_MATMULS}.w2.{ALL_TO_ALL.name}.",
    *(f".{OF_ATTENTION}.{w}.{ALL_TO_ALL.name}." for w in ("wq", "wo")),
)
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
    block, inside, words = _split(name)
    part = next((each for each in (ATTENTION, FEED_FORWARD) if inside.startswith(each)), None)
    called = inside == part and len(words) > 1 and words[1] not in _BETWEEN
    half = f"{SECOND}." if part and block.endswith(f".{SECOND}") else ""
    return OpFacts(
        origin=(name.rpartition("_gradient")[0].rpartition(".")[0] or None),
        part=part and f"{half}{part}",
        module=".".join((block, *words[:2])) if called else None,
        depth=depth_of(name),
        experts=_experts(name),
        casts=next((cast for text, cast in _CASTS if text in name), None),
        ring=_ring(name),
    )


def _split(name: str) -> tuple[str, str, list[str]]:
    """The block, layer and half of a layer of a name, the first word inside of it, and all words inside."""
    found = _OF_STACK.match(name)
    block, _, rest = (name[: found.end() - 1], "", name[found.end() :]) if found else name.partition(".")
    words = rest.split(".")
    if words[0] == SECOND and len(words) > 1:
        block, words = f"{block}.{SECOND}", words[1:]
    return block, words[0], words


def in_stack(number: int) -> Callable[[Operation], bool]:
    """Whether an operation is in the layer of a number, from 0, of a block that has all layers."""
    return lambda op: op.name.startswith(f"{STACK}.{LAYER}{number}.")


def name_in_layer(name: str) -> str:
    """The name of an operation as that of its layer, where its layer is a part of a block; any other name itself."""
    return _OF_STACK.sub(r"\1.", name, count=1) if name.startswith(STACK) else of_further(name)


def _experts(name: str) -> InExperts | None:
    if not in_experts(name):
        return None
    if any(each in name for each in _RETURN):
        return InExperts.RETURN
    return InExperts.MATMUL if any(f".{each}." in name for each in _MATMULS) else InExperts.MODULE


def _ring(name: str) -> str | None:
    found = _RING.fullmatch(name)
    return None if found is None else found["ring"]


def in_experts(name: str) -> bool:
    """Whether an operator, or a tensor, of this name is in the module of a layer's experts."""
    return _IN_EXPERTS.search(name) is not None


FIRST_TOKENS = f"embedding.{TOKENS}"
"""The tokens of a micro-batch. Layers that read them again read the same storage."""


def is_tokens(tensor: Tensor) -> bool:
    """Whether a tensor is the tokens of a micro-batch, by its name in a block."""
    return tensor.role == "input" and tensor.name.rpartition(".")[2] == TOKENS


@lru_cache(maxsize=1 << 14)
def tensor_facts(name: str, role: str) -> TensorFacts:
    """What a tensor of this name in a graph is. role: such as `weight` or `optimizer_state`."""
    owner, _, word = name.rpartition(".") if role == "optimizer_state" else (None, "", None)
    return TensorFacts(
        depth=depth_of(name),
        experts=in_experts(name),
        joined=role == "weight" and name.endswith("attn.wqkv.weight"),
        owner=owner,
        word=word,
    )
