"""The page of forty questions: its data file, the store that it queries, the answers."""

import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stagedb.api.client import Stagedb
from stagedb.api.results import Rows
from stagedb.cli.printed_rows import RowFormat, render

FILE = Path(__file__).with_name("forty-questions.yaml")
PAGE = Path(__file__).with_name("forty-questions.md")
COLUMNS = 80
"""The longest line of a block, in columns."""

BLOCKS = re.compile(r"^### \d+\. (.+?)$.*?^```cypher\n(.*?)^```$.*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Picture:
    """A part of the graph to draw. `draw` returns relationships: head, tail and type, and possibly a number.

    more: properties that a node of a label shows under its caption. direction: the direction of arrows, in Graphviz's
    term.
    backwards: types of relationships with arrows in the other direction. level: types whose two ends are side by side.
    line: the property that nodes on one line share.
    """

    file: str
    title: str
    draw: str
    more: Mapping[str, list[str]] = field(default_factory=dict)
    direction: str = "TB"
    backwards: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    line: str | None = None


@dataclass(frozen=True)
class Question:
    """A question with its Cypher. instance: the name of the instance for `$instance`."""

    number: int
    title: str
    why: str
    cypher: str
    instance: str
    params: Mapping[str, Any]
    seen: str | None
    picture: Picture | None


@dataclass(frozen=True)
class Section:
    """Questions about one part of the data model."""

    title: str
    about: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Made:
    """An instance to make, and the systems of its profiles. The questions are about the last one."""

    name: str
    words: Mapping[str, Any]
    systems: tuple[str, ...]
    memory: bool = False


@dataclass(frozen=True)
class Forty:
    """The content of the data file. words: the plan words of all instances."""

    model: str
    words: Mapping[str, Any]
    instances: tuple[Made, ...]
    default: str
    sections: tuple[Section, ...]

    @property
    def questions(self) -> tuple[Question, ...]:
        return tuple(question for section in self.sections for question in section.questions)


def read(path: Path = FILE) -> Forty:
    """The content of the data file."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    store, sections, numbers = data["store"], [], itertools.count(1)
    for section in data["sections"]:
        questions = tuple(_question(next(numbers), given, store["default"]) for given in section["questions"])
        sections.append(Section(section["title"], section["about"], questions))
    instances = tuple(Made(**{**each, "systems": tuple(each["systems"])}) for each in store["instances"])
    return Forty(store["model"], store["words"], instances, store["default"], tuple(sections))


def _question(number: int, given: Mapping[str, Any], instance: str) -> Question:
    return Question(
        number=number,
        title=given["title"],
        why=given["why"],
        cypher=given["cypher"],
        instance=given.get("instance", instance),
        params=given.get("params", {}),
        seen=given.get("seen"),
        picture=Picture(**given["picture"]) if "picture" in given else None,
    )


def fill(db: Stagedb, forty: Forty) -> None:
    """Make the instances and profiles of the questions."""
    for made in forty.instances:
        words = {**forty.words, **made.words}
        db.instantiate(forty.model, name=made.name, **words)
        if made.memory:
            db.memory(made.name)
        for system in made.systems:
            db.profile(made.name, system=system)


def ask(db: Stagedb, question: Question) -> Rows:
    """The answer to a question."""
    return db.query(question.cypher, question.params, instance=question.instance)


def drawn(db: Stagedb, question: Question) -> Rows:
    """The relationships that the question's picture shows."""
    if question.picture is None:
        raise ValueError(f"{question.title} has no picture")
    return db.query(question.picture.draw, question.params, instance=question.instance)


def table(rows: Rows) -> str:
    """The answer in the form of `stagedb query`. Raises ValueError if it has no rows or a line is too long."""
    text = render(RowFormat.TABLE, rows.columns, rows.rows, room=None)
    if not rows.rows:
        raise ValueError("the answer has no rows")
    wide = [line for line in text.splitlines() if len(line) > COLUMNS]
    if wide:
        raise ValueError(f"a line has {len(wide[0])} columns: {wide[0]}")
    return text


def commands(forty: Forty) -> str:
    """The commands for making the same store."""
    lines = [f'job="{forty.model} {_options(forty.words)}"']
    for made in forty.instances:
        lines.append(f"stagedb instantiate $job {_options(made.words)} --name {made.name}")
        if made.memory:
            lines.append(f"stagedb memory {made.name}")
        lines += [f"stagedb profile {made.name} --system {system}" for system in made.systems]
    return "".join(f"{line}\n" for line in ["```text", *lines, "```"])


def _options(words: Mapping[str, Any]) -> str:
    options = ((f"--{name.replace('_', '-')}", value) for name, value in words.items())
    return " ".join(option if value is True else f"{option} {value}" for option, value in options)


def contents(forty: Forty) -> str:
    """The sections as a list of links, with the numbers of their questions."""
    lines = []
    for section in forty.sections:
        first, last = section.questions[0].number, section.questions[-1].number
        link = re.sub(r"[^a-z -]", "", section.title.lower()).replace(" ", "-")
        lines.append(f"- [{section.title}](#{link}): {first} to {last}\n")
    return "".join(lines)


def page(db: Stagedb, forty: Forty) -> str:
    """The sections with all questions and answers, as Markdown."""
    return "\n".join("\n".join(_section(db, forty, section)) for section in forty.sections)


def _section(db: Stagedb, forty: Forty, section: Section) -> Iterator[str]:
    yield f"## {section.title}\n\n{_paragraph(section.about)}"
    for question in section.questions:
        yield f"### {question.number}. {question.title}\n\n{_paragraph(question.why)}"
        given = [f"`$instance` is that of `{question.instance}`"] if question.instance != forty.default else []
        given += [f"`${name}` is {value}" for name, value in question.params.items()]
        if given:
            yield f"Here {' and '.join(given)}.\n"
        yield f"```cypher\n{question.cypher}```\n\n```text\n{table(ask(db, question))}```\n"
        if question.seen:
            yield _paragraph(question.seen)
        if question.picture:
            yield f"![{question.picture.title}](images/{question.picture.file}.svg)\n"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False) + "\n"


def shown() -> list[tuple[str, str, str]]:
    """The title, Cypher and answer of each question on the current page."""
    return [(title, cypher, answer) for title, cypher, answer in BLOCKS.findall(PAGE.read_text(encoding="utf-8"))]
