"""Steps of engines by AIConfigurator and InferSim next to ours, as `scripts/bench serving --write` keeps them."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
KINDS = ("attention", "matmul", "experts", "all-reduce", "exchange", "elementwise", "head", "overlap")
APART = 0.15
"""Difference of two times of a kind, as a share, above which it has reasons."""

REASONS: Mapping[str, str] = {
    "a": (
        "Another kernel: TensorRT-LLM's for prompts, and FlashAttention 3 in SGLang, which is our table. With its "
        "engine SGLang the first plan has 9.8 ms, and ours 9.7; other plans 3 to 19 % more than ours."
    ),
    "b": (
        "Theirs was measured whole. More than half of ours are matmuls at the speed of d, which is most of the "
        "difference; ours are also apart from copies and rotary embeddings, which kernels of engines have in "
        "them."
    ),
    "c": (
        "One rule for three engines: 64 requests with 4,096 tokens on one head of keys take 67 µs in "
        "TensorRT-LLM, 48 in vLLM and 43 in SGLang on an H200. With few requests theirs were measured with keys "
        "in the L2 cache, which no step has."
    ),
    "d": (
        "Matmuls that compute for long keep 79 % of their measured speed (`sustained`), as power limits the "
        "clock; theirs keep all of it. In fp8 the cast, which is in theirs, is among our elementwise operators."
    ),
    "e": "The cast of the input is in their matmul, and among elementwise operators here.",
    "f": (
        "Queries, keys and values are three matmuls here and one in engines: with `--recipe megatron` ours has "
        "one, and 5.63 ms as theirs in the first of these plans."
    ),
    "g": (
        "All 61 layers of DeepSeek-V3 have experts in theirs; ours has three dense layers. For large groups they "
        "leave out the router, the second norm and the head."
    ),
    "h": (
        "Theirs has loads of experts by a power law: 4,096 tokens take 1.61 times as long on the fullest of eight "
        "ranks as with even loads, which a prefill has here (`--expert-load` for others). DeepSeek-V3 is in fp8 "
        "with scales of blocks there, whose kernels take 1.35 times as long as those of our table."
    ),
    "i": (
        "One rule for three engines, whose all-reduces differ ([how it was "
        "fitted](systems.md#all-reduces-of-engines)): with SGLang theirs has 2.1 ms, with vLLM 2.3 and with "
        "TensorRT-LLM 4.1 in 64 requests of Llama 3.1 70B, and ours 2.6."
    ),
    "j": (
        "Theirs gathers all tokens on all ranks and scatters sums, by NCCL. Here they are sent to the ranks of "
        "their experts alone (`--dispatch ranks`), as DeepEP does; the last plan has DeepEP's measured times."
    ),
    "k": (
        "Theirs counts two norms and the activation, at 80 % of the bandwidth. Ours has all operators: residual "
        "adds, rotary embeddings, casts, caches, at up to 71 % (H100) or 90 % (H200)."
    ),
    "l": "Each of their kernels takes 3 µs in addition, and each of ours 0.5, from a CUDA graph.",
    "m": "Left out in theirs.",
    "n": "Shared experts run next to routed ones in theirs, on a second stream, and one after the other here.",
}
"""Why times of a kind are apart, by the letters of the table."""


def table() -> str:
    """The plans as Markdown: ms of the step by both, and the differences by kind with their reasons."""
    rows = _read("estimates")
    names = ("attention", "matmuls", "experts", "all-reduce", "exchange", "elementwise", "head", "overlap")
    lines = [f"| plan | theirs | ours | | {' | '.join(names)} |", f"|---|---:|---:|---:|{'---:|' * len(names)}"]
    last = None
    for row in rows:
        if (place := (row["model"], row["system"])) != last:
            lines.append(f"| **{place[0]}, {place[1]}** {'| ' * (3 + len(names))}|")
            last = place
        own, theirs = float(row["ours"]), float(row["theirs"])
        engine = "" if row["tool"].startswith("trtllm") else f" ({row['tool'].partition(' ')[0]})"
        cells = [f"{row['plan']}{engine}", f"{theirs:.1f}", f"{own:.1f}", f"{own / theirs - 1:+.0%}"]
        lines.append(f"| {' | '.join([*cells, *(_cell(row, kind) for kind in KINDS)])} |")
    return "\n".join([*lines, "", *_summary(rows)]) + "\n"


def reasons() -> str:
    """What the letters of the table mean, as Markdown."""
    used = {letter for row in _read("estimates") for kind in KINDS for letter in _letters(row, kind)}
    return "| | why |\n|---|---|\n" + "".join(f"| {key} | {text} |\n" for key, text in REASONS.items() if key in used)


def throughputs() -> str:
    """The settings that InferSim has measured, as Markdown. Tokens a second of an accelerator."""
    lines = ["| step | measured | InferSim | | ours | |", "|---|---:|---:|---:|---:|---:|"]
    for row in _read("throughputs"):
        measured, theirs, own = (int(row[name]) for name in ("measured", "infersim", "stagedb"))
        cells = [row["step"], f"{measured:,}", f"{theirs:,}", f"{theirs / measured - 1:+.1%}"]
        lines.append(f"| {' | '.join([*cells, f'{own:,}', f'{own / measured - 1:+.1%}'])} |")
    return "\n".join(lines) + "\n"


def _read(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"serving-{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _summary(rows: list[dict[str, str]]) -> Iterator[str]:
    for phase in ("prefill", "decode"):
        apart = [float(row["ours"]) / float(row["theirs"]) - 1 for row in rows if phase in row["plan"]]
        mean, bias = sum(map(abs, apart)) / len(apart), sum(apart) / len(apart)
        yield (
            f"{len(apart)} steps of {phase}: apart by {mean:.1%} in the mean, ours {bias:+.1%}, "
            f"{max(apart, key=abs):+.1%} at most.{'' if phase == 'decode' else '  '}"
        )


def _times(row: Mapping[str, str], kind: str) -> tuple[float, float]:
    """ms of a kind by them and by us."""
    return float(row[f"their {kind}"]), float(row[f"our {kind}"])


def _cell(row: Mapping[str, str], kind: str) -> str:
    theirs, own = _times(row, kind)
    if kind == "overlap":
        return f"{theirs:.1f} ms {_letters(row, kind)}" if abs(theirs) > 0.0005 else ""
    if not theirs:
        return f"{own:.1f} ms {_letters(row, kind)}" if own else ""
    return f"{own / theirs - 1:+.0%} {_letters(row, kind)}".strip()


def _letters(row: Mapping[str, str], kind: str) -> str:
    """The reasons of a difference above `APART`; empty below it. ValueError for a difference without a reason."""
    theirs, own = _times(row, kind)
    if max(abs(theirs), abs(own)) < 0.0005 or (theirs and abs(own / theirs - 1) <= APART):
        return ""
    found = "".join(_found(row, kind, longer=own > theirs, theirs=theirs))
    if not found:
        raise ValueError(f"{row['model']} {row['plan']}: {kind} is {own} next to {theirs}, without a reason")
    return found


def _found(row: Mapping[str, str], kind: str, *, longer: bool, theirs: float) -> Iterator[str]:
    prefill, fp8, latents = "prefill" in row["plan"], "fp8" in row["plan"], row["model"] == "deepseek-v3"
    if kind == "overlap":
        yield "n"
    elif not theirs:
        yield "m"
    elif kind == "attention":
        yield ("b" if latents else "a") if prefill else "c"
    elif kind == "matmul":
        yield from ("d" if longer and prefill else "", "e" if fp8 and not longer else "")
        yield from ("g" if latents and longer else "", "f" if not prefill and not fp8 and longer else "")
    elif kind == "elementwise":
        yield "k" if longer else "l"
    else:
        yield {"experts": "h", "all-reduce": "i", "exchange": "j"}.get(kind, "")
