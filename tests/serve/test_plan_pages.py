"""Lists of instances and profiles: columns, order and filters of an address, on each engine."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlencode

import pytest

from stagedb.api import Profile, Stagedb, plan_lists
from stagedb.api.plan_lists import PlanFilter
from stagedb.errors import UsageError
from stagedb.store import Store
from tests.ir.tiny import card
from tests.serve.served import Served, serving
from tests.store.many import copies

Made = tuple[Profile, Profile]


@pytest.fixture
def made(store: Store) -> Made:
    db = Stagedb(store)
    db.instantiate(card("llama"), name="wide", tp=2, dp=2)
    db.instantiate(card("llama"), name="deep", pp=2, dp=2, global_batch_size=4)
    db.instantiate(card("llama"), name="untimed", dp=2)
    return db.profile("wide", name="first"), db.profile("deep", name="second")


@pytest.fixture
def served(store: Store, made: Made) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def shown(served: Served, kind: str = "instances", **words: object) -> list[dict[str, str]]:
    """The rows of a list, by the headers of its columns."""
    page = served.get(f"/list/{kind}?{urlencode(words, doseq=True)}")
    assert page.status == 200, page.text
    heads = [unescape(re.sub(r"<[^>]+>", "", each)) for each in re.findall(r"<th.*?</th>", page.text)]
    plain = [each.rstrip("↑↓ \u00a0") for each in heads]
    rows = re.findall(r'<tr id="row-.*?</tr>', page.text, re.DOTALL)
    cells = [[unescape(re.sub(r"<[^>]+>", "", each)) for each in re.findall(r"<td.*?</td>", row)] for row in rows]
    return [dict(zip(plain, row, strict=True)) for row in cells]


def names(served: Served, kind: str = "instances", **words: object) -> list[str]:
    return [row["name"] for row in shown(served, kind, **words)]


def test_instances_have_the_figures_of_their_newest_profile(store: Store, made: Made, served: Served) -> None:
    rows = {row["name"]: row for row in shown(served)}
    info = made[0].info
    assert info.tokens_per_second is not None
    assert rows["wide"]["tokens/s an accelerator"] == f"{info.tokens_per_second / info.ranks:,.1f}"
    assert (rows["wide"]["tp"], rows["wide"]["dp"], rows["wide"]["ranks"], rows["wide"]["fits"]) == (
        "2",
        "2",
        "4",
        "yes",
    )
    assert (rows["deep"]["pp"], rows["deep"]["schedule"], rows["deep"]["system"]) == ("2", "1f1b", "h100")
    assert rows["untimed"]["step"] == rows["untimed"]["memory"] == rows["untimed"]["fits"] == ""
    again = Stagedb(store).profile("wide", system="b200")
    listed = {each.id: each for each in plan_lists.plans(store, "instances", {})}
    assert listed[again.instance.id].profile == again.info.id
    assert plan_lists.plans(store, "instances", {}, "h100")[-1].system in ("h100", None)
    Stagedb(store).profile("wide", scale=["compute=0.5"])
    assert {each.id: each for each in plan_lists.plans(store, "instances", {})}[again.instance.id].step == (
        again.info.step
    )


def test_profiles_have_the_plans_of_their_instances(made: Made, served: Served) -> None:
    rows = {row["name"]: row for row in shown(served, "profiles")}
    assert (rows["first"]["tp"], rows["second"]["pp"]) == ("2", "2")
    assert len(rows) == 2


def test_a_second_click_on_a_header_turns_the_order(served: Served) -> None:
    def header(path: str, name: str) -> tuple[str, str | None]:
        page = served.get(path).text
        found = re.search(rf'<th[^>]*?(?: aria-sort="(\w+)")?><a href="([^"]*)">{name}', page)
        assert found is not None
        return unescape(found[2]), found[1]

    first, there = header("/list/instances?model=tiny-llama", "step")
    assert (first, there) == ("/list/instances?model=tiny-llama&sort=step", None)
    second, order = header(first, "step")
    assert (second, order) == ("/list/instances?model=tiny-llama&sort=step&order=desc", "ascending")
    third, order = header(second, "step")
    assert (third, order) == (first, "descending")
    one, other = (names(served, model="tiny-llama", sort="step", **more) for more in ({}, {"order": "desc"}))
    assert one[:2] == list(reversed(other[:2]))
    assert one[2] == other[2] == "untimed", "what has no step is last in both orders"
    for kind in ("graphs", "searches"):
        assert served.get(f"/list/{kind}?sort=name&order=desc").status == 200


def test_filters_are_of_the_plan_and_of_the_memory(served: Served) -> None:
    assert names(served, plan="tp=2") == ["wide"]
    assert names(served, plan="dp=2 pp=1", sort="name") == ["untimed", "wide"]
    assert names(served, plan="global-batch-size=4") == ["deep"]
    assert names(served, fits=1, sort="name") == ["deep", "wide"]
    assert names(served, text="PP 2") == ["deep"]
    assert names(served, "profiles", plan="tp=2") == ["first"]
    assert names(served, system="h100", sort="name") == ["deep", "wide"]
    page = served.get("/list/instances?plan=tp%3D2&fits=1").text
    assert unescape(page).count('<li>plan: tp=2 <a href="/list/instances?fits=1"') == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"plan": "tp"}, "no word of a plan with its value"),
        ({"plan": "tpp=2"}, "unknown word 'tpp'"),
        ({"plan": "expert_load=/etc/passwd.csv"}, "expert_load"),
        ({"sort": "<b>"}, "is not possible"),
        ({"order": "up"}, "asc or desc"),
        ({"show": "secret"}, "there is no column 'secret'"),
        ({"page": "2"}, "there is no page 2"),
        ({"model": "tiny-lama"}, "did you mean tiny-llama?"),
    ],
)
def test_an_address_that_cannot_be_is_refused(embedded_store: Store, words: dict[str, str], error: str) -> None:
    Stagedb(embedded_store).instantiate(card("llama"), dp=2)
    with serving(embedded_store) as served:
        answer = served.get(f"/list/instances?{urlencode(words)}")
    assert answer.status == 400
    assert error in unescape(answer.text)


def test_columns_are_those_of_the_address(served: Served) -> None:
    chosen = shown(served, show=["seq_len", "tp", "id"])
    assert list(chosen[0]) == ["Compare", "name", "tp", "sequence", "id"]
    page = served.get("/list/instances?show=tp&show=id&sort=name").text
    assert re.findall(r'name="show" value="(\w+)" checked', page) == ["tp", "id"]
    assert 'href="/list/instances?sort=tp&amp;show=tp&amp;show=id"' in page
    usual = list(shown(served)[0])
    assert "recompute" not in usual
    assert usual[:6] == ["Compare", "name", "tokens/s an accelerator", "step", "MFU", "memory"]


def test_what_is_ticked_is_compared(made: Made, served: Served) -> None:
    ids = re.findall(r'name="of" value="(\w+)" form="compare"', served.get("/list/profiles").text)
    assert set(ids) == {each.info.id for each in made}
    pair = served.get(f"/compare?{urlencode({'of': ids}, doseq=True)}")
    assert pair.status == 200
    assert all(f'aria-label="remove {each.info.name}"' in pair.text for each in made)
    assert served.get(f"/compare?of={ids[0]}").status == 200


def test_marks_of_the_chart_lead_to_rows(embedded_store: Store) -> None:
    one = Stagedb(embedded_store).profile(model=card("llama"), tp=2, dp=2)
    copies(embedded_store, one.instance.id, 60)
    with serving(embedded_store) as served:
        page = unescape(served.get("/list/profiles?sort=step&color=dp&page=2").text)
        assert served.get("/list/profiles?color=secret").status == 400
        assert "further plans" not in page
        tokens = served.get("/list/profiles?sort=step&chart=step").text
    marks = re.findall(r'<a href="([^"#]*)#row-(\w+)"', page)
    rows = re.findall(r'<tr id="row-(\w+)"', page)
    assert len(marks) == 61
    assert [id for to, id in marks if not to] == rows
    assert {to for to, _ in marks} == {"", "/list/profiles?sort=step&color=dp"}
    assert '<option value="dp" selected>' in page
    assert '<p class="unit">step, ms</p>' in tokens


def test_a_thousand_instances_take_as_many_statements_as_one(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Stagedb(embedded_store)
    one = db.profile(model=card("llama"), tp=2, dp=2)
    asked: list[str] = []
    read = Store._read
    monkeypatch.setattr(Store, "_read", lambda self, name, params: asked.append(name) or read(self, name, params))  # type: ignore[func-returns-value]
    plan_lists.plans(embedded_store, "instances", {})
    few, asked[:] = list(asked), []
    copies(embedded_store, one.instance.id, 1_000)
    with serving(embedded_store) as served:
        first = served.get("/list/instances?sort=name")
    assert asked == few
    assert "page 1 of 21" in first.text
    assert len(re.findall(r'<tr id="row-', first.text)) == 50
    found = plan_lists.plans(embedded_store, "instances", {"tp": 2})
    assert len(plan_lists.chosen(found, PlanFilter(text="copy-77"))) == 11
    assert [each.name for each in plan_lists.ordered(found, "step")][1:3] == ["ada/copy-1", "ada/copy-2"]
    with pytest.raises(UsageError, match="is not possible"):
        plan_lists.ordered(found, "nothing")


def test_of_two_profiles_of_one_second_the_newer_one_counts(store: Store, made: Made) -> None:
    for first, second in ((1_000, 1_001), (1_001, 1_000)):
        ids = [each.info.id for each in (made[0], Stagedb(store).profile("wide", system="b200"))]
        with store._session("WRITE") as session:
            for id_, created in zip(ids, (first, second), strict=True):
                session.run("MATCH (p:Profile {id: $id}) SET p.created = $at", id=id_, at=created).consume()
        listed = {each.id: each.profile for each in plan_lists.plans(store, "instances", {})}
        assert listed[made[0].instance.id] == ids[second > first]
