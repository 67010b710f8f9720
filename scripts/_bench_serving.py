"""The benchmark behind `scripts/bench serving`: steps of engines by AIConfigurator and InferSim, next to ours.

    python3 -m venv other && other/bin/pip install aiconfigurator==0.12.0
    git clone https://github.com/alibaba/InferSim
    scripts/bench serving --aiconfigurator other/bin/python --infersim InferSim

`--aiconfigurator` is an interpreter with that package: its `estimate` of one prefill or decode (`static_ctx`,
`static_gen`) of each of 30 plans is put next to a profile of the same plan, by kinds of operators. `--infersim` is a
checkout: its three published settings are run, and put next to what it has measured and to our plans.
Either may be left out. `--write` keeps the figures for docs/serving.md.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts._bench import ROOT, machine
from scripts._serving_plans import MEASURED, PLANS, MeasuredServing, ServedPlan
from stagedb.api.model_names import card_source
from stagedb.errors import UsageError
from stagedb.lowering import Program, program_of
from stagedb.lowering.columns import COLLECTIVE, RECV, SEND, Ops
from stagedb.models import load_card
from stagedb.plans import typed_words
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.timing.op_durations import runs_of
from stagedb.timing.step_profile import JobProfile

ESTIMATES, THROUGHPUTS = (ROOT / "docs" / f"serving-{name}.csv" for name in ("estimates", "throughputs"))
"""The figures that docs/serving.md shows."""

APART = 0.15
"""Difference of two times of a kind, as a share, above which docs/serving.md has a reason."""

ESTIMATE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
import aiconfigurator.sdk.models as models
from aiconfigurator.cli.api import cli_estimate
logging.disable(logging.CRITICAL)
made, apart = models.get_model, sys.argv[1] == "apart"
def parts_of(op):
    inside = [each for name in ("_group_a", "_group_b") for each in getattr(op, name, ())]
    return [each for one in inside for each in parts_of(one)] if inside else [op]
def get_model(*arguments, **words):
    model = made(*arguments, **words)
    if apart:
        model.generation_ops = [each for op in model.generation_ops for each in parts_of(op)]
    return model
models.get_model = get_model
answers = []
for words in json.load(sys.stdin):
    try:
        found = cli_estimate(**words)
        phase = "context" if words["mode"] == "static_ctx" else "generation"
        parts = getattr(found.summary, f"get_{phase}_latency_dict")()
        answers.append({"version": found.backend_version, "parts": parts})
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
print("\\n" + json.dumps(answers))
"""
"""What runs in the interpreter of `--aiconfigurator`. Apart: operators that it times as two in parallel are timed one
after the other. It keeps the engine of a model, so that either is a process of its own."""

KINDS = ("attention", "matmul", "experts", "all-reduce", "exchange", "elementwise", "head", "overlap")
"""Kinds of operators, in the order of the table. `overlap`: what is hidden behind operators of other kinds."""

ATTENTION = re.compile(r"attention$|mla_block$")
COMMUNICATION = re.compile(r"(^|_)(ar_\d|embedding_ar|tp_allreduce|p2p)$")
EXCHANGE = re.compile(r"dispatch|combine")
ELEMENTWISE = re.compile(r"norm|act_gate|embedding$|reduce_add|rope")


@dataclass(frozen=True)
class Estimate:
    """A step of a plan by one tool. ms: of the step. kinds: ms of each kind of operators. tool: with its version."""

    tool: str
    ms: float
    kinds: Mapping[str, float]


def main() -> None:
    """Run the tools that were given and print both tables."""
    asked = _arguments()
    if asked.aiconfigurator is None and asked.infersim is None:
        sys.exit("nothing to compare with: give --aiconfigurator PYTHON, --infersim DIR or both (see --help)")
    print(machine(), flush=True)
    if asked.aiconfigurator is not None:
        pairs = [(plan, theirs, ours(plan)) for plan, theirs in estimates(asked.aiconfigurator, PLANS)]
        rows = list(_rows(pairs))
        print("\n".join(_lines(pairs)), flush=True)
        if asked.write:
            _write(ESTIMATES, rows)
    if asked.infersim is not None:
        found = [(each, *throughputs(asked.infersim, each)) for each in MEASURED]
        lines = [_throughput_row(*each) for each in found]
        for line in lines:
            print("  ".join(f"{name} {value}" for name, value in line.items()))
        if asked.write:
            _write(THROUGHPUTS, lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--aiconfigurator", type=Path, metavar="PYTHON", help="an interpreter with aiconfigurator")
    parser.add_argument("--infersim", type=Path, metavar="DIR", help="a checkout of InferSim")
    parser.add_argument("--write", action="store_true", help="keep the figures for docs/serving.md")
    return parser.parse_args()


def estimates(python: Path, plans: Sequence[ServedPlan]) -> list[tuple[ServedPlan, Estimate]]:
    """AIConfigurator's estimate of each plan. Exits if the interpreter lacks the package, or refuses a plan.

    python: an interpreter with the package. plans: those to estimate.
    """
    asked = json.dumps([each.estimate_words for each in plans])
    together, apart = (
        json.loads(_last_line([str(python), "-c", ESTIMATE, each], "aiconfigurator==0.12.0", text=asked))
        for each in ("together", "apart")
    )
    found = []
    for plan, answer, parts in zip(plans, together, apart, strict=True):
        if error := answer.get("error") or parts.get("error"):
            sys.exit(f"aiconfigurator refuses {plan.title}: {error}")
        kinds = defaultdict[str, float](float)
        for name, ms in parts["parts"].items():
            kinds[their_kind(name, plan)] += ms
        ms = sum(answer["parts"].values())
        kinds["overlap"] = ms - sum(kinds.values())
        found.append((plan, Estimate(f"{plan.engine} {answer['version']}", ms, dict(kinds))))
    return found


def _last_line(command: Sequence[str], package: str, text: str = "", folder: Path | None = None) -> str:
    """The last line that another tool prints. Exits with its last words if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ran = subprocess.run(
            command, input=text, capture_output=True, text=True, env=environment, cwd=folder or tempfile.gettempdir()
        )
    except OSError as error:
        sys.exit(f"{command[0]} does not run ({error.strerror}): name an interpreter with {package}")
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        sys.exit(f"{command[0]} failed ({last}): it needs {package}")
    return ran.stdout.strip().splitlines()[-1]


def their_kind(name: str, plan: ServedPlan) -> str:
    """The kind of an operator of AIConfigurator. name: with its phase before it."""
    name = name.partition("_")[2] if name.startswith(("context_", "generation_")) else name
    if ATTENTION.search(name):
        return "attention"
    if "logits" in name:
        return "head"
    if EXCHANGE.search(name):
        return "exchange" if plan.exchanges else "all-reduce"
    if COMMUNICATION.search(name):
        return "all-reduce"
    if ELEMENTWISE.search(name):
        return "elementwise"
    if name == "moe":
        return "experts"
    return (
        "attention" if plan.has_latents and not name.startswith(("shared", "router", "gate_ffn", "ffn2")) else "matmul"
    )


def ours(plan: ServedPlan) -> Estimate:
    """Our step of a plan, by the same kinds."""
    card, typed = load_card(plan.model), typed_words(dict(plan.words))
    program = program_of(card, card_source(card, typed).new_plan(typed))
    profile = profile_job(program.workload, load_system(plan.system))
    kinds = defaultdict[str, float](float)
    for name, ms in _our_parts(program, profile, plan):
        kinds[name] += ms
    kinds["overlap"] = profile.step / 1e6 - sum(kinds.values())
    return Estimate("stagedb", profile.step / 1e6, dict(kinds))


def _our_parts(program: Program, profile: JobProfile, plan: ServedPlan) -> Iterator[tuple[str, float]]:
    """The kind and ms of each operator of a rank."""
    columns, lane = program.workload.classes[0], profile.durations.lanes[0]
    for op, (runs, ns) in enumerate(zip(runs_of(columns), lane.ns.tolist(), strict=True)):
        yield our_kind(columns.ops, op, plan), runs * ns / 1e6


def our_kind(ops: Ops, op: int, plan: ServedPlan) -> str:
    """The kind of an operator of a plan. op: its row."""
    name, kind = ops.name[op], ops.kind[op]
    if ops.type[op] in (COLLECTIVE, SEND, RECV):
        return "exchange" if kind == "all_to_all" else "all-reduce"
    if plan.has_latents and ".attn." in name and not name.endswith(".add"):
        return "attention"
    if kind == "attention":
        return "attention"
    if name == "head.out":
        return "head"
    if _is_of_expert_kernel(name):
        return "experts"
    return "matmul" if kind == "matmul" else "elementwise"


def _is_of_expert_kernel(name: str) -> bool:
    """Whether an operator is in what was measured as experts: from scores to the sum of their results."""
    last = name.rpartition(".")[2]
    return ".ffn.experts." in name or (".ffn." in name and last in EXPERT_STEPS)


EXPERT_STEPS = ("wide", "scores", "topk", "shares", "routing_scale", "order", "pack", "permute", "unpermute", "sum")


def throughputs(folder: Path, measured: MeasuredServing) -> tuple[float, float]:
    """Tokens a second of an accelerator by InferSim and by our plan.

    folder: its checkout. measured: the setting.
    """
    arguments = ["main.py", "--config-path", f"hf_configs/{measured.config}", *measured.arguments]
    last = _last_line([sys.executable, *arguments], "a checkout of InferSim (--infersim)", folder=folder)
    number = re.search(r"TGS.*:\s+([\d.]+)", last)
    if number is None:
        sys.exit(f"InferSim ends with {last!r}, without a throughput")
    return float(number[1]), measured.expected


def _throughput_row(measured: MeasuredServing, theirs: float, own: float) -> dict[str, str]:
    return {
        "step": measured.title,
        "measured": f"{measured.tokens}",
        "infersim": f"{theirs:.0f}",
        "stagedb": f"{own:.0f}",
    }


def _rows(pairs: Iterable[tuple[ServedPlan, Estimate, Estimate]]) -> Iterator[dict[str, str]]:
    """A row for each plan, with the ms of both tools for the step and for each kind."""
    for plan, theirs, own in pairs:
        row = {"model": plan.model, "system": plan.system, "plan": plan.short, "tool": theirs.tool}
        row |= {"theirs": f"{theirs.ms:.3f}", "ours": f"{own.ms:.3f}"}
        for kind in KINDS:
            row[f"their {kind}"] = f"{theirs.kinds.get(kind, 0.0):.3f}"
            row[f"our {kind}"] = f"{own.kinds.get(kind, 0.0):.3f}"
        yield row


def _lines(pairs: Sequence[tuple[ServedPlan, Estimate, Estimate]]) -> Iterator[str]:
    for plan, theirs, own in pairs:
        yield f"{plan.title} ({theirs.tool}): {theirs.ms:.3f} ms, ours {own.ms:.3f} ({own.ms / theirs.ms - 1:+.1%})"
        for kind in KINDS:
            first, second = theirs.kinds.get(kind, 0.0), own.kinds.get(kind, 0.0)
            if max(abs(first), abs(second)) > 0.0005:
                apart = f"{second / first - 1:+8.1%}" if first else "        "
                yield f"  {kind:12} {first:10.3f} {second:10.3f} {apart}"


def _write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(error.message)
