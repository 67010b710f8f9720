"""A plan on a page that prints well, for those who pay for it; and the same as a PDF."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import InstanceInfo, ProfileInfo, Stagedb
from stagedb.api.plan_summaries import plan_summary, the_step
from stagedb.errors import UsageError
from stagedb.files import file_name
from stagedb.reports.plan_summary import LIMITS, PlanPrices, PlanSummary, SummarySection
from stagedb.serve import page_frames
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, named

FIELDS = {
    "tokens": ("tokens to train on", "15T"),
    "price_hour": ("price of an accelerator and hour", "2.50"),
    "watts": ("watts of an accelerator, with its share of the machine", "1000"),
    "price_kwh": ("price of a kWh", "0.12"),
}
"""The fields of the form: their labels, and how a value looks."""


def summary(request: Request) -> Response:
    """The summary of a profile, or of an instance by its newest profile."""
    given = {name: named(request.query_params, name) for name in LIMITS}
    format_ = named(request.query_params, "format")
    if format_ not in (None, "pdf"):
        raise UsageError(f"there is no format {format_[:20]}: it is pdf")
    prices = PlanPrices.of(given)
    kind = request.url.path.split("/")[1]

    def read(db: Stagedb) -> tuple[InstanceInfo, ProfileInfo | None, PlanSummary | None]:
        thing = db.show(request.path_params["word"])
        if not isinstance(thing, ProfileInfo if kind == "profiles" else InstanceInfo):
            raise HTTPException(404)
        instance, profile = the_step(db.store, thing.id)
        found = None if profile is None else plan_summary(db.store, profile.id, prices)
        return instance, profile, found

    instance, profile, found = request.app.state.shared.read(read)
    if format_ == "pdf" and found is not None:
        return _pdf(found)
    about = profile if kind == "profiles" and profile is not None else instance
    here = (kind, about.id, "summary")
    return page_frames.page(
        request,
        "summary.html",
        instance=instance,
        profile=profile,
        short=instance.id[:SHORT_ID],
        found=found,
        sections=[] if found is None else [(each, _lines(found, each)) for each in found.sections()],
        fields=[(name, label, like, given[name] or "") for name, (label, like) in FIELDS.items()],
        file=address(*here, **given, format="pdf"),
        back=address(kind, about.id),
    )


def _lines(found: PlanSummary, section: SummarySection) -> list[list[Cell]]:
    """The table of a section: the other plans, each with its page."""
    return [
        [
            cell(name, address("profiles", each.id)),
            cell(plan),
            *(Cell(text, number=True) for text in figures),
            cell(fits),
        ]
        for each, (name, plan, *figures, fits) in zip(found.rivals, section.lines, strict=False)
    ]


def _pdf(found: PlanSummary) -> Response:
    """The summary as a file."""
    # Most requests need no PDF.
    from stagedb.reports.summary_pdf import pdf

    name = f"{file_name(found.name)}-{found.ranks}.pdf"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(pdf(found), media_type="application/pdf", headers=headers)
