"""The numbers of a system by the keys of its file: all of them, changed as a file would be, and refused like one."""

import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.systems import load_system
from stagedb.systems.system import plain
from stagedb.systems.system_files import parse_system, system_names
from stagedb.systems.system_numbers import find_number, system_numbers, with_numbers

H100 = load_system("h100")


def numbers_of(value: Any) -> list[float]:
    """The numbers of a file outside of lists and tables."""
    if isinstance(value, dict):
        return [found for key, each in value.items() if key != "tables" for found in numbers_of(each)]
    return [] if isinstance(value, str | list) or value is None else [float(value)]


@pytest.mark.parametrize("name", system_names())
def test_every_number_of_a_preset_has_a_path_and_a_unit(name: str) -> None:
    system = load_system(name)
    content = system.to_dict()
    wanted = numbers_of({**content, "network": None}) + [n for each in content["network"] for n in numbers_of(each)]
    found = system_numbers(system)
    # What a file leaves out has its default.
    optional = {
        "graph_launch",
        "issue",
        "issue_share",
        "sustained",
        "reduced",
        "gathered",
        "taken",
        "parts",
        "use",
        "size",
    }
    named = [float(each.value or 0) for each in found.values() if each.path.rpartition(".")[2] not in optional]
    assert not Counter(named) - Counter(wanted)
    assert len(wanted) <= len(found)
    assert all(each.unit for each in found.values())


@pytest.mark.parametrize("path", [each.path for each in system_numbers(H100).values() if each.value is not None])
def test_a_changed_number_is_that_of_a_changed_file(path: str) -> None:
    number = find_number(H100, path)
    value = Fraction(number.value or 0) + 1 if path.startswith("overlap") else Fraction(number.value or 0) / 2
    value = Fraction(4) if path.endswith(("size", "use", "parts")) else value
    content = H100.to_dict()
    place: Any = content
    *keys, last = number.keys
    for key in keys:
        place = place[key]
    place[last] = plain(value)
    assert with_numbers(H100, {path: value}) == parse_system(json.dumps(content))
    assert find_number(with_numbers(H100, {path: value}), path).value == value
    assert system_numbers(H100)[path].value == number.value


def test_what_hardware_has_better_is_a_rate_a_size_of_memory_or_a_time() -> None:
    bought = {each.path: each.is_time for each in system_numbers(H100).values() if each.bought}
    peaks = {f"accelerator.peak.{dtype}": False for dtype in ("bf16", "fp16", "fp32", "fp8")}
    network = {
        f"network.{name}.{key}": key == "latency"
        for name in ("nvlink", "infiniband")
        for key in ("bandwidth", "latency")
    }
    memory = {"accelerator.memory.bandwidth": False, "accelerator.memory.capacity": False, "accelerator.launch": True}
    host = {"host.link": False, "host.latency": True, "host.bandwidth": False}
    assert bought == {**peaks, **memory, **host, **network}
    free = with_numbers(H100, {"accelerator.memory.bandwidth": math.inf, "accelerator.launch": Fraction(0)})
    kept = {each.path for each in system_numbers(free).values() if each.bought}
    assert kept == bought.keys() - {"accelerator.memory.bandwidth", "accelerator.launch"}


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("memory.bandwidth", "host.bandwidth or accelerator.memory.bandwidth"),
        ("network.nvlnk.bandwidth", "network.nvlink.bandwidth"),
        ("network.nvlink.bandwith", "network.nvlink.bandwidth"),
        ("latency", "host.latency or network.nvlink.latency or network.infiniband.latency"),
        ("accelerator.peak.fp4", "accelerator.peak.fp8"),
    ],
)
def test_an_unknown_path_is_refused_with_the_nearest(path: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"has no number '{path}': did you mean {near}"):
        find_number(H100, path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"accelerator.memory.bandwidth": Fraction(-1)}, "memory.bandwidth = -1.*a number of GB/s above 0"),
        ({"network.nvlink.size": Fraction(5, 2)}, "size is '2.5'"),
        ({"accelerator.memory.capacity": Fraction(1)}, "less than the capacity"),
        ({"network.nvlink.use": Fraction(9)}, "1 to 8"),
    ],
)
def test_a_value_that_no_file_could_have_is_refused(values: dict[str, Fraction], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_numbers(H100, values)
