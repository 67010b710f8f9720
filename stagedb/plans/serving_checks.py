"""What a step of serving needs: caches that ranks can share, and requests of the kinds that it runs."""

from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans.context_checks import ALONE, SCANNED
from stagedb.plans.graph_options import DEALT_KEYS
from stagedb.plans.nearest_plans import Misfit, Numbers, Way, multiples
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.request_batches import RequestBatch
from stagedb.workflows import WORKFLOWS
from stagedb.workflows.workflow import Workflow


def check_requests(plan: PlanFields) -> None:
    """Raise UsageError for a step of serving that no cache can have, or whose caches ranks cannot share."""
    workflow = plan.workflow
    if not workflow.caches:
        return
    if plan.acceptance is not None:
        check_acceptance(plan.acceptance)
    batch = plan.request_batch
    if batch is not None:
        _check_kinds(plan, batch)
    elif workflow.mixes:
        raise UsageError(
            f"{workflow.name} has requests with one new token and others with more: list them with "
            f"{Word('requests', '2x512+0,64x1+4096')}"
        )
    elif workflow.next_token:
        _check_one_token(plan)
    elif workflow.drafts:
        _check_draft(plan)
    if plan.cp > 1:
        _check_shared_caches(plan)


def _check_shared_caches(plan: PlanFields) -> None:
    """Raise UsageError for ranks of cp without a key of each request, and for prefixes that requests share there."""
    batch = plan.request_batch
    fewest = plan.keys if batch is None else min((each.keys for each in batch.groups), default=batch.longest)
    if plan.cp > fewest:
        raise Misfit(
            f"{plan.cp} ranks of cp share the {fewest} positions of a request, so that some would have none",
            [Numbers("cp", range(fewest, 1, -1))],
            [ALONE],
        )
    if batch is not None and (batch.sums.s or any(each.shared for each in batch.groups)):
        raise Misfit(
            "requests share a prefix, and ranks of cp their caches: stagedb counts the tokens of such a prefix where a "
            "rank has whole caches",
            ways=[ALONE],
            last=f", or give {Word('requests')} without shared tokens",
        )


def check_shared_tokens(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for tokens that ranks of cp, which have the same ones, cannot deal to experts equally.

    sizes: the model's symbols, `E` for its experts.
    """
    if plan.options.cp_kind != DEALT_KEYS or "E" not in sizes:
        return
    if plan.requests:
        raise UsageError(
            "ranks of cp that share caches route the tokens of their parts of the requests, which stagedb counts for "
            f"requests of one length: give {Word('micro_batch_size')}, {Word('seq_len')} and {Word('cache_len')} in "
            f"place of {Word('requests')}, or take {Word('cp', 1)}"
        )
    if plan.micro_batch_size % plan.cp:
        raise Misfit(
            f"a micro-batch of {plan.micro_batch_size} is not divisible by the {plan.cp} ranks of cp, of which each "
            "routes the tokens of its part of the requests to experts",
            multiples("micro_batch_size", plan.micro_batch_size, plan.cp),
            [ALONE],
            lead="take",
        )


SCANS = tuple(SCANNED)
"""Symbols that models with states have."""


def check_acceptance(acceptance: float) -> None:
    """Raise UsageError for what is no probability that a drafted token is accepted. acceptance: the plan's."""
    if not 0 <= acceptance <= 1:
        raise UsageError(
            f"acceptance is {acceptance:g}: {Word('acceptance')} takes a probability, from 0 to 1, such as 0.8"
        )


def check_drafts(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for drafts that a model's own layers do not make, and for rejected tokens that stay in a state.

    Only keys and values in a cache can be taken back. sizes: the model's symbols, `MT` for the layers that draft.
    """
    if not plan.workflow.drafts:
        return
    if any(symbol in sizes for symbol in SCANS):
        raise Misfit(
            "scans and short convolutions have a state of all tokens, from which rejected ones cannot be taken back: "
            f"{plan.workflow.name} is for models that attend to the keys of each token",
            ways=[Way({"workflow": "decode", "seq_len": 1})],
        )
    own, drafted = sizes.get(DRAFTING, 0), plan.drafted
    if own and own != drafted:
        raise Misfit(
            f"the model's layers for further tokens draft a token each, together {own} of a request in a step, not "
            f"{drafted}",
            ways=[Way({"seq_len": own + 1})],
            last=f", {Word('draft', 'other')}, or a card with another multi_token_prediction",
        )


DRAFTING = "MT"
"""Symbol of the number of layers that draft tokens in a step."""


def check_scanned_requests(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for requests of several lengths in a model with scans or short convolutions.

    Each request begins chunks of its own there, and keeps a state. sizes: the model's symbols.
    """
    if plan.requests and any(symbol in sizes for symbol in SCANS):
        raise UsageError(
            "scans and short convolutions begin anew in each request and keep a state for it, which stagedb counts for "
            f"requests of one length: give {Word('micro_batch_size')}, {Word('seq_len')} and {Word('cache_len')} in "
            f"place of {Word('requests')}"
        )


def _check_kinds(plan: PlanFields, batch: RequestBatch) -> None:
    """Raise UsageError unless a batch has what its workflow runs: prefills, decodes, or both."""
    workflow = plan.workflow
    if plan.options.attention != "fused":
        raise Misfit(
            f"requests of several lengths are computed by a fused attention, not by {plan.options.attention}",
            ways=[Way({"attention": "fused"})],
        )
    if not _runs(workflow, batch):
        fitting = next((each for each in WORKFLOWS.values() if each.caches and _runs(each, batch)), None)
        if fitting is None:
            raise UsageError(
                f"the batch has {batch.decode.n:,} decodes with {batch.decode.q:,} new tokens: those of drafts are in "
                f"a step of their own, as many of each request ({Word('requests')})"
            )
        raise Misfit(
            f"{workflow.name} runs {_requests_of(workflow)}, and the batch has {batch.prefill.n:,} prefills and "
            f"{batch.decode.n:,} decodes",
            ways=[Way({"workflow": fitting.name})],
        )
    if workflow.decodes and not plan.cache_len:
        raise UsageError(f"{workflow.name} reads the cache of each request, and these of {Word('requests')} have none")


def _runs(workflow: Workflow, batch: RequestBatch) -> bool:
    """Whether one step of a workflow with a cache runs the requests of a batch."""
    sums = batch.sums
    if workflow.mixes:
        return bool(batch.prefill.n and batch.decode.n == batch.decode.q > 0)
    if workflow.next_token:
        return sums.q == sums.n
    if workflow.drafts:
        return sums.q > sums.n and sums.q**2 == sums.qq * sums.n
    return bool(batch.prefill.n and not batch.decode.n)


def _requests_of(workflow: Workflow) -> str:
    """The requests that a step of a workflow with a cache runs, in words."""
    if workflow.mixes:
        return "some requests with several new tokens and others with one"
    if workflow.next_token:
        return "requests with one new token"
    return "requests with as many new tokens each, 2 or more" if workflow.drafts else "requests with several new tokens"


def _check_draft(plan: PlanFields) -> None:
    workflow = plan.workflow
    if plan.seq_len < 2:
        raise UsageError(
            f"{workflow.name} checks the last token of each request and a draft behind it: give their number with "
            f"{Word('seq_len')}, such as {Word('seq_len', 4)} for drafts of 3 tokens"
        )
    if not plan.cache_len:
        raise UsageError(
            f"{workflow.name} reads the cache of each request, which has no tokens: give their number with "
            f"{Word('cache_len')}"
        )


def _check_one_token(plan: PlanFields) -> None:
    workflow = plan.workflow
    if plan.seq_len != 1:
        raise Misfit(
            f"{workflow.name} adds 1 token to each request, not {plan.seq_len}",
            ways=[Way({"seq_len": 1}), Way({"workflow": "prefill"})],
        )
    if not plan.cache_len:
        raise UsageError(
            f"{workflow.name} reads the cache of each request, which has no tokens: give their number with "
            f"{Word('cache_len')}"
        )
