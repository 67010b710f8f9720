"""A step of an engine as words of a plan: how many ranks share what, and how many requests a step has."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import path_text, shown
from stagedb.frameworks.engines.flags import EngineSettings
from stagedb.mentions import Word, one_of
from stagedb.workflows import WORKFLOWS

SERVING = tuple(name for name, workflow in WORKFLOWS.items() if workflow.caches)
"""The workflows that a file of an engine describes."""

DECODING = tuple(name for name in SERVING if WORKFLOWS[name].decodes)
"""The workflows whose steps add tokens to the answers of requests."""

DRAFTS = ("speculation", "draft_method", "draft_tokens", "checked_tokens", "draft_steps", "draft_model")
"""Settings of speculative decoding."""


INNER = ("inner_dp", "dp_inside", "attention_dp")
"""Settings that put ranks of data parallelism among those of tp."""


@dataclass(frozen=True)
class Ranks:
    """How the ranks of a stage share a model.

    tp: ranks that share an attention. dp: ranks, or groups of tp ranks, with other requests among those that share
    experts. copies: of the whole model, each with its own requests. ep: ranks with other whole experts.
    """

    tp: int
    dp: int
    copies: int
    ep: int

    @property
    def together(self) -> int:
        """Number of ranks that share the experts of a layer."""
        return self.tp * self.dp

    @property
    def alike(self) -> bool:
        """Whether ranks with different experts have the same tokens, so that none are sent."""
        return self.tp > 1 and self.ep > 1


def plan_words(settings: EngineSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan for one step of an engine, without those of the command line.

    given: words of the command line, which win. Raises UsageError for a step that stagedb does not build, with a way
    out, and without one of the workflows of serving.
    """
    workflow = given.get("workflow")
    if workflow not in SERVING:
        raise UsageError(
            f"{settings.place} has arguments of {settings.engine.title}, which serves: choose its step with "
            f"{one_of('workflow', SERVING)}"
        )
    drafts = _drafts(settings, workflow, given)
    ranks = ranks_of(settings)
    words: dict[str, Any] = {"tp": ranks.tp, "pp": settings.number("pp"), "dp": ranks.dp * ranks.copies}
    if ranks.alike:
        words |= {"ep": ranks.ep, "expert_tp": False}
    elif ranks.ep > 1:
        words |= {"ep": ranks.ep} | _exchange(settings, workflow)
    words |= _copies(settings)
    words |= {each: settings.values[each] for each in FORMATS if each in settings.values}
    words |= _weights(settings, given)
    if not {"micro_batch_size", "global_batch_size", "requests"} & given.keys() and not WORKFLOWS[workflow].mixes:
        requests = _decoding if workflow in DECODING else _prompts
        words |= _halved(settings, {**words, **requests(settings, ranks, {**words, **given})})
    elif settings.values.get("overlap"):
        words["overlap_experts"] = True
    words |= drafts
    if "requests" not in given:
        _check_length(settings, {**words, **given}, workflow)
    return {word: value for word, value in words.items() if word not in given}


def _drafts(settings: EngineSettings, workflow: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens that a step checks for each request, and where its draft comes from.

    Raises UsageError for speculative decoding in a step of another workflow, and without a number of tokens.
    """
    named = next((each for each in DRAFTS if each in settings.values), None)
    if named is None:
        return {}
    if not WORKFLOWS[workflow].drafts:
        raise UsageError(
            f"{settings.place}: {settings.flag(named)}: speculative decoding gives each request several tokens in a "
            f"step; what works: {Word('workflow', 'speculative')} for the step that checks a draft, or leave it out"
        )
    words: dict[str, Any] = {}
    method = str(settings.values.get("draft_method", ""))
    if "draft" not in given and method:
        own = re.fullmatch(settings.engine.own_drafts, method.lower()) and "draft_model" not in settings.values
        words["draft"] = "own" if own else "other"
    if {"seq_len", "requests"} & given.keys():
        return words
    steps = {each: settings.number(each) for each in ("draft_tokens", "draft_steps") if each in settings.values}
    checked = {settings.number("checked_tokens")} if "checked_tokens" in settings.values else set()
    checked |= {each + 1 for each in steps.values()}
    if len(checked) != 1:
        flags = " and ".join(settings.flag(each) for each in ("checked_tokens", *steps) if each in settings.values)
        why = (
            "a step checks one chain of drafted tokens for each request, and these make a tree of them"
            if checked
            else f"{settings.engine.title} chooses how many tokens it drafts by itself"
        )
        raise UsageError(
            f"{settings.place}: {flags or settings.flag(named)}: {why}; what works: {Word('seq_len', 4)}, with one "
            "more than the drafted tokens"
        )
    return {**words, "seq_len": checked.pop()}


def _copies(settings: EngineSettings) -> dict[str, int]:
    """The copies of experts. UsageError for experts that are placed in another way than stagedb places them."""
    copies, balanced = settings.number("redundant", 0), bool(settings.values.get("balanced"))
    flags = settings.engine.flags.values()
    balances = next((f"--{flag.name}" for flag in flags if flag.sets == "balanced"), "")
    if copies and not balanced:
        raise UsageError(
            f"{settings.place}: {settings.flag('redundant')}: without {balances} the copies are of the first experts, "
            f"which stagedb does not build; what works: {balances}, with which they are of those with most choices"
        )
    if balanced and not copies:
        raise UsageError(
            f"{settings.place}: {settings.flag('balanced')}: without copies it moves experts to other ranks by their "
            "choices, which stagedb does not build; what works: a number of redundant experts, or leave it out"
        )
    return {"redundant_experts": copies} if copies else {}


FORMATS = ("dtype", "cache_dtype")
"""Settings that are number formats of a plan."""


def _weights(settings: EngineSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The format of weights. In fp8 both operands of a matmul have it; a weight of 4 bits is stored so."""
    stored = settings.values.get("weights")
    if stored is None or {"matmul_dtype", "weight_dtype"} & given.keys():
        return {}
    return {"matmul_dtype" if stored == "fp8" else "weight_dtype": stored}


def _halved(settings: EngineSettings, words: dict[str, Any]) -> dict[str, Any]:
    """The words with two halves of each batch that overlap, if the engine runs them so."""
    if not settings.values.get("overlap"):
        return words
    whole = int(words.get("micro_batch_size", 1))
    if whole % 2:
        raise UsageError(
            f"{settings.place}: {settings.flag('overlap')}: a step of {whole} requests has no two halves: take an even "
            f"number, or {Word('micro_batch_size')} for those of a half"
        )
    half, total = whole // 2, words.get("global_batch_size", whole * int(words["dp"]))
    return {**words, "overlap_experts": True, "micro_batch_size": half, "global_batch_size": total}


def ranks_of(settings: EngineSettings) -> Ranks:
    """How the ranks share the model. Raises UsageError for divisions that stagedb does not build."""
    engine, tp, dp = settings.engine, settings.number("tp"), settings.number("dp")
    if engine.tp_counts == "attention":
        ep = tp * dp if settings.values.get("all_ep") else 1
        ranks = Ranks(tp, dp, 1, ep)
    else:
        inside, copies = _inside(settings, tp, dp)
        ranks = Ranks(tp // inside, inside, copies, _experts(settings, tp))
    _check_built(settings, ranks)
    return ranks


def _inside(settings: EngineSettings, tp: int, dp: int) -> tuple[int, int]:
    """The ranks of data parallelism among those of tp, and the copies of the whole model."""
    if "inner_dp" in settings.values:
        setting, inside, copies = "inner_dp", settings.number("inner_dp"), dp
    elif settings.values.get("dp_inside"):
        setting, inside, copies = "dp", dp, 1
    else:
        setting, inside, copies = "attention_dp", tp if settings.values.get("attention_dp") else 1, dp
    if tp % inside:
        raise UsageError(
            f"{settings.place}: {settings.flag(setting)} does not divide the {tp} ranks of {settings.flag('tp')}, "
            "among which those of data parallelism are"
        )
    return inside, copies


def _experts(settings: EngineSettings, tp: int) -> int:
    """The ranks that have different whole experts."""
    if "exchange" in settings.values and settings.engine.exchange_divides:
        return tp
    ep = settings.number("ep", tp // settings.number("moe_tp", tp))
    if ep * settings.number("moe_tp", tp // ep) != tp:
        raise UsageError(
            f"{settings.place}: {settings.flag('ep' if 'ep' in settings.values else 'moe_tp')} does not divide the "
            f"{tp} ranks of {settings.flag('tp')}"
        )
    return ep


def _check_built(settings: EngineSettings, ranks: Ranks) -> None:
    """Raise UsageError for experts that ranks share in a way that no plan has."""
    title = settings.engine.title
    built = f"experts over all ranks of data parallelism, each with {Word('tp', 1)}, or over all of tensor parallelism"
    if ranks.ep == 1:
        if ranks.dp > 1 and settings.engine.tp_counts == "all":
            inner = next(settings.flag(each) for each in INNER if each in settings.values)
            raise UsageError(
                f"{settings.place}: {inner}: without expert parallelism {title} gathers the "
                "tokens of all ranks and partitions the feed-forward of each layer over them, which stagedb does not "
                f"build; what works: {built}, or no data parallelism of attention"
            )
        return
    flag = next((settings.flag(each) for each in ("all_ep", "ep", "moe_tp", "exchange") if each in settings.values), "")
    if ranks.tp > 1 < ranks.dp:
        raise UsageError(
            f"{settings.place}: {flag} with {ranks.tp} ranks of tensor parallelism and {ranks.dp} of data parallelism: "
            f"{title} gathers or cuts the tokens of the ones for the experts of the others, which stagedb does not "
            f"build; what works: {built} alone"
        )
    if ranks.ep != ranks.together:
        has = "the same" if ranks.tp > 1 else "different"
        raise UsageError(
            f"{settings.place}: {flag}: {ranks.together // ranks.ep} ranks with {has} requests would share each "
            f"expert, which stagedb does not build; what works: {built}"
        )
    if ranks.alike and "exchange" in settings.values and settings.engine.exchange_divides:
        raise UsageError(
            f"{settings.place}: {settings.flag('exchange')} with {ranks.tp} ranks of tensor parallelism: {title} cuts "
            "their tokens before it sends them, which stagedb does not build; what works: leave it out, or "
            f"experts over ranks of data parallelism, each with {Word('tp', 1)}"
        )


def check_experts(settings: EngineSettings, given: Mapping[str, Any], experts: bool) -> None:
    """Raise UsageError if ranks of data parallelism would share each expert, which is not built.

    given: words of the command line: `dp` there means copies of the model. experts: the model has some, or may have.
    """
    ranks = ranks_of(settings)
    if settings.engine.shared_experts and experts and ranks.dp > 1 == ranks.ep and not {"dp", "ep"} & given.keys():
        divide = next(f"--{flag.name}" for flag in settings.engine.flags.values() if flag.sets == "all_ep")
        raise UsageError(
            f"{settings.place}: {settings.flag('dp')}: in a model with experts {settings.engine.title} partitions each "
            f"of them over all {ranks.together} ranks, which stagedb does not build; what works: {divide}, or "
            f"{Word('dp', ranks.dp)} on the command line, for a model without experts"
        )


def _exchange(settings: EngineSettings, workflow: str) -> dict[str, Any]:
    exchange = settings.values.get("exchange")
    if exchange is not None:
        exchange = settings.values.get("exchange_mode", exchange)
    if exchange == "by_step":
        # DeepEP has two modes: low latency sends a token once for each of its experts, throughput once for each rank.
        exchange = "copies" if workflow in DECODING else "ranks"
    return {} if exchange is None else {"dispatch": exchange}


def _decoding(settings: EngineSettings, ranks: Ranks, words: Mapping[str, Any]) -> dict[str, Any]:
    """The most requests that a step of decode has."""
    engine, dp, pp = settings.engine, int(words["dp"]), int(words["pp"])
    if "group_requests" in settings.values:
        most = settings.number("group_requests")
        return {"micro_batch_size": most, **({"global_batch_size": most * pp * dp} if pp > 1 else {})}
    if "requests" not in settings.values:
        return {}
    most, flag = settings.number("requests"), settings.flag("requests")
    groups = [(ranks.dp, "ranks of data parallelism")] * (engine.requests_over == "engine")
    groups += [(pp, "groups in flight in the pipeline")] * (engine.requests_of == "groups")
    for parts, what in groups:
        if most % parts:
            raise UsageError(
                f"{settings.place}: {flag}: {most} requests do not divide among {parts} {what}: the nearest is "
                f"{max(most // parts, 1) * parts}, or {Word('micro_batch_size')} has those of a group"
            )
        most //= parts
    whole = {"global_batch_size": most * pp * dp} if pp > 1 else {}
    return {"micro_batch_size": most, **whole}


def _prompts(settings: EngineSettings, ranks: Ranks, words: Mapping[str, Any]) -> dict[str, Any]:
    """Requests of a prefill: as many prompts as its tokens have room for, or a chunk of one."""
    limits = {}
    if "step_tokens" in settings.values:
        whole = settings.number("step_tokens")
        limits["step_tokens"] = max(whole // ranks.dp, 1) if settings.engine.requests_over == "engine" else whole
    if "prefill_tokens" in settings.values:
        limits["prefill_tokens"] = settings.number("prefill_tokens")
    if not limits:
        return {}
    limit = min(limits, key=limits.__getitem__)
    most = limits[limit]
    requests = settings.number("prefill_requests", settings.number("requests", most))
    longest = settings.number("longest", most) - int(words.get("cache_len", 0))
    length = words.get("seq_len", min(most, max(longest, 1)))
    if not isinstance(length, int) or length < 1:
        return {}
    if length > most:
        raise UsageError(
            f"{settings.place}: {settings.flag(limit)}: a step has no room for prompts of {length} tokens; a "
            f"chunk of them is {Word('seq_len', most)} with {Word('cache_len')} for those before"
        )
    return {"seq_len": length, "micro_batch_size": min(most // length, requests)}


def _check_length(settings: EngineSettings, words: Mapping[str, Any], workflow: str) -> None:
    if "longest" not in settings.values:
        return
    new, before, most = words.get("seq_len", 1), words.get("cache_len", 0), settings.number("longest")
    if isinstance(new, int) and isinstance(before, int) and new + before > most:
        raise UsageError(
            f"{settings.place}: {settings.flag('longest')}: a request of {new + before} tokens is longer; "
            f"{Word('cache_len')} takes at most {most - 1}"
            if workflow in DECODING
            else f"{settings.place}: {settings.flag('longest')}: a request of {new + before} tokens is longer"
        )


def remarks(settings: EngineSettings) -> Iterator[str]:
    """What the file has that the plan does not: flags without effect, the model, variables of the environment."""
    file = path_text(Path(settings.path.name))
    if settings.without_effect:
        yield f"{file}: without effect on a step: {', '.join(settings.without_effect)}"
    if settings.model is not None:
        yield f"{file}: its model, {shown(settings.model)}, is not read: {Word('model')} names the one of the step"
    if settings.variables:
        yield f"{file}: variables of the environment are not read: {', '.join(settings.variables)}"
    ranks = ranks_of(settings)
    if settings.engine.default_exchange and ranks.ep > 1 and not ranks.alike and "exchange" not in settings.values:
        yield f"{file}: {settings.engine.default_exchange}"
    memory = [settings.written[each] for each in MEMORY if each in settings.values]
    if memory:
        yield f"{file}: {', '.join(memory)}: for the requests that fit, which `memory` counts"


MEMORY = ("memory_share", "block_size", "cache_bytes", "cache_most", "cache_tokens", "blocks")
"""Settings that no step has: they decide how many requests fit."""
