"""Messages keep what they name: texts are put together as all texts are, and words and calls come out of them whole."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import OPTIONS, Form, VerbCall, Word, Words, call, parts_of, shown_in

NAMES = st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.lists(st.text()).map(tuple),
)
WORDS = st.builds(Word, NAMES, VALUES, st.one_of(st.just(""), NAMES))
CALLS = st.builds(VerbCall, NAMES, st.lists(st.text()).map(tuple), st.lists(WORDS).map(tuple))
MENTIONS = st.one_of(WORDS, st.builds(Words, st.lists(WORDS).map(tuple)), CALLS)
PLAIN = st.text(st.characters(exclude_characters="\ufdd0\ufdd1"), min_size=1)


@given(st.lists(st.tuples(PLAIN, MENTIONS)), st.just("."))
def test_a_message_has_its_mentions_whole(pairs: list[tuple[str, Any]], end: str) -> None:
    message = "".join(f"{text}{mention}" for text, mention in pairs) + end
    assert list(parts_of(message)) == [part for pair in pairs for part in pair] + [end]


@given(MENTIONS)
def test_a_message_may_be_split_at_spaces_and_colons(mention: Any) -> None:
    message = f"what {mention}: a way"
    assert " ".join(message.split()) == message
    assert list(parts_of(message.partition(":")[0])) == ["what ", mention]


@given(st.text('\ufdd0\ufdd1[]"word,tp 4'))
def test_other_texts_between_the_marks_stay(text: str) -> None:
    shown_in(OPTIONS, text)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (f"leave {Word('sp', True)} or {Word('expert_tp', False)} out", "leave --sp or --no-expert-tp out"),
        (f"{Word('loss_parallel', False, 'gather_logits')}", "--gather-logits"),
        (f"{Words((Word('tp', 4), Word('layers_per_stage', (2, 2))))}", "--tp 4 --layers-per-stage 2,2"),
        (f"{call('store add', 'NAME', keyring=True, username=None)}", "`stagedb store add NAME --keyring --username`"),
    ],
)
def test_options_of_the_command_line(message: str, options: str) -> None:
    assert shown_in(OPTIONS, message) == options


class Capitals(Form):
    """A door of a test."""

    def word(self, word: Word) -> str:
        return f"{word.name.upper()}={word.value}"

    def words(self, words: tuple[Word, ...]) -> str:
        return "+".join(map(self.word, words))

    def call(self, call: VerbCall) -> str:
        return f"CALL {call.verb}"


def test_one_error_has_the_form_of_each_door() -> None:
    inner = UsageError(f"{Word('tp', 3)} is odd")
    error = StagedbError(f"plan.yaml: {inner}; {call('ls')} lists others")
    assert str(error) == error.text(OPTIONS) == "plan.yaml: --tp 3 is odd; `stagedb ls` lists others"
    assert error.text(Capitals()) == "plan.yaml: TP=3 is odd; CALL ls lists others"
    assert list(error.parts()) == ["plan.yaml: ", Word("tp", 3), " is odd; ", VerbCall("ls"), " lists others"]
    assert list(pickle.loads(pickle.dumps(error)).parts()) == list(error.parts())  # noqa: S301  # of this test
    assert repr(error) == f"StagedbError({str(error)!r})"
    error.form = Capitals()
    assert str(error) == error.text(Capitals())
    assert inner.form is OPTIONS
