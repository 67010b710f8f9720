"""The question whether a known word is meant: which words it names, and in what form."""

from pathlib import Path

from stagedb.files import did_you_mean, nearest, question

ROOT = Path(__file__).parents[2] / "stagedb"

WORDS = ("layers", "layer_norm", "tp", "hidden")


def test_the_words_most_like_one_are_asked_for() -> None:
    assert did_you_mean("layer", WORDS) == " (did you mean layers?)"
    assert did_you_mean("layer", WORDS, most=2) == " (did you mean layers or layer_norm?)"
    assert did_you_mean("layer", WORDS, ": {}", most=2, between=", ") == ": did you mean layers, layer_norm?"
    assert did_you_mean("layer", WORDS, "{}", most=2, cutoff=0.9) == "did you mean layers?"
    assert did_you_mean("x", WORDS) == ""


def test_a_word_with_braces_stays_as_it_is() -> None:
    assert did_you_mean("{la", ["{lay}"]) == " (did you mean {lay}?)"


def test_words_that_were_found_otherwise_are_asked_for_in_their_order() -> None:
    assert question(["b", "a", "c"], "; {}", ", ") == "; did you mean b, a, c?"
    assert question([]) == ""
    assert nearest("hiden", dict.fromkeys(WORDS)) == ["hidden"]


def test_there_is_one_place_for_the_question() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(words in path.read_text(encoding="utf-8") for words in ("get_close_matches", "did you mean {"))
    }
    assert found == {"files/texts.py"}
