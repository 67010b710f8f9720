"""`report --pdf`: the summary of a plan as a PDF."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from stagedb.cli.export import size
from stagedb.cli.help_groups import OWN
from stagedb.cli.shared_options import Common
from stagedb.errors import UsageError


@dataclass(frozen=True)
class SummaryOptions:
    """What a summary takes. The fields but `pdf` are the words of `Stagedb.save_summary`."""

    PANEL: ClassVar[str] = OWN

    pdf: Annotated[bool, typer.Option("--pdf", help="Write a summary of a page or two as a PDF instead.")] = False
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="With --pdf: tokens to train on, such as 15T.", show_default=False)
    ] = None
    price_hour: Annotated[
        str | None, typer.Option(metavar="PRICE", help="With --pdf: what an accelerator costs an hour.")
    ] = None
    watts: Annotated[
        str | None,
        typer.Option(metavar="W", help="With --pdf: what an accelerator takes, with its share of the machine."),
    ] = None
    price_kwh: Annotated[str | None, typer.Option(metavar="PRICE", help="With --pdf: what a kWh costs.")] = None

    def words(self) -> dict[str, str | None]:
        """The numbers as keyword arguments."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "pdf"}

    def wanted(self, others: Mapping[str, object]) -> bool:
        """Whether the options ask for a summary.

        others: options that a summary does not take. Raises UsageError if one of these is given with it.
        """
        if not self.pdf:
            given = [name for name, value in self.words().items() if value is not None]
            if given:
                raise UsageError(f"--{given[0].replace('_', '-')} is for a summary: add --pdf, or leave it out")
            return False
        wrong = [name for name, value in others.items() if value]
        if wrong:
            name = wrong[0] if wrong[0].startswith("--") or wrong[0].isupper() else f"--{wrong[0].replace('_', '-')}"
            raise UsageError(
                f"--pdf writes a summary of a profile of the store: leave out {name}, or make the profile first with "
                "`stagedb profile`"
            )
        return True


def write_summary(target: str | None, asked: SummaryOptions, out: Path | None, force: bool, common: Common) -> None:
    """Write the PDF, and print what it has in a line.

    target: id or name of what it is about; None: the newest. out: the file; None: named after the plan. force: replace
    an earlier one.
    """
    from stagedb.reports.plan_summary import amount

    with common.connect() as db:
        done = db.save_summary(target, out=out, force=force, **asked.words())
    found = done.summary
    days = "" if found.days is None else f", {amount(found.days)} days for {found.prices.tokens:,} tokens"
    price = "" if found.price is None else f", price {amount(found.price)}"
    common.line(f"{done.path}: {found.model} on {found.ranks:,} x {found.system}{days}{price}, {size(done.bytes)}")
