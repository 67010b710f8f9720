"""Prefixes that requests of a step share (prefix caching): their keys are in the cache once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from stagedb.errors import StagedbError
from stagedb.ir.expressions import evaluate
from stagedb.ir.quotients import symbols
from stagedb.plans.request_batches import RequestBatch, RequestGroup


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
