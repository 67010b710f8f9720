"""Requests of a step as people give them: lists, drawn lengths, files, and what engines write into their traces."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import read_document, read_text, shown
from stagedb.files.tabular_files import csv_table
from stagedb.mentions import Word
from stagedb.plans.request_batches import (
    MOST_POSITIONS,
    RequestBatch,
    RequestSums,
    batch_of,
    batch_of_lengths,
    check_derived,
    derived_words,
    shared_group,
)

_ENDINGS = (".csv", ".yaml", ".yml", ".json")
_COLUMNS = {"new": 1, "cached": 0, "requests": 1, "hit": 0, "shared": 0, "prefix": 1}
"""Columns of a file, and the values of those that a request does not have."""

_DRAWN = re.compile(
    r"(?:(\d{1,7}) *x *)?([^-+/]+?)(?: *- *([^-+/]+?))?(?: *\+ *([^-+/]+?))?"
    r"(?: */ *(\d{1,10}))?(?: *# *(\d{1,4}))?(?: *@ *(\d{1,9}))?",
    re.ASCII,
)
_LENGTH = re.compile(r"(uniform|normal|lognormal|exponential)((?::\d{1,10}(?:\.\d{1,9})?){1,2})", re.ASCII)
_NUMBERS = {"uniform": 2, "normal": 2, "lognormal": 2, "exponential": 1}

_VLLM = re.compile(
    r"execute_(?:\d+_)?context_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
    r"_generation_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)",
    re.ASCII,
)
_SGLANG = re.compile(r"step\[(EXTEND|DECODE|MIXED)\b([^\]]*)\]", re.ASCII)
_ATOM = re.compile(r"(prefill|decode)\[([^\]]*(?:\[[^\]]*\][^\]]*)?)\]", re.ASCII)
_VALUE = re.compile(r"(\w+)=(\d+)", re.ASCII)
_NATIVE = re.compile(r"execute_context_\d+\(\d+\)_generation_\d+\(\d+\)", re.ASCII)


def read_requests(given: str | Sequence[str]) -> tuple[str, ...]:
    """The requests of a step as texts of a plan, each length once.

    given: texts as `stagedb.plans.request_batches.batch_of` reads them, with drawn lengths (`64x1+normal:4000:800`), or
    the name that an engine gives an iteration in its trace; or the name of a file with requests. Raises UsageError for
    others.
    """
    if isinstance(given, str):
        return _from_file(Path(given)).texts
    given = tuple(given)
    joined = ",".join(given)
    annotated = engine_batch(joined)
    if annotated is not None:
        return annotated.texts
    if joined.startswith(("execute_", "step[")):
        raise UsageError(
            f"{shown(joined)} has not all sums of its requests, which an attention needs: profile vLLM with "
            f"detailed_trace_annotation, or give {Word('requests')} a list, such as 2x512+0,64x1+4096"
        )
    return batch_of(tuple(_drawn_texts(given))).texts if any(":" in text for text in given) else batch_of(given).texts


def request_words(words: Mapping[str, Any]) -> dict[str, int]:
    """The plan's words that follow from its requests, with their values. words: of the plan, with `requests`.

    Raises UsageError if `words` has one of them with another value.
    """
    batch = batch_of(tuple(words["requests"]))
    check_derived(words, batch)
    return derived_words(batch)


def engine_batch(name: str) -> RequestBatch | None:
    """The batch of an iteration by the name that vLLM, SGLang or ATOM writes into its trace; None for other texts.

    The names are those of vLLM's detailed annotations (`execute_N_context_C(sq…sk…sqsq…sqsk…)_generation_…`), and of
    SGLang's (`step[EXTEND bs=… c_sq=… …]`) and ATOM's (`decode[bs=… sqsq=… …]`) with these sums.
    """
    sums = _of_vllm(name) or _of_sglang(name) or _of_atom(name)
    if sums is None:
        return None
    texts = [each.written(kind) for kind, each in zip(("prefill", "decode"), sums, strict=True) if each.n]
    return batch_of(tuple(texts)) if texts else None


def _of_vllm(name: str) -> tuple[RequestSums, RequestSums] | None:
    found = _VLLM.fullmatch(name)
    if found is None:
        return None
    values = [int(each) for each in found.groups()]
    return RequestSums(*values[:5]), RequestSums(*values[5:])


def _of_sglang(name: str) -> tuple[RequestSums, RequestSums] | None:
    found = _SGLANG.fullmatch(name)
    if found is None:
        return None
    values = {key: int(value) for key, value in _VALUE.findall(found[2])}
    mode, requests = found[1], values.get("bs", 0)
    kinds = {"EXTEND": {"c": requests}, "DECODE": {"g": requests}, "MIXED": {}}[mode]
    made = []
    for kind in ("c", "g"):
        n = kinds.get(kind, values.get(kind, 0) if mode == "MIXED" else 0)
        needed = [f"{kind}_{sum_}" for sum_ in ("sq", "sk", "sqsq", "sqsk")]
        if n and not all(each in values for each in needed):
            return None
        made.append(RequestSums(n, *(values[each] for each in needed)) if n else RequestSums())
    return made[0], made[1]


def _of_atom(name: str) -> tuple[RequestSums, RequestSums] | None:
    found = _ATOM.fullmatch(name)
    if found is None:
        return None
    values = {key: int(value) for key, value in _VALUE.findall(found[2])}
    if not {"bs", "tok", "sk", "sqsq", "sqsk"} <= values.keys() or values.get("p"):
        return None  # a decode with prefills (`p`) has one set of sums for both
    sums = RequestSums(*(values[each] for each in ("bs", "tok", "sk", "sqsq", "sqsk")))
    return (sums, RequestSums()) if found[1] == "prefill" else (RequestSums(), sums)


def _drawn_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts of a list, with drawn lengths as requests of their own."""
    for text in texts:
        found = _DRAWN.fullmatch(text.strip())
        if found is None or ":" not in text:
            yield text
            continue
        count, tokens, hit, cached, shared, prefix, seed = found.groups()
        draw = random.Random(int(seed or 0))
        lengths = Counter[str]()
        for _ in range(int(count or 1)):
            made, before = _length(tokens, draw, 1), _length(cached or "0", draw, 0)
            # Drawn prompts may be shorter than what others have of the prefix: one token is always computed.
            there = min(_length(hit, draw, 0), made - 1) if hit else 0
            kept = min(int(shared), before) if shared else 0
            parts = f"-{there}" * bool(there), f"+{before}", f"/{kept}" * bool(kept)
            lengths["".join((str(made), *parts, f"#{prefix}" if prefix and (there or kept) else ""))] += 1
        for each, requests in lengths.items():
            yield f"{requests}x{each}"


def _length(text: str, draw: random.Random, least: int) -> int:
    """A length as it is written, or drawn and rounded."""
    if text.strip().isdecimal():
        return int(text)
    found = _LENGTH.fullmatch(text.strip())
    numbers = [float(each) for each in found[2].split(":")[1:]] if found else []
    if found is None or len(numbers) != _NUMBERS[found[1]] or (numbers[0] <= 0 and found[1] != "uniform"):
        raise UsageError(
            f"{shown(text)} is no length: a whole number, uniform:LEAST:MOST, normal:MEAN:DEVIATION, "
            f"lognormal:MEAN:DEVIATION or exponential:MEAN, such as 64x1+lognormal:4000:1500 ({Word('requests')})"
        )
    return min(max(round(_drawn(found[1], numbers, draw)), least), MOST_POSITIONS // 2)


def _drawn(kind: str, numbers: Sequence[float], draw: random.Random) -> float:
    if kind == "uniform":
        return draw.uniform(*numbers)
    if kind == "normal":
        return draw.gauss(*numbers)
    if kind == "exponential":
        return draw.expovariate(1 / numbers[0])
    from math import log, sqrt

    mean, deviation = numbers  # of the lengths; a lognormal has those of their logarithms
    spread = log(1 + (deviation / mean) ** 2)
    return draw.lognormvariate(log(mean) - spread / 2, sqrt(spread))


def _from_file(path: Path) -> RequestBatch:
    """The requests of a CSV, YAML or JSON file: rows with `new`, and where given `cached`, `requests` (how many), `hit`
    (of `new`, those that are found in the cache), `shared` (of `cached`) and `prefix` (the number of the prefix)."""
    if path.suffix.lower() == ".csv":
        table = csv_table(read_text(path, "requests", option=str(Word("requests"))), str(path))
        rows: Iterable[Any] = (dict(zip(table.columns, cells, strict=True)) for _, cells in table.rows)
    else:
        content = read_document(path, "requests", _ENDINGS, option=str(Word("requests")))
        if not isinstance(content, list) or not content:
            raise UsageError(f"the requests {path} are no list of mappings such as {{new: 1, cached: 4096}}")
        if all(isinstance(each, str) for each in content):
            return batch_of(read_requests(tuple(content)))
        rows = content
    lengths = Counter[tuple[int, ...]]()
    for number, row in enumerate(rows, 1):
        where = f"{path}, request {number}"
        if not isinstance(row, Mapping) or "new" not in row or not row.keys() <= _COLUMNS.keys():
            raise UsageError(f"{where}: {shown(row)} has not new, and of the others {', '.join([*_COLUMNS][1:])} alone")
        new, cached, count, hit, shared, prefix = (
            _whole(row.get(name, usual), where) for name, usual in _COLUMNS.items()
        )
        if new <= hit or not count or new + cached > MOST_POSITIONS:
            raise UsageError(
                f"{where}: new is more than hit, requests are 1 or more, and positions at most {MOST_POSITIONS:,}"
            )
        if hit and shared:
            raise UsageError(f"{where}: tokens of a prompt that are a hit are those of its shared prefix: give one")
        shared = shared or (hit and hit + cached)
        group = shared_group(count, new - hit, cached + hit, shared, prefix, where)
        lengths[group.new, group.cached, group.shared, group.prefix] += group.count
    if not lengths:
        raise UsageError(f"the requests {path} have no rows")
    return batch_of_lengths(lengths)


def _whole(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
        return int(value)
    raise UsageError(f"{where}: {shown(value)} is no whole number of 0 or more")
