"""What a step of serving needs: caches that ranks do not share, and for decoding one token behind a context."""

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Misfit, Way
from stagedb.plans.plan_fields import PlanFields


def check_requests(plan: PlanFields) -> None:
    """Raise UsageError for a step of serving that no cache can have, or whose caches ranks would share."""
    workflow = plan.workflow
    if not workflow.caches:
        return
    if plan.cp > 1:
        raise Misfit(
            f"ranks of cp would share the cache of each request, which stagedb does not know in {workflow.name}",
            ways=[Way({"cp": 1})],
        )
    if not workflow.next_token:
        return
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
