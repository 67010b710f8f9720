"""The summary of a plan as a PDF: A4, a page or two, with the fonts that every reader has. No browser is needed."""

import io
from collections.abc import Sequence
from typing import Final

from reportlab.lib.pagesizes import A4
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas

from stagedb.files import printable
from stagedb.reports.plan_summary import PlanSummary, SummaryRow, SummarySection

PLAIN, BOLD = "Helvetica", "Helvetica-Bold"
MARGIN: Final = 48.0
"""Points. Letter paper is 50 points shorter than A4: the margin at the foot leaves them."""
FOOT: Final = 80.0
INK, SOFT = 0.0, 0.35
"""Shades of grey."""
NAME, VALUE = 150.0, 175.0
"""Widths of the columns of figures."""
WIDTHS = (92.0, 150.0, 36.0, 66.0, 52.0, 62.0, 41.0)
"""Those of the table of other plans."""


def pdf(summary: PlanSummary) -> bytes:
    """The PDF of a plan's summary, as bytes. The same summary gives the same bytes."""
    file = io.BytesIO()
    sheet = _Sheet(Canvas(file, pagesize=A4, invariant=1), f"{summary.model} on {summary.system}")
    sheet.text(summary.name, BOLD, 18)
    sheet.text(f"profile {summary.profile[:12]}, {summary.made}", PLAIN, 9, SOFT)
    for each in summary.sections():
        sheet.section(each)
    sheet.end()
    return file.getvalue()


class _Sheet:
    """A canvas that is filled from the top, with a new page where one ends."""

    def __init__(self, canvas: Canvas, title: str) -> None:
        self._canvas, self._title, self._page = canvas, _latin(title), 0
        self._canvas.setTitle(self._title)
        self._canvas.setCreator("stagedb")
        self._width, self._height = A4
        self._y = 0.0
        self._begin()

    def text(self, text: str, font: str, size: float, shade: float = INK) -> None:
        """A paragraph over the whole width."""
        lines = _wrapped(text, font, size, self._width - 2 * MARGIN)
        self._room(len(lines) * size * 1.3)
        self._write(lines, MARGIN, font, size, shade)
        self._y -= len(lines) * size * 1.3

    def section(self, section: SummarySection) -> None:
        """A title with its figures. A title is never the last line of a page."""
        self._room(70)
        self._y -= 14
        self.text(section.title, BOLD, 12)
        for row in section.rows:
            self._figure(row)
        if section.columns:
            self._y -= 4
            self._line(section.columns, BOLD)
            for line in section.lines:
                self._line(line, PLAIN)

    def end(self) -> None:
        """Complete the last page and the file."""
        self._close()
        self._canvas.save()

    def _figure(self, row: SummaryRow) -> None:
        note = self._width - 2 * MARGIN - NAME - VALUE
        wide = not row.note
        columns = (
            (row.name, PLAIN, SOFT, MARGIN, NAME - 8),
            (row.value, BOLD if row.strong else PLAIN, INK, MARGIN + NAME, (VALUE + note if wide else VALUE) - 8),
            (row.note, PLAIN, SOFT, MARGIN + NAME + VALUE, note),
        )
        self._cells([(text, font, shade, x, width) for text, font, shade, x, width in columns], 9.5)

    def _line(self, texts: Sequence[str], font: str) -> None:
        found, x = [], MARGIN
        for text, width in zip(texts, WIDTHS, strict=True):
            found.append((text, font, INK, x, width - 5))
            x += width
        self._cells(found, 8)

    def _cells(self, columns: Sequence[tuple[str, str, float, float, float]], size: float) -> None:
        cells = [(_wrapped(text, font, size, width), font, shade, x) for text, font, shade, x, width in columns]
        height = max(len(lines) for lines, *_ in cells) * size * 1.25 + 4
        self._room(height)
        for lines, font, shade, x in cells:
            self._write(lines, x, font, size, shade)
        self._y -= height
        self._canvas.setStrokeGray(0.8)
        self._canvas.line(MARGIN, self._y + 1, self._width - MARGIN, self._y + 1)

    def _write(self, lines: Sequence[str], x: float, font: str, size: float, shade: float) -> None:
        self._canvas.setFont(font, size)
        self._canvas.setFillGray(shade)
        for at, line in enumerate(lines):
            self._canvas.drawString(x, self._y - size - at * size * 1.25, line)

    def _room(self, height: float) -> None:
        if self._y - height < FOOT:
            self._close()
            self._begin()

    def _begin(self) -> None:
        self._page += 1
        self._y = self._height - MARGIN

    def _close(self) -> None:
        self._canvas.setFont(PLAIN, 8)
        self._canvas.setFillGray(SOFT)
        self._canvas.drawString(MARGIN, FOOT - 22, f"{self._title}: stagedb, page {self._page}")
        self._canvas.showPage()


def _wrapped(text: str, font: str, size: float, width: float) -> list[str]:
    """The lines of a text; a word that is wider than the column is cut into several."""
    lines, line = list[str](), ""
    for word in _latin(text).split():
        longer = f"{line} {word}".strip()
        if stringWidth(longer, font, size) <= width:
            line = longer
            continue
        lines += [line] if line else []
        line = word
        while stringWidth(line, font, size) > width:
            most = next(at for at in range(len(line), 0, -1) if at == 1 or stringWidth(line[:at], font, size) <= width)
            lines.append(line[:most])
            line = line[most:]
    return [*lines, line]


def _latin(text: str) -> str:
    """A text in the characters of these fonts; others are written out, as `\\u4e2d`."""
    clean = printable(text, kept="")
    return clean.encode("cp1252", "backslashreplace").decode("cp1252")
