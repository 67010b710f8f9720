"""A mixture of experts in place of a feed-forward: router, dispatch, experts as batched matmuls, combine (Shazeer et
al. 2017; Fedus et al. 2022), and experts that every token passes (Dai et al. 2024).

It has two regions in addition to those of a dense layer: `router`, on the tokens' own ranks, and `experts`, on the
ranks of the experts. Between them the collective matcher sends tokens to the ranks of their experts and back.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.ir.facts import DEALT, Tag
from stagedb.lazy_names import DeferredModule
from stagedb.mentions import Word
from stagedb.models.kinds import token_copies
from stagedb.models.kinds.feed_forward import LEARNED
from stagedb.models.kinds.part import (
    HIDDEN,
    Architecture,
    Branch,
    Buffers,
    KindWord,
    LayerPart,
    Rule,
    ShardingChoices,
    SizeSymbol,
    Table,
    Values,
)

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir import tensors
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")
    tensors = DeferredModule("stagedb.ir.tensors")

CHOICE_AXES = ("batch", "seq", "choices")
ALL_CHOICES = ("batch", "seq", "all_choices")
EXPERT_MATMULS = "ffn.experts"
"""How the names of the experts' matmuls begin, in their block."""

JITTER = 0.01
"""The default of `jitter`, that of Phi-3.5 MoE."""

INNER = ("experts", "slots", "expert_ffn")


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    bias = t.weight("ffn.bias", ("hidden",)) if values["sum_bias"] else None
    weights, chosen = chosen_experts(t, style, values, x)
    if values["zero_experts"]:
        y = _with_zero_experts(t, card, style, values, x, weights, chosen)
    else:
        y = routed(t, card, style, values, x, weights, chosen)
    return Branch(y if card.shared_ffn == 0 else _with_shared(t, card, style, values, x, y), bias)


def chosen_experts(
    t: "Tracer", style: "Style", values: Values, x: "Tensor", scaled: bool = False
) -> "tuple[Tensor, Tensor]":
    """The weights of a token's experts, and which they are, from what the router reads.

    scaled: each expert has a learned factor of its weights.
    """
    t.enter("router")
    router_bias = bool(values["router_bias"])
    experts = "routed_experts" if style.copied_experts else "experts"
    experts = "all_experts" if values.get("zero_experts") else experts
    logits = shared.linear(t, "ffn.router", x, (experts, "hidden"), ("batch", "seq", experts), router_bias)
    return _chosen(t, values, logits, scaled)


def _with_zero_experts(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor", weights: "Tensor", chosen: "Tensor"
) -> "Tensor":
    """What experts with weights and zero experts give each token, which is sent to the first alone.

    weights, chosen: (batch, seq, all_choices), those of experts with weights first.
    """
    if style.dispatch != "copies":
        raise UsageError(
            f"{card.name} has zero_experts, so that the number of experts that a token is sent to differs, and with it "
            f"that of their ranks, which is not known: take {Word('dispatch', 'copies')}"
        )
    own, zero = (t.activation(f"ffn.weights.{word}", ("batch", "seq", axis)) for word, axis in _SPLIT)
    t.emit("ffn.weights.parts", ops.SplitLast(*(axis for _, axis in _SPLIT)), (weights,), own, zero)
    y = routed(t, card, style, values, x, own, chosen)
    t.enter("router")
    kept = t.activation("ffn.zero", HIDDEN)
    t.emit("ffn.zero", ops.routing_variants.ZeroExperts(), (x, zero), kept)
    t.enter("between")
    return shared.add(t, "ffn.with_zero", y, kept)


_SPLIT = (("own", "choices"), ("zero", "zero_choices"))


def routed(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor", weights: "Tensor", chosen: "Tensor"
) -> "Tensor":
    """The sum of the results of each token's experts."""
    order = t.activation("ffn.order", CHOICE_AXES, "int64")
    t.emit("ffn.order", ops.Route(), (chosen,), order)
    size = "expert_latent" if values["expert_latent"] else "hidden"
    sent = x if size == "hidden" else _projected(t, style, "ffn.latent", x, size)
    before, bias = bool(values["scale_inputs"]), bool(values["expert_bias"])
    if style.dispatch != "copies":
        if before:
            raise UsageError(
                f"{card.name} scales what each expert gets, so that a token differs for each of them: take "
                f"{Word('dispatch', 'copies')}"
            )
        y = token_copies.sent_once(t, style, sent, weights, order, lambda x: _experts(t, card, style, x, bias))
        return y if size == "hidden" else _projected(t, style, "ffn.latent_back", y, "hidden")
    slots = t.activation("ffn.dispatch", ("experts", "slots", size))
    if before:
        own = t.activation("ffn.scaled", (*CHOICE_AXES, size))
        t.emit("ffn.scaled", ops.ChoiceScale(), (sent, weights), own)
        t.emit("ffn.dispatch", ops.DispatchChoices(), (own, order), slots)
    else:
        t.emit("ffn.dispatch", ops.Dispatch(), (sent, order), slots)

    out = _experts(t, card, style, slots, bias)

    t.enter("router")
    back, y = t.activation("ffn.combine", (*CHOICE_AXES, size)), t.activation("ffn.sum", ("batch", "seq", size))
    t.emit("ffn.combine", ops.Combine(), (out, order), back)
    t.emit("ffn.sum", *((ops.ChoiceSum(), (back,)) if before else (ops.WeightedSum(), (back, weights))), y)
    return y if size == "hidden" else _projected(t, style, "ffn.latent_back", y, "hidden")


def _projected(t: "Tracer", style: "Style", name: str, x: "Tensor", to: str) -> "Tensor":
    """Each rank's own tokens, projected to the latent of experts or back (Nemotron 3).

    The weight is whole on every rank of tp, as that of the router. Megatron-LM has it so (`fc1_latent_proj`).
    """
    t.enter("between")
    y = shared.linear(t, name, x, (to, x.axes[-1]), ("batch", "seq", to), form=style.linear)
    t.enter("router")
    return y


def _experts(t: "Tracer", card: Architecture, style: "Style", slots: "Tensor", bias: bool) -> "Tensor":
    """The experts as batched matmuls: slots to slots."""
    t.enter("experts", Tag.EXPERT)
    style = replace(style, linear=style.experts)
    size = slots.axes[-1]
    # Experts have their matrices the other way round: one batched matmul reads the weights of all.
    weight, packed = ("experts", size, "expert_ffn"), ("experts", "expert_ffn", "two", size)
    inner = _inner(t, card, style, EXPERT_MATMULS, slots, INNER, weight, packed, bias)
    back = ("experts", "expert_ffn", size)
    return shared.linear(t, f"{EXPERT_MATMULS}.w2", inner, back, slots.axes, bias, form=style.linear)


def _inner(
    t: "Tracer",
    card: Architecture,
    style: "Style",
    name: str,
    x: "Tensor",
    inner: tuple[str, ...],
    weight_axes: tuple[str, ...],
    packed_axes: tuple[str, ...],
    bias: bool = False,
) -> "Tensor":
    """The inner activation of experts, gated or plain."""
    if card.mlp == "gated":
        return shared.gated(t, card, style, name, x, inner, weight_axes, packed_axes, bias)
    up = shared.linear(t, f"{name}.w1", x, weight_axes, inner, bias, style.linear)
    y = t.activation(f"{name}.activation", inner)
    t.emit(f"{name}.activation", ops.Activation(card.activation), (up,), y)
    return y


def _chosen(t: "Tracer", values: Values, logits: "Tensor", scaled: bool) -> "tuple[Tensor, Tensor]":
    """The weights of a token's experts, and which they are: (batch, seq, choices) each. scaled: by a learned factor.

    Without `scores` the softmax is over the logits of the chosen experts.
    """
    axes = ALL_CHOICES if values.get("zero_experts") else CHOICE_AXES
    chosen = t.activation("ffn.chosen", axes, "int64")
    weights, shares = t.activation("ffn.weights", axes), t.activation("ffn.shares", axes, "fp32")
    if values["scores"]:
        every = t.activation("ffn.wide", logits.axes, "fp32")
        scores = t.activation("ffn.scores", logits.axes, "fp32")
        t.emit("ffn.wide", ops.Cast(), (logits,), every)
        if values["scores"] == "sparsemixer":
            best = t.activation("ffn.shares", CHOICE_AXES, "fp32")
            t.emit("ffn.shares", ops.SparseMixer(float(values["jitter"])), (every,), best, chosen)
            t.emit("ffn.weights", ops.Cast(), (best,), weights)
            return weights, chosen
        score = ops.ChoiceSoftmax() if values["scores"] == "softmax" else ops.Activation(str(values["scores"]))
        t.emit("ffn.scores", score, (every,), scores)
        best = t.activation("ffn.topk", axes, "fp32")
        if values["hashed"]:
            table = t.tensor("ffn.router.table", ("table_tokens", "choices"), "int64", "buffer")
            t.emit("ffn.chosen", ops.TableChoice(), (token_ids(t), table), chosen)
            t.emit("ffn.topk", ops.ChosenScores(), (scores, chosen), best)
        else:
            t.emit("ffn.topk", _choice(values), (scores,), best, chosen)
        if values["normalised"]:
            t.emit("ffn.shares", ops.Normalise(), (best,), shares, t.activation("ffn.total", ("batch", "seq"), "fp32"))
            best = shares
        best = shared.scaled(t, "ffn.routing_scale", best, float(values["routing_scale"]))
        best = _by_expert(t, best, chosen, logits.axes[-1]) if scaled else best
        t.emit("ffn.weights", ops.Cast(), (best,), weights)
        return weights, chosen
    best, wide = t.activation("ffn.topk", CHOICE_AXES), t.activation("ffn.wide", CHOICE_AXES, "fp32")
    t.emit("ffn.topk", ops.TopK(), (logits,), best, chosen)
    t.emit("ffn.wide", ops.Cast(), (best,), wide)
    t.emit("ffn.shares", ops.ChoiceSoftmax(), (wide,), shares)
    t.emit("ffn.weights", ops.Cast(), (_by_expert(t, shares, chosen, logits.axes[-1]) if scaled else shares,), weights)
    return weights, chosen


TOKENS = "tokens"
"""The name of the model's tokens in a block."""


def token_ids(t: "Tracer") -> "Tensor":
    """The tokens that the embedding looks up, which a layer reads again."""
    return t.tensor(TOKENS, ("batch", "seq"), "int64", "input")


def _choice(values: Values) -> "ops.TopK | ops.routing_variants.TopKOfAll | ops.GroupedTopK":
    """How the experts of a token are chosen by their scores. The score of a group is its largest one with a softmax, as
    in DeepSeek V2 (`group_limited_greedy`), and the sum of its two largest ones otherwise, as in V3 (`noaux_tc`)."""
    groups = int(values["expert_groups"])
    if not groups:
        return ops.routing_variants.TopKOfAll() if values.get("zero_experts") else ops.TopK()
    return ops.GroupedTopK(groups, int(values["chosen_groups"]), 1 if values["scores"] == "softmax" else 2)


def _by_expert(t: "Tracer", best: "Tensor", chosen: "Tensor", experts: str) -> "Tensor":
    """Weights of choices times the learned factors of their experts. experts: the axis that a token chooses from."""
    y = t.activation("ffn.by_expert", CHOICE_AXES, "fp32")
    factors = t.weight("ffn.router.expert_scale", (experts,))
    t.emit("ffn.by_expert", ops.ExpertScale(), (best, factors, chosen), y)
    return y


def _with_shared(
    t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor", routed: "Tensor"
) -> "Tensor":
    """The result of the experts that every token passes, added to the result of the routed ones."""
    t.enter("ffn")
    inner_axes = ("batch", "seq", "shared_ffn")
    weight, packed = ("shared_ffn", "hidden"), ("shared_ffn", "two", "hidden")
    bias = bool(values["shared_bias"])
    inner = _inner(t, card, style, "ffn.shared", x, inner_axes, weight, packed, bias)
    every = shared.linear(t, "ffn.shared.w2", inner, ("hidden", "shared_ffn"), HIDDEN, bias, style.linear)
    if values["shared_gate"]:
        every = _gated_shared(t, x, every)
    t.enter("between")
    y = t.activation("ffn.both", HIDDEN)
    t.emit("ffn.both", ops.Add(), (routed, every), y)
    return shared.scaled(t, "ffn.result_scale", y, float(values["result_scale"]))


def _gated_shared(t: "Tracer", x: "Tensor", every: "Tensor") -> "Tensor":
    """The shared experts' result times a gate: one sigmoid a token (Qwen 1.5 MoE)."""
    t.enter("between")
    one = ("batch", "seq", "one")
    logits = shared.linear(t, "ffn.shared_gate", x, ("one", "hidden"), one)
    y = t.activation("ffn.shared_gated", HIDDEN)
    t.emit("ffn.shared_gated", ops.TokenGate(), (every, logits), y)
    return y


def _with_so_many(card: Architecture, values: Values, experts: int) -> int:
    """Parameters of a layer with this many routed experts, shared ones and router included."""
    up, latent = 2 if card.mlp == "gated" else 1, int(values["expert_latent"])
    size, gate = latent or card.hidden, 1 if values["shared_gate"] else 0
    biases = experts * (up * card.expert_ffn + size) if values["expert_bias"] else 0
    biases += up * card.shared_ffn + card.hidden if values["shared_bias"] else 0
    chosen_from = card.experts + int(values.get("zero_experts", 0))
    biases += chosen_from if values["router_bias"] else 0
    biases += card.hidden if values.get("sum_bias") else 0
    routed = (up + 1) * experts * card.expert_ffn * size + 2 * card.hidden * latent
    return card.hidden * (chosen_from + (up + 1) * card.shared_ffn + gate) + routed + biases


def _check_values(card: Architecture, values: Values) -> None:
    for word in ("shared_gate", "shared_bias", "result_scale"):
        if values[word] and not card.shared_ffn:
            raise UsageError(f"{card.name}: {word} is for shared experts, and shared_ffn is 0")
    mixed = values["scores"] == "sparsemixer"
    if mixed and (values["normalised"] or values["routing_scale"]):
        raise UsageError(f"{card.name}: sparsemixer has weights of its own: set normalised to false, no routing_scale")
    if not mixed and values["jitter"] != JITTER:
        raise UsageError(f"{card.name}: jitter is for scores: sparsemixer")
    if not values["scores"] and (values["normalised"] is False or values["routing_scale"]):
        raise UsageError(
            f"{card.name}: normalised and routing_scale are for scores of all experts: set scores to softmax or sigmoid"
        )
    if values["hashed"] and (mixed or not values["scores"] or values["expert_groups"]):
        raise UsageError(
            f"{card.name}: hashed experts are chosen by a table, and have the scores of a function of their own: set "
            "scores to sqrtsoftplus, sigmoid or softmax, and leave expert_groups out"
        )
    _check_zero_experts(card, values)
    _check_groups(card, int(values["expert_groups"]), int(values["chosen_groups"]), str(values["scores"]))


def _check_zero_experts(card: Architecture, values: Values) -> None:
    """Raise UsageError for zero experts next to what has no meaning with them, or of which a token gets a part."""
    zero = int(values.get("zero_experts", 0))
    if not zero:
        return
    other = next((word for word in _NOT_WITH_ZERO if values[word]), None)
    if other is not None:
        raise UsageError(f"{card.name}: zero_experts are not with {other}: leave one of them out")
    if values["scores"] not in ("softmax", "sigmoid"):
        raise UsageError(
            f"{card.name}: zero_experts are chosen by scores of all experts: set scores to softmax or sigmoid"
        )
    if card.top_k * zero % card.experts:
        raise UsageError(
            f"{card.name}: top_k={card.top_k} of experts={card.experts} for a token are {card.top_k * zero}"
            f"/{card.experts} of zero_experts={zero} in the mean, which is no whole number, and choices are counted "
            "whole: take another top_k"
        )


_NOT_WITH_ZERO = ("expert_groups", "expert_latent", "hashed", "scale_inputs")


def _check_groups(card: Architecture, groups: int, chosen: int, scores: str) -> None:
    """Raise UsageError for groups of experts from which no token can choose its own."""
    if not groups and not chosen:
        return
    if not groups or not chosen:
        word, other = ("chosen_groups", "expert_groups") if chosen else ("expert_groups", "chosen_groups")
        raise UsageError(f"{card.name}: {word} has no {other}: set both, or neither")
    if scores in ("", "sparsemixer"):
        raise UsageError(
            f"{card.name}: expert_groups are chosen by the scores of all experts: set scores to softmax or sigmoid"
        )
    if card.experts % groups:
        raise UsageError(f"{card.name}: expert_groups={groups} does not divide experts={card.experts}")
    if chosen > groups:
        raise UsageError(f"{card.name}: chosen_groups={chosen} is above expert_groups={groups}")
    each = card.experts // groups
    if chosen * each < card.top_k:
        raise UsageError(
            f"{card.name}: {chosen} groups have {chosen * each} experts, and top_k={card.top_k} process a token"
        )


def _check(card: Architecture) -> None:
    if card.experts == 0:
        given = [name for name in ("top_k", "expert_ffn", "shared_ffn", "dense_layers") if getattr(card, name)]
        if given:
            raise UsageError(f"{card.name}: {given[0]} is for a mixture of experts, and experts is 0")
        return
    if not 1 <= card.top_k <= card.experts:
        raise UsageError(f"{card.name}: top_k={card.top_k} is not from 1 to experts={card.experts}")
    if card.expert_ffn == 0:
        raise UsageError(f"{card.name}: expert_ffn must be positive, not 0")
    if card.dense_layers >= card.layers:
        raise UsageError(f"{card.name}: dense_layers={card.dense_layers} leaves no layer with experts")
    if card.linear_bias:
        raise UsageError(f"{card.name}: experts are without linear_bias: a layer kind has expert_bias")
    if card.activation == LEARNED:
        raise UsageError(f"{card.name}: {LEARNED} is for feed-forwards, and the model has experts")


def _buffers(card: Architecture, style: "Style") -> Buffers:
    """The order of a rank's choices by expert and its inverse, if a framework keeps them in addition to the layers."""
    words = ("order", "inverse") if style.routing_tables else ()
    axes = ("own_tokens", "choices")
    return tuple((tensors.Tensor(f"stage.{word}", axes, "int64", "buffer"), "router") for word in words)


def with_shared_width(rule: Rule) -> Rule:
    """The rule with the width of shared experts partitioned like that of a feed-forward."""
    return {**rule, "shared_ffn": rule["ffn"]} if "ffn" in rule else rule


def _planned(choices: ShardingChoices, table: Table) -> Table:
    """The table with rules for the regions `router` and `experts` (expert parallelism, Lepikhin et al. 2020).

    dp · cp = edp · ep. Tokens remain on their ranks in `router`, and slots follow the ranks that own the tokens. In
    `experts` the experts are partitioned over ep and the slots over edp. Tensor parallelism is inside each expert;
    without `expert_tp`, under sp, the ranks of tp, which have tokens of their own, are among those of edp and ep.
    Without sp they have the same tokens, and each deals them to its own experts (`experts_of_tp`), so that the results
    of a token's choices are added over tp. Ranks of cp that share a cache have the same tokens, and each routes those
    of its part of the requests. With `routes_whole` the ranks of tp have the same tokens in `router`. On ranks of tp
    experts of attention have parts of all heads, and those of a feed-forward have parts of their width.
    """
    width: Rule = {"expert_ffn": ("tp",), "query_heads": ("tp",)} if choices.expert_tp else {}
    experts: Rule = {"experts": ("ep", "tp") if choices.experts_of_tp else ("ep",), "slots": ("edp",), **width}
    tokens = table["between"]
    if choices.cp_kind == "allgather-lse":
        tokens = {**tokens, "batch": (*tokens["batch"], "cp")}
    if choices.routes_whole:
        tokens = {axis: tuple(each for each in cut if each != "tp") for axis, cut in tokens.items()}
    # Where ranks of tp have the same tokens, each has the queries of its own heads.
    alike = choices.expert_tp and not any("tp" in cut for cut in tokens.values())
    heads: Rule = {"query_heads": ("tp",)} if alike else {}
    rules: dict[str, Rule] = {
        **{region: with_shared_width(rule) for region, rule in table.items()},
        "router": {
            **tokens,
            **heads,
            "slots": dealers(choices),
            **({DEALT: ("tp",)} if choices.experts_of_tp else {}),
        },
        "experts": experts,
    }
    return token_copies.planned(rules, choices.dispatch, dealers(choices))


def dealers(choices: ShardingChoices) -> tuple[str, ...]:
    """The mesh axes whose ranks each deal tokens of their own to the slots of experts."""
    own = choices.sp and choices.expert_tp and not choices.routes_whole
    return ("edp", "ep", "tp") if own else ("edp", "ep")


EXPERTS = LayerPart(
    name="experts",
    forward=_forward,
    parameters=lambda card, values: _with_so_many(card, values, card.experts),
    idle=lambda card, values: _with_so_many(card, values, card.experts) - _with_so_many(card, values, card.top_k),
    check=_check,
    check_values=_check_values,
    words={
        "chosen_groups": KindWord("the groups that a token chooses its experts from (0: all experts)", 0),
        "expert_bias": KindWord("whether the matmuls of experts have biases", False),
        "expert_groups": KindWord("the groups that experts are in, from some of which a token chooses (0: none)", 0),
        "expert_latent": KindWord("the size of the latent that experts work on (0: the hidden state itself)", 0),
        "hashed": KindWord("whether a table of tokens chooses the experts, in place of their scores", False),
        "jitter": KindWord("how near to the largest logit others are, for sparsemixer", JITTER),
        "normalised": KindWord("whether the scores of a token's experts are divided by their sum", True),
        "result_scale": KindWord("the factor of the sum of routed and shared experts (0: none)", 0.0),
        "router_bias": KindWord("whether the router has a bias", False),
        "routing_scale": KindWord("the factor of the weights of experts (0: none)", 0.0),
        "scale_inputs": KindWord("whether weights scale what experts get, in place of what they give", False),
        "sum_bias": KindWord("whether the sum of a token's results has a bias", False),
        "scores": KindWord(
            "the function that scores all experts; without it a softmax over the logits of the chosen ones",
            "",
            ("softmax", "sigmoid", "sqrtsoftplus", "sparsemixer"),
        ),
        "shared_bias": KindWord("whether the matmuls of shared experts have biases", False),
        "shared_gate": KindWord("whether the shared experts' result has a gate", False),
        "zero_experts": KindWord(
            "experts that return their token: of a token's choices top_k are of the others, and as many in proportion "
            "of these (0: none)",
            0,
        ),
    },
    symbols={
        "E": SizeSymbol("experts", "number of experts", lambda card: card.experts),
        "K": SizeSymbol("experts_per_token", "experts that compute one token", lambda card: card.top_k),
        "FE": SizeSymbol("expert_ffn", "width of one expert", lambda card: card.expert_ffn),
        "EL": SizeSymbol("expert_latent", "size of the latent of experts", lambda card: card.word("expert_latent")),
        "EG": SizeSymbol("expert_groups", "groups of experts", lambda card: card.word("expert_groups")),
        "EC": SizeSymbol(
            "chosen_groups", "groups that a token chooses its experts from", lambda card: card.word("chosen_groups")
        ),
        "VT": SizeSymbol(
            "table_tokens", "rows of tables that choose experts by tokens", lambda card: card.hashed_tokens
        ),
        "FS": SizeSymbol("shared_ffn", "width of the experts that compute every token", lambda card: card.shared_ffn),
        "ZE": SizeSymbol("zero_experts", "experts that return their token", lambda card: card.word("zero_experts")),
        "LD": SizeSymbol(
            "dense_layers",
            "layers without experts, where others have some",
            lambda card: card.layers_without_experts,
        ),
    },
    axes={
        "experts": "E",
        "routed_experts": "E",
        "all_experts": "E + ZE",
        "choices": "K",
        # Every token has as many choices of zero experts as in the mean over all experts.
        "zero_choices": "K*ZE / E",
        "all_choices": "K + K*ZE/E",
        "expert_ffn": "FE",
        "expert_latent": "EL",
        "shared_ffn": "FS",
        "table_tokens": "VT",
        # Each rank deals its own tokens, so it rounds up its own share of an expert's slots. Every expert has as many
        # slots as the one that is chosen most; `Sizes` has the number of filled ones.
        "slots": "dealers * ceil(B*S*K*capacity*load_most / (load_all*per*dealers))",
        "own_tokens": "B*S / (dp*cp)",
        **token_copies.AXES,
        "one": "1",
    },
    planned=_planned,
    left={
        "router": f"which follows {Word('ep')} and {Word('sp', True)}",
        "experts": f"which follows {Word('ep')} and {Word('expert_tp', True)}",
        **dict.fromkeys(token_copies.EXCHANGES, f"which follows {Word('ep')} and {Word('dispatch')}"),
    },
    buffers=_buffers,
    routes=True,
)
