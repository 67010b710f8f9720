"""A plan is compared with the best one of a search by exact terms, and with drawn plans of its space."""

import time
from collections import Counter
from typing import Any

import pytest

from stagedb import api
from stagedb.api.searching import described, words_of_line
from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.search import Fate, comparisons, searching
from stagedb.search.comparisons import _worth as worth
from stagedb.search.comparisons import drawn
from stagedb.search.searching import places_of
from stagedb.timing import profile_job
from tests.search.test_searching import H100, LLAMA, asked, every_plan, run


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are tried here, where the bounds of the search before are known."""
    for module in (searching, comparisons):
        monkeypatch.setattr(module, "usable_cores", lambda: 1)


WORDS = {"global_batch_size": 16, "seq_len": 2048, "recipe": "megatron"}


def searched(**more: Any) -> api.Searched:
    return api.search(LLAMA, [8], allow=["zero"], words=WORDS, **more)


def test_a_plan_has_its_place_among_all() -> None:
    found = searched(compare={"tp": 2, "pp": 2, "sp": True, "zero": 1}, top=1)
    each, best = found.compared, found.result.best
    assert each is not None and best is not None
    place = places_of(asked(LLAMA, 8, ("zero",)), LLAMA, [H100])[0]
    plan = Plan.from_mapping({**WORDS, "tp": 2, "pp": 2, "dp": 2, "sp": True, "zero": 1})
    job = profile_job(place.trials.copied(plan).workload, H100)
    assert each.step == job.step == sum(each.terms.values())
    assert each.worse == each.step / best.step - 1 > 0
    names = {**each.terms, **best.terms}
    more = {term: each.terms.get(term, 0) - best.terms.get(term, 0) for term in names}
    assert sum(more.values()) == each.step - best.step and each.best_terms == best.terms
    assert each.code == max(sorted(more), key=lambda term: more[term])
    # All plans that fit are better or not: what is drawn is near their share.
    steps = [
        place.trials.step(place.trials.copied(Plan.from_mapping(words)))
        for words in every_plan(place.space)
        if not _is_refused(place, words)
    ]
    assert (each.drawn, each.late, each.complete) == (len(steps), False, True)
    assert each.better == sum(step < each.step for step in steps)


def test_a_limited_time_is_also_that_of_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "_worth", _slowly)
    monkeypatch.setattr(comparisons, "usable_cores", lambda: 1)
    began = time.monotonic()
    found = searched(compare={"tp": 2, "pp": 2}, top=1, seconds=8.0)
    took = time.monotonic() - began
    assert found.covered and found.compared is not None
    assert 0 < found.compared.drawn < 40 and found.compared.late
    assert took - 0.5 < found.seconds < took < 9


def _slowly(*given: Any) -> Any:
    time.sleep(0.25)
    return worth(*given)


def test_without_time_nothing_is_drawn() -> None:
    found = searched(compare={"tp": 2, "pp": 2}, top=1, seconds=0.01).compared
    assert found is not None and (found.drawn, found.better, found.late) == (0, 0, True) and found.step > 0


def _is_refused(place: Any, words: Any) -> bool:
    try:
        Plan.from_mapping(words).check(place.space.sizes)
        place.trials.copied(Plan.from_mapping(words))
    except UsageError:
        return True
    return False


def test_the_best_plan_is_equal_and_one_outside_may_be_better(monkeypatch: pytest.MonkeyPatch) -> None:
    best = searched(top=1).result.best
    assert best is not None
    same = searched(top=1, compare={word: best.words[word] for word in best.words if word not in WORDS}).compared
    assert same is not None and (same.code, same.worse, same.better) == ("equal", 0, 0)
    monkeypatch.setattr(comparisons, "DRAWN", 5)
    narrow = api.search(LLAMA, [8], allow=["none"], where="tp == 8", words=WORDS, compare={"dp": 8})
    assert narrow.compared is not None and narrow.compared.code == "better" and (narrow.compared.worse or 0) < 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"compare": {"tp": 3}}, "tp 3"),
        ({"compare": {"tp": 4, "dp": 4}}, "plan to compare is one of 16 ranks"),
        ({"compare": {"global_batch_size": 32}}, "leave global_batch_size out"),
        ({"compare": {"tpp": 3}}, "tpp"),
        ({"compare": {"tp": 2}, "system": ["h100", "h200"]}, "takes one system"),
    ],
)
def test_what_cannot_be_compared_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        searched(**more)


def test_all_plans_of_all_sets_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(LLAMA, 4, ("zero", "recompute"))
    place = places_of(request, LLAMA, [H100])[0]
    found = run(request, LLAMA)
    sets = [each for each in found.candidates if each.fate is not Fate.REFUSED]
    names = {repr(sorted(words.items())) for words in every_plan(place.space)}
    once = Counter(repr(sorted(words.items())) for words in drawn(place.space, sets, "seed"))
    refused = [each for each in found.candidates if each.fate is Fate.REFUSED]
    kept = {name for name in names if not any(_holds(each.words, name) for each in refused)}
    assert kept <= set(once) <= names and set(once.values()) == {1}
    # Where there are more plans than are drawn at most, each has the same chance again and again.
    monkeypatch.setattr(comparisons, "MOST", 10)
    draws = drawn(place.space, sets, "seed")
    seen = {repr(sorted(next(draws).items())) for _ in range(40 * found.size)}
    assert seen <= names and len(seen & kept) > 0.9 * len(kept)


def test_where_few_plans_fit_all_of_them_are_compared() -> None:
    narrow = api.search(LLAMA, [8], allow=["none"], where="tp == 8", words=WORDS, compare={"tp": 8})
    assert narrow.compared is not None and narrow.compared.complete and not narrow.compared.late
    assert narrow.compared.drawn < 100


def _holds(words: Any, name: str) -> bool:
    return all(repr(item) in name for item in words.items())


def test_a_line_of_a_table_has_the_words_of_its_plan() -> None:
    found = searched(top=12).result
    for each in found.candidates:
        if each.fate is Fate.TIMED:
            read = words_of_line(described(each, found.request))
            assert read and all(each.words[word] == value for word, value in read.items()), read
    assert words_of_line("dp 8, recompute full in every 2nd layer, no-sp") == {
        "dp": 8, "recompute": "full", "recompute_every": 2, "sp": False,
    }  # fmt: skip
    for where, first in (("the first 3 layers of each chunk", 3), ("the first layer of each stage", 1)):
        assert words_of_line(f"recompute core in {where}") == {"recompute": "core", "recompute_first": first}
    assert words_of_line("one rank") == {}
