"""The page of an instance's memory: its curve, and the tensors of a moment as a terminal has them."""

import re
from collections.abc import Iterator
from html import unescape

import pytest

from stagedb.api import Stagedb
from stagedb.api.results import InstanceInfo
from stagedb.memory import ClassMemory, Point
from stagedb.memory.usage import TensorPattern, tensor_patterns
from stagedb.reports.memory_sections import MOMENTS, TaskSpans, curve_of, curve_over_time
from stagedb.reports.terminal_chart import span
from stagedb.serve.page_frames import gigabytes
from stagedb.store import Store
from stagedb.store.contents.memory import analyse
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.serve.served import Served, serving


def stock(store: Store) -> InstanceInfo:
    return Stagedb(store).instantiate(card("llama"), pp=2, dp=2, global_batch_size=16)


def analysed(store: Store) -> tuple[InstanceInfo, tuple[ClassMemory, ...]]:
    made = stock(store)
    return made, analyse(store, made.id)


@pytest.fixture
def made(fill_embedded: Fill) -> InstanceInfo:
    return fill_embedded(analysed).made[0]


@pytest.fixture
def found(fill_embedded: Fill) -> tuple[ClassMemory, ...]:
    return fill_embedded(analysed).made[1]


@pytest.fixture
def served(fill_embedded: Fill) -> Iterator[Served]:
    with serving(fill_embedded(analysed).store) as each:
        yield each


def tensors(page: str) -> dict[tuple[str, str], tuple[int, int, int]]:
    """The table of a moment: by name and category the layers, the count and the bytes."""
    rows = re.findall(
        r'<tr><td class="w">([^<]+)</td><td class="n" data-value="([\d.e+]+)">[^<]+</td><td>([^<]+)</td>'
        r'<td class="n" data-value="(\d+)">[^<]+</td><td class="n" data-value="(\d+)">',
        page.partition('id="moment"')[2],
    )
    assert rows
    return {
        (unescape(name), category): (int(layers), int(count), round(float(size)))
        for name, size, category, layers, count in rows
    }


def test_a_curve_has_the_peak_and_any_number_of_tasks(found: tuple[ClassMemory, ...]) -> None:
    for each in found:
        curve = curve_of(each)
        assert len(each.usage.tasks) < len(curve.points) <= MOMENTS
        totals = [sum(sizes) for sizes in zip(*curve.sizes.values(), strict=True)]
        assert max(totals) == sum(each.usage.at(each.peak).values())
        assert curve.points[curve.fullest] == each.peak
        assert totals == [sum(each.usage.at(point).values()) for point in curve.points]
        assert list(curve.starts) == sorted(curve.starts)
        assert all(
            point.task <= start < point.task + 1 for point, start in zip(curve.points, curve.starts, strict=True)
        )


def test_many_tasks_are_joined(found: tuple[ClassMemory, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagedb.reports.memory_sections.MOMENTS", 5)
    curve = curve_of(found[0])
    assert len(curve.points) <= 5
    assert curve.points[curve.fullest] == found[0].peak


def test_a_curve_over_time_has_tasks_when_they_run(found: tuple[ClassMemory, ...]) -> None:
    one = found[0]
    count = len(one.usage.tasks)
    # Tasks of 100 ns with gaps of 50; the second one begins before the first one ends.
    starts = [150 * task for task in range(count)]
    starts[1] = 60
    times = TaskSpans(starts, [start + 100 for start in starts], 150 * count)
    curve = curve_over_time(one, times)
    assert curve.timed and curve.end == times.step
    assert list(curve.starts) == sorted(curve.starts)
    firsts: dict[int, float] = {}
    for point, start in zip(curve.points, curve.starts, strict=True):
        firsts.setdefault(point.task, start)
        assert starts[point.task] <= start < starts[point.task] + 100
    assert list(firsts.values()) == starts
    assert curve.points[curve.fullest] == one.peak


def test_the_axis_is_the_time_of_the_newest_profile(embedded_store: Store) -> None:
    made = stock(embedded_store)
    with serving(embedded_store) as served:
        check_axis(made, served, embedded_store)


def check_axis(made: InstanceInfo, served: Served, embedded_store: Store) -> None:
    page = f"/instances/{made.id}/memory"
    assert "tasks of the step" in served.get(page).text
    db = Stagedb(embedded_store)
    newest = db.profile(made.id, system="h100").info
    db.profile(made.id, system="h100", scale=["collective:dp=0.5"])  # no times of the plan itself
    text = unescape(served.get(f"{page}?class=0").text)
    assert f'<a href="/profiles/{newest.id}">{newest.id[:12]} on h100</a>' in text and "time of the step" in text
    rows = embedded_store.read("profile/class_tasks", profile=newest.id, **{"class": 0})
    first = rows[1]
    # A mark and a row of the table name the task and its time.
    at_first = f", at {span(first['start'])} of the step</title>"
    assert f"GB in forward of micro-batch 1{at_first}" in text
    table = text.partition("The tasks as a table")[2].partition("</table>")[0]
    assert table.count("<tr>") == len(rows) + 1
    assert re.search(rf">forward of micro-batch 1</a>.*? data-value=\"{first['start']:.9g}\">", table)
    last = f"{page}?class=0&at={len(rows) - 1}.0"
    assert f"runs, at {span(rows[-1]['start'], 4)} of the step: a tensor" in served.get(last).text


def test_a_moment_has_its_tensors_by_pattern(
    made: InstanceInfo, found: tuple[ClassMemory, ...], served: Served
) -> None:
    last = found[-1]
    task, index = 2, 5
    point = last.usage.fuller(task, index)
    page = served.get(f"/instances/{made.id}/memory?class={last.rank_class.number}&at={task}.{index}").text
    shown = tensors(page)
    expected: dict[tuple[str, str], list[int]] = {}
    for each in last.usage.alive(point):
        sums = expected.setdefault((each.name, str(each.category).replace("_", " ")), [0, 0, 0])
        sums[0] += 1
        sums[1] += each.count
        sums[2] += each.bytes
    assert {key: (layers, count) for key, (layers, count, _) in shown.items()} == {
        key: (layers, count) for key, (layers, count, _) in expected.items()
    }
    for key, (_, _, size) in shown.items():
        assert size == pytest.approx(expected[key][2], rel=1e-8)
    assert f"<h2>{gigabytes(sum(last.usage.at(point).values()))} in " in page
    # The way back to the peak.
    peak = last.peak
    assert f"at={peak.task}.{peak.index}#moment" in page


def test_without_a_moment_the_fullest_class_is_at_its_peak(
    made: InstanceInfo, found: tuple[ClassMemory, ...], served: Served
) -> None:
    fullest = max(found, key=lambda each: sum(each.usage.at(each.peak).values()))
    page = served.get(f"/instances/{made.id}/memory").text
    assert f"Memory over the step, class {fullest.rank_class.number}<" in page
    whole = sum(fullest.usage.at(fullest.peak).values())
    assert f'id="moment"><h2>{gigabytes(whole)} in ' in page
    assert page.count('class="chosen"') == 1
    assert sum(size for _, _, size in tensors(page).values()) == pytest.approx(whole, rel=1e-6)
    assert not re.search(r"<iframe|<style|\sstyle=|\son\w+=|<script>", page)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("at=x", "x is not a moment"),
        ("at=1", "1 is not a moment"),
        ("at=1.2.3", "is not a moment"),
        ("class=9", "no rank class 9: it has 0, 1"),
        ("class=²", "no rank class"),
        ("at=999999999.0", "there is no moment 999999999.0: the last task"),
        ("at=0.999999999", "there is no moment 0.999999999: task 0 ends at 0."),
    ],
)
def test_a_wrong_moment_is_named(made: InstanceInfo, served: Served, words: str, message: str) -> None:
    page = f"/instances/{made.id}/memory"
    # The server keeps the memory of the instance after the first.
    for path in (f"{page}?{words.replace('²', '%C2%B2')}",) * 2:
        answer = served.get(path)
        assert answer.status == 400
        assert message in unescape(answer.text).replace("'", "")
    assert served.get(page).status == 200


def test_the_fuller_time_of_an_item_is_that_of_the_levels(found: tuple[ClassMemory, ...]) -> None:
    for each in found:
        for task in range(len(each.usage.tasks)):
            totals = each.usage.levels(task).sum(axis=0).tolist()
            assert totals == [
                sum(each.usage.at(each.usage.fuller(task, index)).values()) for index in range(len(totals))
            ]
        assert each.usage.fuller(each.peak.task, each.peak.index) == each.peak
    assert isinstance(found[0].usage.fuller(0, 0), Point)


def test_tensors_of_all_layers_are_one_pattern() -> None:
    alive = [("attn.wq", "parameters", 1, 20), ("head", "parameters", 1, 30), ("attn.wq", "parameters", 2, 40)]
    assert tensor_patterns([*alive, ("attn.wq", "gradients", 1, 5)]) == [
        TensorPattern("attn.wq", "parameters", 2, 3, 60),
        TensorPattern("head", "parameters", 1, 1, 30),
        TensorPattern("attn.wq", "gradients", 1, 1, 5),
    ]
