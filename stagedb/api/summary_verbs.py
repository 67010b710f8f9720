"""The verbs on summaries of plans, plans next to each other, and jobs, of `Stagedb`."""

from pathlib import Path
from typing import TYPE_CHECKING

from stagedb.api.python_words import all_for_python
from stagedb.store import Store

if TYPE_CHECKING:
    from stagedb.api.jobs import JobInfo
    from stagedb.api.plan_comparison import PlanComparison
    from stagedb.api.plan_summaries import SavedSummary
    from stagedb.reports.plan_summary import PlanSummary


@all_for_python
class SummaryVerbs:
    """The verbs of `Stagedb` on summaries of plans, comparisons of plans, and jobs. store: the connection."""

    store: Store

    def jobs(self) -> "list[JobInfo]":
        """The newest exports, imports, searches and profiles of all users: those that run first, the newest first.

        The store keeps 200 that took longer than a second. One without a sign of life for a minute was lost.
        """
        from stagedb.api import jobs

        return jobs.jobs(self.store)

    def plan_summary(
        self,
        target: str | None = None,
        /,
        *,
        tokens: int | str | None = None,
        price_hour: float | str | None = None,
        watts: float | str | None = None,
        price_kwh: float | str | None = None,
    ) -> "PlanSummary":
        """A plan on a page: its step, memory, days, price, energy, the expected error, and what it was compared with.

        target: a profile, or an instance with one, by id or name; the newest instance by default. tokens: to train on,
        such as `15T`. price_hour: of an accelerator and hour. watts: that an accelerator takes. price_kwh: of a kWh.
        Nothing has a price by default. Writes nothing.
        """
        from stagedb.api import plan_summaries
        from stagedb.reports.plan_summary import PlanPrices

        prices = PlanPrices.of({"tokens": tokens, "price_hour": price_hour, "watts": watts, "price_kwh": price_kwh})
        return plan_summaries.plan_summary(self.store, target, prices)

    def save_summary(
        self,
        target: str | None = None,
        /,
        *,
        tokens: int | str | None = None,
        price_hour: float | str | None = None,
        watts: float | str | None = None,
        price_kwh: float | str | None = None,
        out: Path | str | None = None,
        force: bool = False,
    ) -> "SavedSummary":
        """Write the same as a PDF.

        target, tokens, price_hour, watts, price_kwh: as in `plan_summary`. out: the file (`./NAME-RANKS.pdf` if not
        given). force: replace a PDF of this name.
        """
        from stagedb.api import plan_summaries
        from stagedb.reports.plan_summary import PlanPrices

        prices = PlanPrices.of({"tokens": tokens, "price_hour": price_hour, "watts": watts, "price_kwh": price_kwh})
        return plan_summaries.save_summary(self.store, target, prices, out, force)

    def compare(self, *words: str) -> "PlanComparison":
        """2 to 8 instances or profiles next to each other: plans, terms of the step, memory by category, work.

        words: ids or names. Instances have the times of their newest profiles, if all have one on one system. Writes
        nothing. Raises UsageError for unknown words, and for kinds that do not go together.
        """
        from stagedb.api import plan_comparison

        return plan_comparison.compare(self.store, words)
