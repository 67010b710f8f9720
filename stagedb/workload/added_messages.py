"""Messages that are added to a class behind the ops of its instance: columns with rows for them."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from stagedb.ir.facts import NO_FACTS
from stagedb.workload.instance_columns import EVERY, TYPES, Ints, Ops, Origins

_SIZES = ("size", "operand", "result")


def messages_of(type_: int, sizes: Ints, **columns: Any) -> dict[str, Any]:
    """The columns of messages, for `with_messages`.

    type_: `SEND` or `RECV`. sizes: bytes of each. columns: what else they have: a value for all, or an array.
    """
    count, kind = len(sizes), TYPES[type_]
    usual: Mapping[str, Any] = {"type": type_, "when": EVERY, "turn": -1, "kind": kind, "dims": (), "facts": NO_FACTS}
    given = {**usual, "dtype": "", **dict.fromkeys(_SIZES, sizes), **columns}
    made: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, np.ndarray | list):
            made[name] = value
        else:
            made[name] = np.full(count, value) if isinstance(value, int) else (value,) * count
    return made


def with_messages(ops: Ops, made: Mapping[str, Any], count: int) -> Ops:
    """The ops, and behind them messages. made: of `messages_of`. count: their number. Other columns have zeros."""
    joined: dict[str, Any] = {}
    for each in fields(Ops):
        own, more = getattr(ops, each.name), made.get(each.name, np.zeros(count, np.int64))
        joined[each.name] = np.concatenate([own, more]) if isinstance(own, np.ndarray) else (*own, *more)
    return Ops(**joined)


def origins_with_messages(own: Origins, count: int, block: str) -> Origins:
    """The origins of ops with messages behind them. count: of the messages. block: theirs."""
    if not own.id:
        return own
    outside = np.full(count, -1, np.int64)
    return replace(
        own,
        id=(*own.id, *("",) * count),
        sym=(*own.sym, *("",) * count),
        block=(*own.block, *(block,) * count),
        position=np.concatenate([own.position, outside]),
        layer=np.concatenate([own.layer, outside]),
        temporary=np.concatenate([own.temporary, np.zeros(count, np.int64)]),
    )
