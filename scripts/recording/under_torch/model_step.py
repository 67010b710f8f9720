"""One training step of a model's own code, at tiny sizes and in double precision: its loss and every gradient.

Parameters have the values of `scripts.recording.drawn_values`, so that other code can run the same step. The experts
that tokens go to are dealt in turn (choice j of token t goes to expert `t·k + j mod E`), and the router decides the
weights alone. With zero experts a token's first k choices are dealt so, as many as in the mean, and the rest are zero.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode

from scripts.recording.drawn_values import drawn, drawn_table, drawn_tokens, probe
from scripts.recording.under_torch.dealt_choices import deal_choices
from scripts.recording.under_torch.model_code import of_text

WIDE = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64}


ROUTER = re.compile("Router|Gate$")
"""The classes that choose experts."""

EPSILON = 1e-5
"""What norms add before a root. Some models have 1e-6 in some of them, which no config names."""


class InDoubles(TorchFunctionMode):
    """Code that asks for a narrower format gets doubles, so that formulas are compared and not their rounding."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        words = {name: WIDE.get(value, value) if _is_format(value) else value for name, value in (kwargs or {}).items()}
        if func is torch.topk:
            words["sorted"] = True
        return func(*(WIDE.get(each, each) if _is_format(each) else each for each in args), **words)


def _is_format(value: Any) -> bool:
    return isinstance(value, torch.dtype)


def record(
    config: Mapping[str, Any], name: str, batch: int = 4, seq: int = 8, multi_token_prediction: int = 0
) -> dict[str, Any]:
    """The record of one step over `batch` sequences of `seq` tokens, each with its loss.

    multi_token_prediction: so many layers that predict further tokens are behind the model (`further_layers`).

    By the name of each parameter: its shape, and of its gradient the norm and the products with two drawn tensors
    (`probe`), which do not depend on the order in which code holds its rows. A parameter that the loss does not reach
    has no gradient.
    """
    known = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(dict(config)))
    made = getattr(transformers, config["architectures"][0])
    torch.set_default_dtype(torch.float64)
    with InDoubles():
        model = made._from_config(
            known, attn_implementation="eager", experts_implementation="eager", dtype=torch.float64
        ).eval()
        if multi_token_prediction:
            model.model.further = further_layers(model, multi_token_prediction)
        with torch.no_grad():
            for its, value in model.named_parameters():
                value.copy_(torch.from_numpy(drawn(its, tuple(value.shape))))
        for module in model.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = EPSILON
            if hasattr(module, "tid2eid"):
                module.tid2eid.copy_(torch.from_numpy(drawn_table(known.vocab_size, module.top_k, module.num_experts)))
            if ROUTER.search(type(module).__name__):
                module.register_forward_hook(_dealt)
        deal_choices(model)
        vocabulary = known.get_text_config(decoder=True).vocab_size
        tokens, labels = map(torch.from_numpy, drawn_tokens(vocabulary, batch, seq))
        if multi_token_prediction:
            loss = with_further_losses(model, tokens, labels)
        else:
            loss = cross_entropy(model(input_ids=tokens, use_cache=False).logits, labels)
        loss.backward()
    parameters: dict[str, dict[str, Any]] = {}
    own = of_text(model)
    for its, value in model.named_parameters():
        if own and id(value) not in own:
            continue  # parts for images and sound
        parameters[its] = {"shape": list(value.shape)}
        if value.grad is not None:
            gradient = value.grad.numpy()
            products = [float((gradient * probe(its, gradient.shape, turn)).sum()) for turn in (0, 1)]
            parameters[its] |= {"norm": float(np.linalg.norm(gradient)), "products": products}
    return {
        "name": name,
        "config": dict(config),
        "batch": batch,
        "seq": seq,
        **({"multi_token_prediction": multi_token_prediction} if multi_token_prediction else {}),
        "loss": float(loss.detach()),
        "parameters": parameters,
    }


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all tokens."""
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def further_layers(model: Any, count: int) -> Any:
    """Layers that predict further tokens, of the model's own decoder layer, norm and sizes.

    The names are those of DeepSeek's checkpoints: `enorm`, `hnorm`, `eh_proj`.
    """
    last, norm, known = model.model.layers[-1], model.model.norm, model.config
    width, made = known.hidden_size, []
    streams = hasattr(model.model, "hc_head")
    for _ in range(count):
        each = torch.nn.Module()
        each.enorm, each.hnorm, each.norm = (type(norm)(width, eps=known.rms_norm_eps) for _ in range(3))
        if streams:
            each.e_proj, each.h_proj = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
            each.hc_head = type(model.model.hc_head)(known)
        else:
            each.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        # Those of DeepSeek V4 have keys of a window alone, and no table of experts.
        place = known.layer_types.index("sliding_attention") if streams else len(model.model.layers) - 1
        each.layer = type(last)(known, layer_idx=place).double()
        made.append(each.double())
    return torch.nn.ModuleList(made).eval()


def with_further_losses(model: Any, tokens: Any, labels: Any, factor: float = 0.1) -> Any:
    """The model's loss, and `factor` times the mean loss of its further layers (arXiv 2412.19437, section 2.2).

    Behind each sequence is its beginning. The first of them reads the stream before the last norm, as in torchtitan
    (`models/deepseek_v3/mtp.py`).
    """
    inner = model.model
    read: list[Any] = []
    first = inner.hc_head if hasattr(inner, "hc_head") else inner.norm
    hook = first.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    normalised = inner(input_ids=tokens, use_cache=False).last_hidden_state
    hook.remove()
    main = cross_entropy(model.lm_head(normalised), labels)
    state = read[0]
    positions = torch.arange(tokens.shape[1])[None]
    losses = []
    for depth, each in enumerate(inner.further):
        ahead = each.enorm(inner.embed_tokens(labels.roll(-depth, dims=1)))
        if hasattr(each, "hc_head"):
            state = _behind_streams(model, each, ahead, state, positions)
            normal = each.norm(each.hc_head(state))
        else:
            normal = state = _behind(model, each, ahead, state, positions)
        losses.append(cross_entropy(model.lm_head(normal), labels.roll(-depth - 1, dims=1)))
    return main + factor * sum(losses) / len(losses)


def _behind(model: Any, each: Any, ahead: Any, state: Any, positions: Any) -> Any:
    """The normalised result of a further layer that reads one stream."""
    mask = torch.full((positions.shape[1],) * 2, float("-inf"), dtype=torch.float64).triu(1)[None, None]
    joined = each.eh_proj(torch.cat([ahead, each.hnorm(state)], dim=-1))
    turns = model.model.rotary_emb(joined, positions)
    made = each.layer(joined, attention_mask=mask, position_ids=positions, position_embeddings=turns)
    return each.norm(made[0] if isinstance(made, tuple) else made)


def _behind_streams(model: Any, each: Any, ahead: Any, streams: Any, positions: Any) -> Any:
    """The streams of a further layer that reads several, as `MTPBlock` of DeepSeek V4."""
    seen = torch.arange(positions.shape[1])
    behind = seen[:, None] - seen
    mask = torch.zeros(behind.shape, dtype=torch.float64)
    mask.masked_fill_((behind < 0) | (behind >= model.config.sliding_window), float("-inf"))
    joined = each.e_proj(ahead).unsqueeze(2) + each.h_proj(each.hnorm(streams))
    words = {word: model.model.rotary_emb(ahead, positions, layer_type=word) for word in ("main", "compress")}
    return each.layer(
        joined, position_embeddings=words, position_ids=positions, attention_mask=mask[None, None], input_ids=None
    )


def _dealt_scores(module: Any, parts: list[Any]) -> Any:
    """The output of Llama 4's router, the scores of all experts and the logits: the best scores, dealt in turn."""
    scores, logits = parts
    rows, experts = scores.shape
    best = torch.sigmoid(torch.topk(logits, module.top_k, dim=-1)[0])
    turns = (torch.arange(rows)[:, None] * module.top_k + torch.arange(module.top_k)) % experts
    return torch.zeros_like(scores).scatter(1, turns, best), logits


def _dealt(module: Any, inputs: Any, output: Any) -> Any:
    """The output of a router, with its experts dealt in turn."""
    if not isinstance(output, tuple):
        return output
    parts = list(output)
    at = next((place for place, part in enumerate(parts) if part.dtype == torch.int64), None)
    if at is None:
        return _dealt_scores(module, parts)
    rows, choices = parts[at].shape
    experts = next(part.shape[-1] for part in parts if part.dtype != torch.int64 and part.shape[-1] > choices)
    real = experts
    if getattr(module, "n_routed_experts", experts) != getattr(module, "num_experts", experts):
        real = module.num_experts  # of LongCat-Flash, whose n_routed_experts are all
    dealt = choices * real // experts
    parts[at] = (torch.arange(rows)[:, None] * dealt + torch.arange(choices)) % real
    parts[at][:, dealt:] = real
    return tuple(parts)
