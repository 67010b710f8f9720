"""Hostile texts and values, and changes that damage real files."""

import json
import math
import random
import re
from typing import Any

TEXTS = (
    *("", " ", "-", "--", "~", ".", "..", "/", "//", "*", "?", "%s", "{0}", "$(x)", "`x`", "'", '"', ";", "null"),
    # No name of a file that exists, or could be made: a command may be asked to write to it.
    *("../../up", "/nonexistent/x", "/dev/zero", "/dev/stdin", "/proc/self/mem", "a/../../b", "C:\\x"),
    *("a\nb", "a\rb", "a\tb", "a\0b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\x7fb", "\u202etxt", "\u200b"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;", "a' OR 1=1 //", "}) DETACH DELETE n //"),
    *("\udc80", "\ud800", "\ufeffa", "名前", "🙂", "e\u0301" * 20, "İ", "ß", "٣", "²", "/" + "d/" * 2500),
    *("x" * 5000, "n" * 10_240, "1" * 400, "1" * 5000, "1e400", "1e300", "nan", "inf", "true", "[]", "{}"),
    *("0x10", "1e9", "1_0", "+1", "-1", "0", "0.1", "1/0"),
)

NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1000, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**400)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, 5e-324, math.inf, -math.inf, math.nan)

DOCUMENTS = (
    "",
    "\0",
    "[" * 100_000,
    "{" * 5000,
    '{"a":' * 2000,
    "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "&a [*a]",
    "!!bool maybe",
    "!!timestamp x",
    "!!python/object/apply:os.system ['touch owned']",
    "a: 1\na: 2\n",
    '{"a": 1, "a": 2}',
    "- - - - 1",
    "? [1]\n: 2",
    "a: 0x" + "f" * 300,
    "a: 1" + "0" * 5000,
    '"\\ud800"',
    "%YAML 9.9\n---\n",
    "--- 1\n--- 2\n",
    "\ufeff{}",
    "[" + "1," * 200_000 + "1]",
    "x" * 300_000,
)

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def text(rng: random.Random) -> str:
    """A hostile text: one of the list, two of them, or random characters."""
    match rng.randrange(4):
        case 0:
            return rng.choice(TEXTS) + rng.choice(TEXTS)
        case 1:
            return "".join(chr(rng.randrange(1, 0x2FF)) for _ in range(rng.randrange(1, 40)))
        case _:
            return rng.choice(TEXTS)


def value(rng: random.Random, level: int = 0) -> Any:
    """A hostile value of a document."""
    kind = rng.randrange(10 if level < 3 else 7)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 3:
        return rng.choice(FLOATS)
    if kind < 6:
        return text(rng)
    if kind < 7:
        return rng.choice([None, True, False])
    if kind < 9:
        return [value(rng, level + 1) for _ in range(rng.choice([0, 1, 2, 3, 50]))]
    return {text(rng): value(rng, level + 1) for _ in range(rng.randrange(4))}


def changed(rng: random.Random, content: Any) -> Any:
    """A document with one to three values, keys or items that are replaced, removed, doubled or renamed."""
    content = json.loads(json.dumps(content))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if isinstance(content, dict | list) and content:
            _change(rng, content)
        else:
            content = value(rng)
    return content


def _change(rng: random.Random, content: Any) -> None:
    while True:
        key = rng.choice(list(content)) if isinstance(content, dict) else rng.randrange(len(content))
        inner = content[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.25:
            break
        content = inner
    match rng.randrange(8):
        case 0:
            del content[key]
        case 1 if isinstance(content, dict):
            content[text(rng)] = content.pop(key)
        case 1:
            content.insert(key, content[key])
        case 2 if isinstance(content[key], int | float) and not isinstance(content[key], bool):
            content[key] = rng.choice([-content[key], content[key] + 1, content[key] * 2, content[key] * 8, 0, 0.5])
        case 3:
            content[key] = [content[key]]
        case _:
            content[key] = value(rng)


def written(rng: random.Random, content: Any, form: str) -> bytes:
    """A document as JSON, which is YAML too; floats that JSON lacks as Python writes them."""
    del rng, form
    return json.dumps(content, ensure_ascii=True).encode()


def damaged(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """A file after one to four damages: bits, ends, parts that are cut, doubled, moved in from elsewhere."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        data = _damage(rng, data, other)
    return data


def _damage(rng: random.Random, data: bytes, other: bytes) -> bytes:
    if not data:
        return rng.randbytes(rng.randrange(64))
    first, last = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    match rng.randrange(9):
        case 0:
            flipped = bytearray(data)
            for _ in range(rng.choice([1, 1, 3, 20])):
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 1:
            return data[:first]
        case 2:
            return data[:last] + data[first:]
        case 3:
            return data[:first] + data[min(last, first + 200) :]
        case 4:
            begin = rng.randrange(len(other) + 1)
            return data[:first] + other[begin : begin + 2000] + data[first:]
        case 5:
            return data[:first] + text(rng).encode("utf-8", "surrogatepass") + data[first:]
        case 6:
            return data[:first] + rng.randbytes(rng.randrange(1, 32)) + data[last:]
        case 7:
            numbers = [*_NUMBER.finditer(data[:100_000])]
            if not numbers:
                return data[first:]
            chosen = rng.choice(numbers)
            return data[: chosen.start()] + str(rng.choice(NUMBERS + FLOATS)).encode() + data[chosen.end() :]
        case _:
            return rng.choice(DOCUMENTS).encode("utf-8", "surrogatepass")
