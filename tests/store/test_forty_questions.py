"""The page of forty questions: both engines answer each as the page shows, and its pictures are what they answer."""

import html
import re

import pytest

from docs import forty, pictures
from stagedb.api.client import Stagedb
from stagedb.store import LABELS, RELATIONSHIPS, Store
from stagedb.store.unknown_names import unknown_names

DATA = forty.read()
PICTURES = [question.picture for question in DATA.questions if question.picture is not None]
FENCED = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")
LABEL = re.compile(r'label="(.+?)(?<!\\)"')
BY_INSTANCE = re.compile(r":(\w+) \{instance:")
HOW = "run .venv/bin/cog -r docs/forty-questions.md"
HOW_TO_DRAW = "run .venv/bin/python -m docs.pictures"


def test_both_engines_answer_as_the_page_shows(store: Store) -> None:
    db = Stagedb(store)
    forty.fill(db, DATA)
    for question, (title, cypher, answer) in zip(DATA.questions, forty.shown(), strict=True):
        assert (title, cypher) == (question.title, question.cypher), HOW
        assert forty.table(forty.ask(db, question)) == answer, f"{title}: {HOW}"
    for question in DATA.questions:
        if question.picture is not None:
            rows = list(forty.drawn(db, question))
            nodes = {pictures.node_of(row[end]).key for row in rows for end in ("head", "tail")}
            assert 5 < len(nodes) <= 25, question.picture.file
            text = pictures.dot(question.picture, rows)
            drawn = svg(question.picture)
            assert pictures.drawn_from(drawn) == pictures.digest(text), f"{question.picture.file}: {HOW_TO_DRAW}"
            names = {name.strip() for label in LABEL.findall(text) for name in label.split("\\n")}
            assert names <= texts(drawn)
    # A what-if is no plan that one compares with. The profile that is asked about is the newest again.
    db.profile(DATA.default, system="h100", scale=["collective:tp=0.5"])
    db.profile(DATA.default, system="h100")
    answers = {title: answer for title, _, answer in forty.shown()}
    for question in DATA.sections[-1].questions:
        assert forty.table(forty.ask(db, question)) == answers[question.title], question.title


def svg(picture: forty.Picture) -> str:
    return (pictures.IMAGES / f"{picture.file}.svg").read_text(encoding="utf-8")


def texts(drawn: str) -> set[str]:
    return {html.unescape(text).strip() for text in TEXT.findall(drawn)}


def test_there_are_forty() -> None:
    assert len(DATA.questions) == len({question.title for question in DATA.questions}) == 40
    assert [question.number for question in DATA.questions] == list(range(1, 41))
    assert len(PICTURES) == 5


@pytest.mark.parametrize("question", DATA.questions, ids=lambda question: question.title)
def test_a_question_is_plain_cypher_over_relationships(question: forty.Question) -> None:
    texts = [question.cypher] + ([question.picture.draw] if question.picture else [])
    for text in texts:
        assert unknown_names(text) == []
        # A rank alone is found by its instance's id.
        assert set(BY_INSTANCE.findall(text)) <= {"Rank"}
        assert "'" not in text, "a shell would end the text there"
    assert re.search(r"^ORDER BY ", question.cypher, re.MULTILINE), "its rows have no order"


def test_blocks_are_no_wider_than_a_terminal() -> None:
    blocks = FENCED.findall(forty.PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 80
    assert [line for block in blocks for line in block.splitlines() if len(line) > forty.COLUMNS] == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.file)
def test_a_picture_explains_its_colours_and_arrows(picture: forty.Picture) -> None:
    found = texts(svg(picture))
    legend = {text.removeprefix(":") for text in found if text.startswith(":") and " " not in text}
    assert legend
    assert legend <= {label.name for label in LABELS}
    types = {edge.type for edge in RELATIONSHIPS} & {text.split()[0] for text in found if text}
    assert {*picture.backwards, *picture.level} <= types
    assert types


def test_a_text_of_another_content_has_another_digest() -> None:
    node = {"labels": ["Op", "Compute"], "properties": {"id": "1", "name": "layer.0.ffn.w1", "index": 3}}
    other = {"labels": ["Op", "Send"], "properties": {"id": "2", "name": 'a "name" \\', "index": 2}}
    row = {"head": node, "type": "DEP", "tail": other}
    text = pictures.dot(PICTURES[0], [row])
    assert pictures.dot(PICTURES[0], [row, row]) == text
    assert 'label="a \\"name\\" \\\\"' in text
    assert "n1 -> n0" in text
    back = pictures.dot(PICTURES[0], [{"head": other, "type": "DEP", "tail": node}])
    assert pictures.digest(back) != pictures.digest(text)


def test_the_style_file_is_that_of_the_schema() -> None:
    text = pictures.STYLE.read_text(encoding="utf-8")
    assert text == pictures.grass(), HOW_TO_DRAW
    for label in LABELS:
        for name in (label.name, *label.also):
            assert f"node.{name} {{" in text


def test_a_wide_or_an_empty_answer_is_refused(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    with pytest.raises(ValueError, match="no rows"):
        forty.table(db.query("MATCH (g:Graph) RETURN g.name AS name"))
    with pytest.raises(ValueError, match="81 columns"):
        forty.table(db.query("RETURN $text AS text", {"text": "x" * 81}))
