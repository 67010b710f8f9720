"""The record of a model's own code: its parameters, and the matmuls of one forward, from shapes alone.

The model is made and run by the package `transformers` on the meta device, with attention written out.
"""

import copy
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.recording.under_torch.dealt_choices import deal_choices

ATEN = torch.ops.aten


class Matmuls(TorchDispatchMode):
    """Counts the matmuls that run in it: by name of operator and dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Counter[tuple[str, tuple[Any, ...]]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ATEN._local_scalar_dense.default:
            # A value that decides what runs, such as whether a mask is needed: none is there, and all such tests hold.
            return 1
        if getattr(func, "overloadpacket", None) is ATEN._grouped_mm:
            # Its kernel wants widths in whole multiples of 16 bytes; the count of its work does not.
            found = args[0].new_empty((args[0].shape[0], args[1].shape[2]))
        else:
            found = func(*args, **(kwargs or {}))
        for row in matmuls(func, args):
            # An expert without tokens has a matmul without rows.
            self.rows[row] += row[0] != "mm" or all(row[1])
        return found


def matmuls(func: Any, args: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """The rows of one call: `mm` and `bmm` are [b, m, n, k], `grouped` is [experts, rows, n, k]."""
    packet = getattr(func, "overloadpacket", None)
    if packet in (ATEN.mm, ATEN.addmm):
        left, right = args[-2:] if packet is ATEN.mm else args[1:3]
        return [("mm", (1, left.shape[0], right.shape[1], left.shape[1]))]
    if packet in (ATEN.bmm, ATEN.baddbmm):
        left, right = args[-2:] if packet is ATEN.bmm else args[1:3]
        return [("bmm", (left.shape[0], left.shape[1], right.shape[2], left.shape[2]))]
    if packet is getattr(ATEN, "_grouped_mm", None):
        left, right = args[:2]
        return [("grouped", (right.shape[0], left.shape[0], right.shape[2], right.shape[1]))]
    if packet is ATEN.convolution:
        return [("conv", (tuple(args[0].shape), tuple(args[1].shape)))]
    return []


def record(config: Mapping[str, Any], name: str, batch: int = 2, seq: int = 64, decode: bool = False) -> dict[str, Any]:
    """The record of a config in the format of `tests/validation/models.json`.

    decode: it has the matmuls of a step that adds a token to each sequence too, and the bytes of their cache.
    """
    known = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(dict(config)))
    made = class_of(config["architectures"][0], known)
    with torch.device("meta"):
        model = made._from_config(known, attn_implementation="eager", dtype=torch.bfloat16).eval()
        deal_choices(model)
        tokens = torch.zeros(batch, seq, dtype=torch.int64)
        with torch.no_grad(), Matmuls() as counted:
            model(input_ids=tokens, use_cache=False)
        further = decoded(model, tokens) if decode else {}
    named = parameters(model)
    return {
        "name": name,
        "model_type": config["model_type"],
        "class": config["architectures"][0],
        "parameters": sum(named.values()),
        "parameters_by_name": named,
        "config": dict(config),
        "batch": batch,
        "seq": seq,
        "forward": listed(counted),
        **further,
    }


def listed(counted: Matmuls) -> list[dict[str, Any]]:
    """The matmuls as rows of a record."""
    return [{"op": op, "dims": list(dims), "count": count} for (op, dims), count in counted.rows.items() if count]


def decoded(model: Any, tokens: Any) -> dict[str, Any]:
    """The matmuls of a step behind a prefill of these tokens, and the bytes of their cache."""
    with torch.no_grad(), Matmuls():
        made = model(input_ids=tokens, use_cache=True)
    word = "cache" if hasattr(made, "cache") else "past_key_values"
    cache = getattr(made, word)
    held = {id(each): each for each in tensors(cache)}
    kept = sum(each.numel() * each.element_size() for each in held.values() if each.is_floating_point())
    with torch.no_grad(), Matmuls() as counted:
        model(input_ids=tokens[:, :1], use_cache=True, **{word: cache})
    return {"decode": listed(counted), "kv_cache_bytes": kept}


def tensors(held: Any) -> Iterator[Any]:
    """The tensors with more than one element of a cache, of its layers and of their lists of states."""
    if isinstance(held, torch.Tensor):
        if held.numel() > 1:
            yield held
        return
    parts: Iterable[Any] = ()
    if isinstance(held, dict):
        parts = held.values()
    elif isinstance(held, list | tuple):
        parts = held
    elif isinstance(held, transformers.Cache | transformers.cache_utils.CacheLayerMixin):
        parts = vars(held).values()
    for part in parts:
        yield from tensors(part)


def class_of(architecture: str, known: Any) -> Any:
    """The class of an architecture; that of its config, if the package has it under another name."""
    found = getattr(transformers, architecture, None)
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(known)] if found is None else found


def of_text(model: Any) -> set[int]:
    """The parameters of the text model and of the head, by their ids; empty if the model is a text model.

    Experts that tokens of images alone pass (ERNIE 4.5 VL, `vision_moe`) are none of them.
    """
    if model.config.get_text_config(decoder=True) is model.config:
        return set()
    head = model.get_output_embeddings()
    parts = [part for part in (model.get_decoder(), head) if part is not None]
    return {id(each) for part in parts for name, each in part.named_parameters() if ".vision_moe." not in name}


def parameters(model: Any) -> dict[str, int]:
    """Elements of all parameters, a tied one once, by name with layer and expert numbers as `*`.

    A model with images or sound has those of its text model and of the head alone. Rows of zero experts, which no
    checkpoint has and no code reads (LongCat-Flash in transformers 5.24), are left out.
    """
    found: Counter[str] = Counter()
    own = of_text(model)
    with_zero = [each for each in model.modules() if getattr(each, "zero_expert_num", 0) and hasattr(each, "down_proj")]
    unread = {id(each.gate_up_proj): each.zero_expert_num for each in with_zero}
    for name, value in model.named_parameters():
        if own and id(value) not in own:
            continue
        found[re.sub(r"(?<=\.)\d+(?=\.)", "*", name)] += math.prod(value.shape)
        found[re.sub(r"(?<=\.)\d+(?=\.)", "*", name)] -= unread.get(id(value), 0) * math.prod(value.shape[1:])
    return dict(found)
