"""Profiles: their figures, their reports, and the summary of a plan on a page that prints well."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from stagedb.api import InstanceInfo, ProfileInfo, Rows, Stagedb, catalog, views
from stagedb.api.plan_summaries import plan_summary, the_step
from stagedb.errors import UsageError
from stagedb.files import file_name
from stagedb.reports.plan_summary import LIMITS, PlanPrices, PlanSummary, SummarySection
from stagedb.serve import page_frames
from stagedb.serve.memory_page import moment_links
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, named

CHOICES = 50
"""Things of each kind that a form suggests."""

REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)
"""A report has its scripts and styles inside. `sandbox` gives it an origin of its own, so that it reaches no page."""

PERFETTO = "https://ui.perfetto.dev"
"""The page that shows timelines, which a browser opens."""
HANDS_OVER = "same-origin-allow-popups"
"""The page of a profile or run may talk with the window that it opens for Perfetto; no other page reaches it."""


def profile(request: Request) -> Response:
    """A profile: the parts of the report of its step, which come after its head."""

    def read(db: Stagedb) -> tuple[ProfileInfo, Rows]:
        found = profile_of(db, request.path_params["word"])
        return found, db.origin(found.id)

    shared, kept = request.app.state.shared, request.app.state.kept
    found, origin = shared.read(read)

    key = ("parts", found.id)

    def parts() -> str:
        link = moment_links(found.instance)
        made: str = kept.get(key, lambda: shared.read(lambda db: views.report_parts(db.store, found.id, link).html))
        return made

    answer = page_frames.page_in_parts(
        request,
        "profile.html",
        parts,
        ready=kept.has(key),
        info=found,
        short=found.id[:SHORT_ID],
        origin=page_frames.origin(origin),
        report=address("profiles", found.id, "report"),
        trace=address("profiles", found.id, "trace"),
        perfetto=PERFETTO,
    )
    answer.headers["cross-origin-opener-policy"] = HANDS_OVER
    return answer


def report(request: Request) -> Response:
    """The report of a profile, as `stagedb report` writes it."""
    shared, kept = request.app.state.shared, request.app.state.kept
    found = shared.read(lambda db: profile_of(db, request.path_params["word"]))
    key = ("report", found.id, found.name, found.instance_name)
    return report_answer(kept.get(key, lambda: shared.read(lambda db: db.report_page(found.id))))


def trace(request: Request) -> Response:
    """The timeline of a profile as a file for Perfetto, as `stagedb timeline` writes it."""
    shared = request.app.state.shared
    found = shared.read(lambda db: profile_of(db, request.path_params["word"]))
    content: bytes = shared.read(lambda db: views.perfetto_trace(db.store, found.id))
    return trace_answer(content, found.name or found.instance_name, found.id)


def trace_answer(content: bytes, name: str, id: str) -> Response:
    """A timeline as a download, named after what it shows. content: of the file. name, id: of the profile or run."""
    named = f'attachment; filename="{file_name(name)}-{id[:SHORT_ID]}.pftrace"'
    return Response(content, headers={"content-disposition": named}, media_type="application/octet-stream")


def suggestions(db: Stagedb) -> list[tuple[str, str]]:
    """Ids of the newest instances, profiles, searches and runs, each with a description, for forms."""
    return [(id[:SHORT_ID], cell(text).text) for id, text in catalog.described_newest(db.store, CHOICES)]


def report_answer(text: str) -> Response:
    """A report as an answer, which reaches no page. text: the HTML."""
    return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})


def profile_of(db: Stagedb, word: str) -> ProfileInfo:
    """The profile with an id or name; the page answers 404 for one of another thing. word: the id or name."""
    found = db.show(word)
    if not isinstance(found, ProfileInfo):
        raise HTTPException(404)
    return found


# A plan on a page that prints well, for those who pay for it; and the same as a PDF.

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
