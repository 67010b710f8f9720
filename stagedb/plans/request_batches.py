"""The requests of a step of serving: as people give them, each with its tokens or their sums, and shared prefixes.

An attention needs four sums over requests with `q` new tokens and `k` keys (`k` counts the new tokens too): Σq, Σk,
Σq² and Σq·k. Engines write these into their traces, for prefills and decodes apart, so that an iteration of a real
engine is such a batch. Windows of keys need each request on its own.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files import read_document, read_text, shown
from stagedb.files.tabular_files import csv_table
from stagedb.ir.expressions import evaluate
from stagedb.ir.quotients import symbols
from stagedb.mentions import Word

MOST_REQUESTS = 1 << 20
"""Requests of a batch, at most."""

MOST_LENGTHS = 4096
"""Distinct lengths of a list, at most: each is a text of a plan."""

MOST_POSITIONS = 1 << 31
"""Positions of one request, at most."""

MEAN_SYMBOLS = ("mean_batch", "mean_queries", "mean_keys")
"""Symbols of the number of requests of one length, of their queries, and of their keys."""

DECODE_SYMBOLS = ("decode_batch", "decode_queries", "decode_keys")
"""The same of requests that have one new token in a step that mixes them with others."""

_GROUP = re.compile(
    r"(?:(\d{1,7}) *x *)?(\d{1,10})(?: *- *(\d{1,10}))?(?: *\+ *(\d{1,10}))?(?: */ *(\d{1,10}))?(?: *# *(\d{1,4}))?",
    re.ASCII,
)
_SUMS = re.compile(r"(prefill|decode)((?: +[a-z]+=\d{1,19})+)", re.ASCII)
_SUM = re.compile(r"([a-z]+)=(\d+)", re.ASCII)

_FORM = (
    "a batch is a list such as 2x512+0,64x1+4096 (requests x new tokens + tokens in the cache), or sums such as "
    "prefill n=2 q=1024 k=1024 qq=524288 qk=524288"
)


class NotEnoughError(UsageError):
    """Sums over requests where the length of each is needed."""


@dataclass(frozen=True)
class RequestGroup:
    """Requests of the same length.

    count: how many. new: tokens of each that the step computes. cached: those before them, whose keys are in its cache.
    shared: the first ones of the cache that other requests have too, and that are kept once. prefix: the number of the
    prefix that they are of: requests with another one share nothing.
    """

    count: int
    new: int
    cached: int
    shared: int = 0
    prefix: int = 1

    @property
    def keys(self) -> int:
        """Number of keys of one request at the end of the step."""
        return self.new + self.cached

    def __str__(self) -> str:
        prefix = f"#{self.prefix}" if self.prefix != 1 else ""
        return f"{self.count}x{self.new}+{self.cached}" + (f"/{self.shared}{prefix}" if self.shared else "")


@dataclass(frozen=True)
class RequestSums:
    """Sums over the prefills, or the decodes, of a batch.

    n: requests. q: new tokens. k: keys, those of new tokens included. qq: squares of new tokens. qk: new tokens times
    keys. s: of the keys in caches, those that another request has too, and that are kept once; 0 for those of a list,
    which has the shared tokens of each.
    """

    n: int = 0
    q: int = 0
    k: int = 0
    qq: int = 0
    qk: int = 0
    s: int = 0

    @classmethod
    def of(cls, groups: Iterable[RequestGroup]) -> "RequestSums":
        """The sums of listed requests. groups: each of equal requests."""
        made = cls()
        for each in groups:
            n, q, k = each.count, each.new, each.keys
            made += cls(n, n * q, n * k, n * q * q, n * q * k)
        return made

    def __add__(self, other: "RequestSums") -> "RequestSums":
        return RequestSums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def written(self, kind: str) -> str:
        """The sums as a text of a plan's word `requests`. kind: `prefill` or `decode`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return " ".join((kind, *(f"{name}={value}" for name, value in values.items() if name != "s" or value)))

    @property
    def mean(self) -> tuple[int, int, int]:
        """Requests, queries and keys of requests of one length that are about as much work, each rounded up.

        The lengths are means over queries, so that the squares and the pairs of queries and keys have the same sums
        before they are rounded. Without requests: three ones.
        """
        if not self.n:
            return 1, 1, 1
        return _up(self.q * self.q, self.qq), _up(self.qq, self.q), _up(self.qk, self.q)


def _up(above: int, below: int) -> int:
    return -(-above // below)


@dataclass(frozen=True)
class RequestBatch:
    """The requests that a rank of dp runs in one micro-batch.

    groups: the requests by length, ascending; empty if only sums are known. prefill, decode: the sums of requests with
    several new tokens, or with one.
    """

    groups: tuple[RequestGroup, ...]
    prefill: RequestSums
    decode: RequestSums

    @property
    def sums(self) -> RequestSums:
        """The sums over all requests."""
        return self.prefill + self.decode

    @property
    def longest(self) -> int:
        """Number of keys of the longest request; of sums a lower bound of it, their mean, rounded up."""
        if self.groups:
            return max(each.keys for each in self.groups)
        return max(_up(each.k, each.n) for each in (self.prefill, self.decode) if each.n)

    @property
    def alike(self) -> "RequestBatch":
        """A batch with equal requests: as many prefills and decodes, each with the mean of their lengths, rounded."""
        lengths = Counter[tuple[int, ...]]()
        for sums in (self.prefill, self.decode):
            if sums.n:
                lengths[max(round(sums.q / sums.n), 1), round((sums.k - sums.q) / sums.n)] += sums.n
        return batch_of_lengths(lengths)

    def later(self, steps: int) -> "RequestBatch":
        """The same requests after so many steps that add a token to each. steps: 0 or more."""
        groups = tuple(replace(each, cached=each.cached + steps) for each in self.groups)
        sums = (
            replace(each, k=each.k + steps * each.n, qk=each.qk + steps * each.q)
            for each in (self.prefill, self.decode)
        )
        return RequestBatch(groups, *sums)

    @property
    def texts(self) -> tuple[str, ...]:
        """The batch as the texts of a plan."""
        if self.groups:
            return tuple(map(str, self.groups))
        kinds = {"prefill": self.prefill, "decode": self.decode}
        return tuple(sums.written(kind) for kind, sums in kinds.items() if sums.n)


@lru_cache(maxsize=64)
def batch_of(texts: tuple[str, ...]) -> RequestBatch:
    """The batch that a plan's word `requests` describes.

    texts: groups such as `8x1+1024`, or sums over prefills and decodes. UsageError for other texts, and for sums that
    no requests can have.
    """
    written = [each.strip() for text in texts for each in text.split(";")]
    found = [_SUMS.fullmatch(each) for each in written]
    if any(found):
        return _of_sums(written, found)
    lengths = Counter[tuple[int, ...]]()
    for each in written:
        group = _group(each)
        lengths[group.new, group.cached, group.shared, group.prefix] += group.count
    return batch_of_lengths(lengths)


def batch_of_lengths(lengths: Mapping[tuple[int, ...], int]) -> RequestBatch:
    """The batch of requests of given lengths.

    lengths: by (new tokens, tokens in the cache), and where requests share a prefix by its tokens and its number too,
    the number of requests.
    """
    if sum(lengths.values()) > MOST_REQUESTS or len(lengths) > MOST_LENGTHS:
        raise UsageError(
            f"a batch has at most {MOST_REQUESTS:,} requests of {MOST_LENGTHS:,} different lengths, and this one "
            f"{sum(lengths.values()):,} of {len(lengths):,}: {Word('requests')} takes their sums too"
        )
    groups = tuple(RequestGroup(lengths[key], *key) for key in sorted(lengths))
    prefill, decode = (RequestSums.of(each for each in groups if (each.new == 1) is one) for one in (False, True))
    return RequestBatch(groups, prefill, decode)


def _group(text: str) -> RequestGroup:
    found = _GROUP.fullmatch(text)
    if found is None:
        raise UsageError(f"{shown(text)} is no requests: {_FORM} ({Word('requests')})")
    count, tokens, hit, cached, shared, prefix = (
        int(part) if part else default for part, default in zip(found.groups(), (1, 0, 0, 0, 0, 1), strict=True)
    )
    if found[3] and found[5]:
        raise UsageError(
            f"{shown(text)}: tokens of a prompt that are found in the cache (-) are those of its shared prefix (/): "
            f"write one of them ({Word('requests')})"
        )
    if found[6] and not hit and not shared:
        raise UsageError(f"{shown(text)}: a numbered prefix (#) has tokens, as -HIT or /SHARED ({Word('requests')})")
    if not count or tokens <= hit or tokens + cached > MOST_POSITIONS:
        raise UsageError(
            f"{shown(text)}: there are one or more requests of a length, each with one new token or more that is not "
            f"found in the cache, and at most {MOST_POSITIONS:,} positions ({Word('requests')})"
        )
    return shared_group(count, tokens - hit, cached + hit, shared or (hit and hit + cached), prefix, shown(text))


def shared_group(count: int, new: int, cached: int, shared: int, prefix: int, what: str) -> RequestGroup:
    """Requests of the same length with a prefix that they share. count, new, cached, shared, prefix: see
    `RequestGroup`. what: the text, for errors. Raises UsageError for a prefix that is not in the cache."""
    if shared > cached or not prefix:
        raise UsageError(
            f"{what}: requests share the first tokens of their caches, which have {cached:,} and not {shared:,}, and "
            f"prefixes are numbered from 1 ({Word('requests')})"
        )
    return RequestGroup(count, new, cached, shared, prefix if shared else 1)


def _of_sums(texts: Sequence[str], found: Sequence[re.Match[str] | None]) -> RequestBatch:
    sums: dict[str, RequestSums] = {}
    names = [each.name for each in fields(RequestSums) if each.name != "s"]
    for text, match in zip(texts, found, strict=True):
        values = {} if match is None else {name: int(value) for name, value in _SUM.findall(match[2])}
        if match is None or match[1] in sums or sorted(values.keys() - {"s"}) != sorted(names):
            raise UsageError(
                f"{shown(text)} is no sums of the prefills or of the decodes, each once with {', '.join(names)}: "
                f"{_FORM} ({Word('requests')})"
            )
        sums[match[1]] = RequestSums(**values)
        _check_sums(match[1], sums[match[1]])
    prefill, decode = (sums.get(kind, RequestSums()) for kind in ("prefill", "decode"))
    if not prefill.n and not decode.n:
        raise UsageError(f"the batch has no requests: {_FORM} ({Word('requests')})")
    return RequestBatch((), prefill, decode)


def _check_sums(kind: str, sums: RequestSums) -> None:
    """Raise UsageError for sums that no requests have: by the bounds of whole numbers, and Cauchy and Schwarz."""
    if not any(getattr(sums, each.name) for each in fields(sums)):
        return
    n, q, k, qq, qk, s = (getattr(sums, each.name) for each in fields(sums))
    rules = {
        f"n is 1 to {MOST_REQUESTS:,}": 1 <= n <= MOST_REQUESTS,
        "each request has a new token (n <= q)": n <= q,
        "each new token has a key (q <= k)": q <= k,
        "the square of q is at most n times qq": q * q <= n * qq,
        "qq is at most the square of q": qq <= q * q,
        "qk is at least qq": qq <= qk,
        "qk is at most q times k": qk <= q * k,
        f"a request has at most {MOST_POSITIONS:,} positions": k <= n * MOST_POSITIONS,
        "s is at most what is in caches, k - q": s <= k - q,
    }
    broken = next((rule for rule, holds in rules.items() if not holds), None)
    if broken:
        raise UsageError(f"no requests have the sums {sums.written(kind)}: {broken} ({Word('requests')})")


def derived_words(batch: RequestBatch) -> dict[str, int]:
    """The words of a plan that a batch gives: its requests are one sequence of all their tokens."""
    return {"micro_batch_size": 1, "seq_len": batch.sums.q, "cache_len": batch.sums.k - batch.sums.q}


def check_derived(words: Mapping[str, Any], batch: RequestBatch) -> None:
    """Raise UsageError if other words of a plan give the lengths of requests another value than the batch does."""
    for word, value in derived_words(batch).items():
        given = words.get(word)
        if given is not None and given != value:
            raise UsageError(
                f"{Word('requests')} has the lengths of all requests, so that {Word(word)} is {value} here and not "
                f"{shown(given)}: leave {Word(word)} out"
            )


def value_over(text: str, env: Mapping[str, int], batch: RequestBatch, what: str = "") -> int:
    """The value of an expression for a batch: what each request adds, and what is there once, such as weights.

    An expression with keys (SK) is a constant and a part that grows with the number of sequences (B), because no query
    sees keys of another request. The part is summed over the requests, each with its own S and SK. For sums it must
    also be a polynomial in S, SK and their product, which it is not behind a window.

    env: the values of all symbols, B those of one request on each rank of dp. what: what the value is, for errors.
    text: the expression.
    """
    if "SK" not in symbols(text):
        return evaluate(text, env, what=what)

    def at(sequences: int, queries: int, keys: int) -> int:
        return evaluate(text, {**env, "B": sequences * env["B"], "S": queries, "SK": keys}, what=what)

    first, second, third = (at(sequences, 1, 1) for sequences in (1, 2, 3))
    if third - second != second - first:
        raise StagedbError(f"{what or text} is not the sum over requests, which this version cannot evaluate")
    once = 2 * first - second

    def each(queries: int, keys: int) -> int:
        return at(1, queries, keys) - once

    if batch.groups:
        return once + sum(group.count * each(group.new, group.keys) for group in batch.groups)
    return once + _of_polynomial(each, batch.sums, what or text)


def _of_polynomial(each: Callable[[int, int], int], sums: RequestSums, what: str) -> int:
    """The sum over requests of `a + b·q + c·k + d·q·k`, whose coefficients are found from four values."""
    low, more, square, both = each(1, 1), each(1, 2), each(2, 2), each(2, 3)
    d = (both - square) - (more - low)
    c = (more - low) - d
    b = (square - low) - c - 3 * d
    a = low - b - c - d
    for q, k in ((3, 5), (1024, 70_000), (100_000, 1 << 20)):
        if each(q, k) != a + b * q + c * k + d * q * k:
            raise NotEnoughError(
                f"{what} depends on the length of each request, as queries see a window, a chunk or some of the keys, "
                f"or ranks of cp share them: sums are not enough. Give {Word('requests')} a list, such as "
                "2x512+0,64x1+4096"
            )
    return a * sums.n + b * sums.q + c * sums.k + d * sums.qk


def in_flight(batch: RequestBatch) -> str:
    """The batch in a few words, for people."""
    parts = []
    for name, sums in (("prefill", batch.prefill), ("decode", batch.decode)):
        if sums.n:
            parts.append(f"{sums.n:,} to {name} with {sums.q:,} new tokens over {sums.k:,} keys")
    return ", ".join(parts)


# Requests of a step as people give them: lists, drawn lengths, files, and what engines write into their traces.

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

    given: texts as `batch_of` reads them, with drawn lengths (`64x1+normal:4000:800`), or
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


# Prefixes that requests of a step share (prefix caching): their keys are in the cache once.


def repeated_bytes(text: str, env: Mapping[str, int], batch: RequestBatch, microbatches: int, what: str = "") -> int:
    """Bytes of a cache that are counted for several requests, and that a rank keeps once.

    A layer keeps the last tokens of each request: all of them, or those of a window. Requests of the same prefix keep
    the union of what each keeps of it. All micro-batches have the requests of `batch`, and the same prefixes; the
    tokens that sums share (`s`) are those of each micro-batch alone.

    text: the expression of the cache's bytes on a rank. env: the values of its symbols, for one sequence.
    microbatches: of a step. what: the cache, for errors.
    """
    repeats = batch.sums.s or any(each.shared for each in batch.groups)
    if not repeats or "SK" not in symbols(text):
        return 0
    token = evaluate(text, {**env, "SK": 1}, what=what)
    if not batch.groups:
        return microbatches * batch.sums.s * token
    parts: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for group in batch.groups:
        part = group.keys - _kept(text, env, group, token, what), group.shared
        if part[0] < part[1]:
            requests = parts[group.prefix]
            requests[part] = requests.get(part, 0) + microbatches * group.count
    tokens = sum(_repeated(requests) for requests in parts.values())
    return tokens * token


def _kept(text: str, env: Mapping[str, int], group: RequestGroup, token: int, what: str) -> int:
    """Tokens that a layer keeps of a request, the last ones. token: the bytes of one."""
    kept, rest = divmod(evaluate(text, {**env, "SK": group.keys}, what=what), token)
    if rest or not 0 < kept <= group.keys:
        raise StagedbError(f"{what or text} is not a number of tokens of a request, which this version cannot share")
    return kept


def _repeated(requests: Mapping[tuple[int, int], int]) -> int:
    """Tokens that several requests keep, less one for each that is kept. requests: by the first token that is kept and
    the end of the prefix, how many have them."""
    every = sum(number * (end - begin) for (begin, end), number in requests.items())
    union = reached = 0
    for begin, end in sorted(requests):
        union += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return every - union


def one_prefix(groups: Iterable[RequestGroup]) -> int:
    """The tokens of the prefix that all of some requests share; 0 if some share another one, or none.

    groups: the requests by length.
    """
    found = {(each.prefix, each.shared) for each in groups}
    return next(iter(found))[1] if len(found) == 1 else 0
