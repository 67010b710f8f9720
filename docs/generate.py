"""The generated parts of the documentation: cog calls these functions (`cog -r docs/*.md README.md`)."""

import atexit
import contextlib
import csv
import dataclasses
import functools
import inspect
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.testing
from typer.main import get_command
from typer.testing import CliRunner

from stagedb.cli.application import application
from stagedb.plans.aspects import GRAPH_WORDS, PLAN_WORDS

APP = application()
TREE: Any = get_command(APP)

# Else the runner makes all commands anew for each call, which takes a third of a second. typer has no door for this.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]  # not public

WIDTH = 100
"""Columns of the help texts, for any terminal."""


def command_names() -> list[str]:
    """Every command that does something. Groups are spelled out: `store up`."""
    names = []
    for name, command in sorted(TREE.commands.items()):
        names += [f"{name} {sub}" for sub in sorted(getattr(command, "commands", {}))] or [name]
    return names


def help_of(name: str) -> str:
    """The output of `stagedb NAME --help`."""
    return _printed(*name.split(), "--help")


def _printed(*words: str) -> str:
    """The output of a command that reads no store."""
    return str(_invoked(words, {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}).output).strip()


def _invoked(words: Sequence[str], environment: Mapping[str, str]) -> Any:
    """What a command has written. Raises RuntimeError, with that, if it fails."""
    result = CliRunner().invoke(APP, words, prog_name="stagedb", env=environment)
    if result.exit_code:
        raise RuntimeError(f"stagedb {' '.join(words)} failed: {result.output} {result.exception}")
    return result


def cli_reference() -> str:
    """A section for each command: its help. Options that several commands have are in a section of their own."""
    helps = {name: _help(name) for name in command_names()}
    uses = Counter(entry for each in helps.values() for entry in each.entries)
    common = {entry for entry, count in uses.items() if count > 1}
    parts = [f"```text\n{help_of('')}\n```\n", _word_table()]
    parts.append(
        "## Options of several commands\n\n"
        + _option_table(sorted(common, key=lambda entry: (entry.name, entry.flags, entry.text)))
    )
    for name, each in helps.items():
        own = [entry for entry in each.entries if entry not in common]
        also = ", ".join(f"`{entry.name}`" for entry in each.entries if entry in common)
        parts.append(f"## stagedb {name}\n\n`{each.usage}`\n\n{each.about}\n")
        parts += [_option_table(own)] if own else []
        parts.append(f"Also {each.words}{also}.\n")
    return "\n".join(parts)


@dataclasses.dataclass(frozen=True)
class HelpEntry:
    """An argument or an option of a command: its name, with its short form and placeholder, and its explanation."""

    name: str
    flags: str
    text: str


@dataclasses.dataclass(frozen=True)
class Help:
    """The parts of a help text. words: the words of a plan that the command takes, in a few words."""

    usage: str
    about: str
    entries: tuple[HelpEntry, ...]
    words: str


def _help(name: str) -> Help:
    head, groups = _groups(help_of(name))
    usage, _, about = head.partition("\n")
    words, entries = "", list[HelpEntry]()
    for title, text in groups:
        if title == "Words of the plan":
            words = _plan_words(text)
        else:
            entries += _entries(text)
    summary, *more = [" ".join(part.split()) for part in about.strip().split("\n\n")]
    lines = [f"{summary} {more[0]}", *more[1:]] if more else [summary]
    return Help(usage.removeprefix("Usage: "), _unbroken("\n\n".join(lines)), tuple(entries), words)


def _word_table() -> str:
    """The section of the words of a plan: what `stagedb help plan` prints, in one table."""
    head, groups = _groups(_printed("help", "plan"))
    rows = [
        row
        for title, text in groups
        for row in (f"| **{title}** | |", *(_option_row(entry) for entry in _entries(text)))
    ]
    about = _unbroken(" ".join(head.split()))
    return "\n".join([f"## Words of a plan\n\n{about}\n\n| option | what it does |", "|---|---|", *rows]) + "\n"


def _groups(text: str) -> tuple[str, list[tuple[str, str]]]:
    """What a help text begins with, and its groups of options, each with its title."""
    head, *groups = re.split(r"\n(?=[A-Z][^.\n]*:\n)", text)
    parts = [group.partition(":\n") for group in groups]
    return head, [(title, options) for title, _, options in parts]


def _entries(text: str) -> list[HelpEntry]:
    return [_entry(each) for each in re.split(r"\n(?=  \S)", text.rstrip()) if each.strip()]


def _entry(text: str) -> HelpEntry:
    flags, _, rest = re.sub(r"\n +", "  ", text.strip()).partition("  ")
    long = next((word.rstrip(",") for word in flags.split() if word.startswith("--")), flags.split(" <")[0])
    return HelpEntry(long, flags, _unbroken(" ".join(rest.split())))


def _unbroken(text: str) -> str:
    """A text whose lines were broken at hyphens too."""
    return re.sub(r"(?<=[a-z])- (?=[a-z])", "-", text)


def _option_table(entries: list[HelpEntry]) -> str:
    return "\n".join(["| option | what it does |", "|---|---|", *(_option_row(each) for each in entries)]) + "\n"


def _option_row(entry: HelpEntry) -> str:
    return f"| `{_cell(entry.flags)}` | {_cell(entry.text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plan_words(text: str) -> str:
    """What the words of a plan are called that a command takes: all, or those of a graph. text: their names."""
    found = set(re.findall(r"--[\w-]+", text))
    names = {
        "[words of a plan](#words-of-a-plan)": PLAN_WORDS,
        "[words of a plan](#words-of-a-plan) that change the graph": GRAPH_WORDS,
    }
    for name, words in names.items():
        if found == {word.option for word in words.values() if word.about.command_line}:
            return f"all {name}, "
    raise RuntimeError(f"neither all words of a plan, nor those of a graph: {found}")


def architectures() -> str:
    """The architectures of Hugging Face configs that are read, by what they are."""
    from stagedb.models.readers import READERS
    from stagedb.models.readers.nested_decoders import TEXT_MODELS, WHOLE_MODELS

    rows: dict[str, list[str]] = {}
    for name, reader in READERS.items():
        rows.setdefault(" ".join((inspect.getdoc(reader) or "").split()), []).append(f"`{name}`")
    for name, (text, _) in WHOLE_MODELS.items():
        alone = TEXT_MODELS[text][0]
        rows.setdefault(f"The text model of a model with images or sound: by default as `{alone}`.", []).append(
            f"`{name}`"
        )
    lines = ["| architectures | what they are |", "|---|---|"]
    return "\n".join([*lines, *(f"| {', '.join(names)} | {about} |" for about, names in rows.items())]) + "\n"


def kind_words() -> str:
    """What a layer kind of a card may set, by part."""
    from stagedb.models.kinds import PARTS, RESIDUALS, LayerPart, Residual

    lines = ["| part | word | default | what it sets |", "|---|---|---|---|"]
    seen: dict[str, object] = {}
    # A whole layer has the words of the parts inside of it.
    parts: tuple[LayerPart | Residual, ...] = (
        *sorted(PARTS, key=lambda part: part.makes_stream),
        *RESIDUALS.values(),
    )
    for part in parts:
        for name, word in part.words.items():
            if seen.get(name) == word:
                continue
            seen[name] = word
            choices = f" ({', '.join(word.choices)})" if word.choices else ""
            default = "must be set" if word.default is None else f"`{word.default}`" if word.default != "" else ""
            lines.append(f"| `{part.name}` | `{name}` | {default} | {word.about}{choices} |")
    return "\n".join(lines) + "\n"


def block_operators() -> str:
    """The operators of own blocks."""
    from stagedb.models.kinds.own.reader import FUNCTIONS, OPERATORS

    lines = ["| operator | operands | what it makes |", "|---|---|---|"]
    for name, form in OPERATORS.items():
        if name in FUNCTIONS:
            continue
        count = str(form.least) if form.least == form.most else f"{form.least} to {form.most}"
        takes = f"`{name}: {form.argument.upper()}`, `of`: " if form.argument else ""
        lines.append(f"| `{name}` | {takes}{count} | {form.about} |")
    lines.append(f"| {', '.join(f'`{name}`' for name in FUNCTIONS)} | 1 | the function of each value |")
    return "\n".join(lines) + "\n"


def own_card() -> str:
    """The layers and the own block of `docs/thin-8b.yaml`, as the command draws them."""
    output: str = _invoked(["models", "docs/thin-8b.yaml"], {"NO_COLOR": "1"}).output
    return "$ stagedb models thin-8b.yaml\n" + output[output.index("layers, from") :].strip()


def keys_without_effect() -> str:
    """The keys of configs that change nothing, by reason."""
    from stagedb.mentions import OPTIONS, shown_in
    from stagedb.models.readers import UNUSED_WHERE, WITHOUT_EFFECT

    reasons: dict[str, list[str]] = {}
    for key, reason in WITHOUT_EFFECT.items():
        reasons.setdefault(shown_in(OPTIONS, reason), []).append(f"`{key}`")
    lines = ["| keys | why |", "|---|---|"]
    lines += [f"| {', '.join(sorted(keys))} | {reason} |" for reason, keys in reasons.items()]
    lines += [f"| `{key}` | where {condition} |" for key, condition in UNUSED_WHERE.items()]
    return "\n".join(lines) + "\n"


def data_model() -> str:
    """Labels, properties and relationships of the store."""
    from stagedb.store.schema import page

    return page()


def queries() -> str:
    """The named queries: a table for each subject."""
    from stagedb import api

    parts = []
    for subject, found in groupby(api.queries(), key=lambda info: info.subject):
        rows = ["| query | asks | parameters | columns |", "|---|---|---|---|"]
        for info in found:
            asks = inspect.cleandoc(info.description).replace("\n", " ").replace("|", "\\|")
            rows.append(f"| `{info.name}` | {asks} | {_list(info.parameters)} | {_list(info.columns)} |")
        parts.append("\n".join([f"## {subject.replace('_', ' ').capitalize()}", "", *rows, ""]))
    return "\n".join(parts)


def packed_columns() -> str:
    """The columns of a packed file's classes as a table."""
    from stagedb.traces.packed_file import COLUMNS

    names = {"<i8": "int64", "<i4": "int32", "|u1": "uint8"}
    rows = ["| column | integers | what |", "|---|---|---|"]
    rows += [f"| `{name}` | {names[column.dtype]} | {column.what} |" for name, column in COLUMNS.items()]
    return "\n".join(rows) + "\n"


def trace_formats() -> str:
    """The formats of trace sets as a table: what each one writes, and which options go with it."""
    from stagedb.traces.formats import FORMATS, PACKED

    options = ("compress", "resume", "replay", "simulator")
    rows = [f"| format | files | {' | '.join(f'`--{option}`' for option in options)} | `validate` reads it |"]
    rows.append(f"|---|---|{'---|' * len(options)}---|")
    for each in (*FORMATS.values(), PACKED):
        name = "`--packed`" if each is PACKED else f"`--format {each.name}`"
        files = each.what.format(name="NAME").replace("<", "").replace(">", "").rpartition(": ")[2]
        takes = ["yes" if option in each.takes else "no" for option in options]
        what = f"{each.help}: `{files}`" if files else f"{each.help}: `NAME.packed`"
        rows.append(f"| {name} | {what.replace(', NAME', '`, `NAME')} | {' | '.join(takes)} | {_yes(each.find)} |")
    return "\n".join(rows) + "\n"


def _yes(value: object) -> str:
    return "no" if value is None else "yes"


def parquet_columns() -> str:
    """The columns of the tables of nodes and of ranks."""
    from stagedb.traces.formats.parquet_tables import NODE_COLUMNS, RANK_COLUMNS

    parts = []
    for title, columns in (("`NAME.class-KEY.parquet`", NODE_COLUMNS), ("`NAME.ranks.parquet`", RANK_COLUMNS)):
        parts += [f"{title}:", "", "| column | type | what |", "|---|---|---|"]
        parts += [f"| `{each.name}` | {each.type} | {each.what} |" for each in columns]
        parts.append("")
    return "\n".join(parts)


def simulators() -> str:
    """The simulator targets as a table."""
    from stagedb.traces.simulators import SIMULATORS

    rows = ["| `--simulator` | what | files |", "|---|---|---|"]
    for each in SIMULATORS.values():
        rows.append(f"| `{each.name}` | {each.help} | {', '.join(f'`{name}`' for name in each.files)} |")
    return "\n".join(rows) + "\n"


def systems() -> str:
    """The presets as a table."""
    from stagedb import api

    rows = ["| system | bf16 TFLOP/s | fp8 TFLOP/s | memory | network, one direction |", "|---|---:|---:|---|---|"]
    for row in api.systems():
        memory = f"{row['memory_gb']:.5g} GB, {row['reserve_gb']:.3g} reserved, at {row['memory_gb_s']} GB/s"
        rows.append(
            f"| `{row['name']}` | {row['bf16_tflops']} | {row['fp8_tflops'] or '-'} | {memory} | {row['network']} |"
        )
    return "\n".join(rows) + "\n"


def scale_table() -> str:
    """The table of large exports, from the figures that `scripts/bench scale` wrote."""
    from scripts._bench_scale import table

    return table(json.loads(Path("docs/bench-scale.json").read_text(encoding="utf-8")))


def _steps() -> list[dict[str, str]]:
    """The output of `stagedb validate --reference --only '*' -f csv -o docs/step-times.csv`."""
    with Path("docs/step-times.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def step_times() -> str:
    """Published and predicted step times, and the errors by table."""
    rows = ["| source | step of | published s | ours s | error | rows |", "|---|---|---:|---:|---:|---|"]
    for row in _steps():
        title = row["quantity"].removeprefix("step of ").removesuffix(" [s]")
        error = f"{float(row['ratio']) - 1:+.1%}"
        published, ours = (f"{float(row[name]):.2f}" for name in ("reference", "ours"))
        rows.append(f"| {row['source']} | {title} | {published} | {ours} | {error} | {row['rows']} |")
    return "\n".join(rows) + "\n"


def step_errors() -> str:
    """Mean and worst of the absolute errors of each table, separately for calibrated rows and others, and of all."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in _steps():
        for key in (("all", "all"), (row["source"], row["rows"]), (row["source"], "all")):
            found.setdefault(key, []).append(abs(float(row["ratio"]) - 1))
    rows = ["| source | rows | number | mean | worst |", "|---|---|---:|---:|---:|"]
    rows += [
        f"| {source} | {which} | {len(off)} | {sum(off) / len(off):.1%} | {max(off):.1%} |"
        for (source, which), off in found.items()
    ]
    return "\n".join(rows) + "\n"


def _predictions() -> list[dict[str, str]]:
    """What `scripts/fit_steps --write` wrote."""
    with Path("docs/step-predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _off(rows: list[dict[str, str]], way: str) -> str:
    """Mean and worst of the absolute errors of some rows, as two cells."""
    off = [abs(float(row[way]) / float(row["published"]) - 1) for row in rows]
    return f"{sum(off) / len(off):.1%} | {max(off):.1%}" if off else "- | -"


def _by_source() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in _predictions():
        found.setdefault(row["source"], []).append(row)
    return found


def source_errors() -> str:
    """The errors of each source, predicted by numbers that were fitted without it, and by the numbers as they are."""
    rows = [
        "| source | model | rows | without it | worst | held out, as it is | worst |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for source, own in _by_source().items():
        held_out = [row for row in own if row["rows"] == "held out"]
        cells = f"{_off(own, 'without its source')} | {_off(held_out, 'predicted')}"
        rows.append(f"| {source} | {own[0]['model']} | {len(own)} | {cells} |")
    return "\n".join(rows) + "\n"


def headline() -> str:
    """The mean over sources, each predicted by numbers that were fitted without it, next to what it was before."""
    before = {row["source"]: row for row in _table("step-errors-before.csv")}
    rows = ["| | sources | mean over sources | worst row | before | worst row |", "|---|---:|---:|---:|---:|---:|"]
    for title, model in (("all", ""), ("dense", "dense"), ("experts", "experts")):
        chosen = {source: own for source, own in _by_source().items() if model in ("", own[0]["model"])}
        means, worst = [], 0.0
        for own in chosen.values():
            off = [abs(float(row["without its source"]) / float(row["published"]) - 1) for row in own]
            means.append(sum(off) / len(off))
            worst = max(worst, *off)
        old = [before[source] for source in chosen]
        was = sum(float(row["mean"]) for row in old) / len(old), max(float(row["worst"]) for row in old)
        now = sum(means) / len(means)
        rows.append(f"| {title} | {len(chosen)} | **{now:.1%}** | {worst:.1%} | {was[0]:.1%} | {was[1]:.1%} |")
    return "\n".join(rows) + "\n"


def _table(name: str) -> list[dict[str, str]]:
    with (Path("docs") / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def kind_errors() -> str:
    """The errors to expect by kind."""
    from stagedb.timing.expected_errors import expected_errors

    rows = [
        "| kind | model | held out | mean | worst | all rows | without the kind | worst "
        "| without the accelerator | worst | no framework | worst |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in expected_errors():
        model = "experts" if each.experts else "dense"
        of = (each.held_out, each.apart, each.elsewhere, each.unnamed)
        first, *others = (f"{errors.mean:.1%} | {errors.worst:.1%}" for errors in of)
        cells = f"{each.held_out.rows} | {first} | {each.apart.rows} | {' | '.join(others)}"
        rows.append(f"| {each.name} | {model} | {cells} |")
    return "\n".join(rows) + "\n"


def predictions() -> str:
    """Every known row with its prediction, by source."""
    parts = []
    for source, own in _by_source().items():
        parts += [
            "",
            f"### {source}",
            "",
            "| step of | published s | predicted s | error | without its source | rows |",
        ]
        parts.append("|---|---:|---:|---:|---:|---|")
        for row in own:
            published = float(row["published"])
            ours, without = float(row["predicted"]), float(row["without its source"])
            cells = f"{published:.4g} | {ours:.4g} | {ours / published - 1:+.1%} | {without / published - 1:+.1%}"
            parts.append(f"| {row['step of']} | {cells} | {row['rows']} |")
    return "\n".join(parts[1:]) + "\n"


def unexplained(most: float = 0.15) -> str:
    """The rows with larger errors than this share."""
    rows = ["| source | step of | error | without its source |", "|---|---|---:|---:|"]
    for row in _predictions():
        published = float(row["published"])
        errors = [float(row[way]) / published - 1 for way in ("predicted", "without its source")]
        if max(map(abs, errors)) > most:
            rows.append(f"| {row['source']} | {row['step of']} | {errors[0]:+.1%} | {errors[1]:+.1%} |")
    return "\n".join(rows) + "\n"


def host_steps() -> str:
    """Steps of models with experts that fixed nothing, with their waits for the host and without them."""
    from dataclasses import replace

    from stagedb.lowering import program_of
    from stagedb.timing import step_of
    from stagedb.validation.step_rows import job_of, read_steps
    from stagedb.validation.step_times import plan_of

    rows = ["| step of | published s | predicted s | error | without waits |", "|---|---:|---:|---:|---:|"]
    for row in read_steps(Path(__file__).parent / "host-steps.csv"):
        job = job_of(row)
        workload = program_of(job.card, plan_of(job)).workload
        free = replace(job.system, overlap=job.system.overlap.without_host)
        step, short = (step_of(workload, each) / 1e9 for each in (job.system, free))
        errors = f"{step / row.seconds - 1:+.1%} | {short / row.seconds - 1:+.1%}"
        rows.append(f"| {row.title} | {row.seconds:.4g} | {step:.4g} | {errors} |")
    return "\n".join(rows) + "\n"


def calibrated_numbers() -> str:
    """The fitted numbers, and the rows that fixed each."""
    from stagedb.validation.step_rows import fixing_rows

    rows = ["| operator | frameworks | systems | factor | cause | calibrated rows that fixed it |"]
    rows.append("|---|---|---|---:|---|---|")
    for each, fixing in fixing_rows().items():
        of = {row.source: sum(other.source == row.source for other in fixing) for row in fixing}
        names = f"{', '.join(each.frameworks) or 'all'} | {', '.join(each.systems) or 'all'}"
        fixed = ", ".join(f"{number} of {source}" for source, number in of.items())
        rows.append(f"| {each.operator} | {names} | {float(each.factor):g} | {each.reason} | {fixed} |")
    return "\n".join(rows) + "\n"


def other_numbers() -> str:
    """Numbers of a step that are not fitted to the known rows, with how they were found and their sources."""
    from stagedb.frameworks.profiles import FRAMEWORK_PROFILES
    from stagedb.systems import load_system, system_names
    from stagedb.systems.tables.operator_times import BACKWARD
    from stagedb.timing.host_waits import LINEAR_LAYER
    from stagedb.validation.step_rows import job_of, known_rows

    rows = ["| number | value | found by | source |", "|---|---|---|---|"]
    for dtype, ns in LINEAR_LAYER.items():
        name = f"host's time for a matmul of a linear layer, {dtype}"
        rows.append(f"| {name} | {ns:,} ns | published | issue 445 of NVIDIA/TransformerEngine |")
    for name in system_names():
        if (issue := load_system(name).accelerator.issue) is not None:
            source = "issue 2053 of NVIDIA/TransformerEngine"
            rows.append(
                f"| its time for a matmul of one expert, `{name}` | {float(issue):,g} ns | published | {source} |"
            )
    attention = "speed of an attention's backward over its forward's"
    rows.append(f"| {attention} | {BACKWARD} | published | arXiv 2307.08691, section 4.1 |")
    for each in FRAMEWORK_PROFILES.values():
        hiding = each.hiding
        words = {
            "gradients in buckets of": f"{hiding.reduced // 10**6} MB" if hiding.reduced else "",
            "parameters in buckets of": f"{hiding.gathered // 10**6} MB" if hiding.gathered else "",
            "computing that NCCL takes": f"{hiding.taken / 10:g} %" if hiding.taken else "",
            "copies around collectives of FSDP": hiding.copies,
            "turns of a ring are merged": hiding.merges,
            "keys and values of grouped heads": hiding.keys,
            "casts to fp8": hiding.casts,
            "gradients of weights added up in": hiding.sums,
            "matmuls of experts issued by the host": hiding.issues,
        }
        source = f"the profile `{each.name}` above"
        for name, value in words.items():
            how = "24 channels of 108 to 132 multiprocessors, rounded" if name.startswith("computing") else "its code"
            rows += [f"| {name}, `{each.name}` | {value} | {how} | {source} |"] if value else []
    for name in sorted({job_of(row).system.name for row in known_rows()}):
        rows += _of_system(load_system(name))
    return "\n".join(rows) + "\n"


def _of_system(system: Any) -> list[str]:
    """The numbers of a system that are no rates of a data sheet."""
    accelerator, page = system.accelerator, f"`stagedb systems {system.name}`"

    def source(word: str) -> str:
        return next((text for text in system.sources if word in text.partition(":")[0]), page)

    found = []
    if accelerator.sustained != 1:
        text = source("sustained")
        share = f"share that matmuls sustain without a framework, `{system.name}`"
        found.append(f"| {share} | {float(accelerator.sustained):g} | fitted to other steps | {text} |")
    for name, value, word in (
        ("memory", f"at most {float(accelerator.memory.points[-1][1]):g} of the bandwidth", "memory"),
        ("a launch", f"{float(accelerator.launch):g} ns", "launch"),
    ):
        text = source(word)
        by = "fitted to other steps" if "fitted" in text else "a round figure" if "round" in text else "that of another"
        found.append(f"| {name}, `{system.name}` | {value} | {by} | {text} |")
    for each in system.dimensions:
        share = f"at most {float(each.efficiency.points[-1][1]):g} of the bandwidth, {float(each.latency):g} ns"
        own = next((text for text in system.sources if text.lower().startswith(f"{each.name}:")), "")
        by, text = ("published", own) if own else ("a round figure; latency published", source("message"))
        found.append(f"| messages over {each.name}, `{system.name}` | {share} | {by} | {text}; {source('latencies')} |")
    if accelerator.power is not None:
        watts = f"{float(accelerator.power.limit):g} of {float(accelerator.power.measured):g} W"
        clock = f"clock {float(accelerator.power.clock):.3f}"
        found.append(f"| power, `{system.name}` | {watts}, {clock} | published | {page}; cube root: Mudge 2001 |")
    return found


def frameworks() -> str:
    """The framework profiles."""
    from stagedb.frameworks.profiles import FRAMEWORK_PROFILES

    rows = ["| `--framework` | versions | recipe | rules, and their source |", "|---|---|---|---|"]
    for each in FRAMEWORK_PROFILES.values():
        rows.append(f"| `{each.name}` | {each.versions} | `{each.recipe}` | {each.source} |")
    return "\n".join(rows) + "\n"


def engine_flags(name: str) -> str:
    """The flags of a serving engine: what each obeyed one gives, and why each refused one is refused."""
    from stagedb.frameworks.engines import find_engine
    from stagedb.mentions import OPTIONS, shown_in

    engine = find_engine(name)
    flags = {flag: each for flag, each in engine.flags.items() if flag == each.name}
    rows = ["| flag | gives |", "|---|---|"]
    for flag, each in sorted(flags.items()):
        if each.sets:
            values = ": " + ", ".join(map(str, each.values)) if each.values else ""
            rows.append(f"| `{flag}`{values} | {ENGINE_SETTINGS[each.sets]} |")
    rows += ["", "| refused | why | what works |", "|---|---|---|"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for flag, each in sorted(flags.items()):
        if each.refusal is not None:
            shown = shown_in(OPTIONS, each.refusal.why), shown_in(OPTIONS, each.refusal.works)
            reasons.setdefault(shown, []).append(f"`{flag}`")
    rows += [f"| {', '.join(names)} | {why} | {works} |" for (why, works), names in reasons.items()]
    silent = sum(not each.sets and each.refusal is None for each in flags.values())
    rows += ["", f"{silent} more flags of {engine.title} {engine.versions} have no effect on a step."]
    return "\n".join(rows) + "\n"


ENGINE_SETTINGS = {
    "model": "nothing: the model of a step is `--model`",
    "tp": "`--tp`, or `--dp` for ranks of data parallelism among them",
    "pp": "`--pp`",
    "dp": "`--dp`",
    "all_ep": "`--ep`: all ranks of dp and tp",
    "dp_inside": "the ranks of dp are among those of tp",
    "inner_dp": "`--dp`: ranks among those of tp",
    "attention_dp": "`--dp`: all ranks of tp",
    "ep": "`--ep`",
    "moe_tp": "`--ep`: the ranks of tp divided by it",
    "exchange": "`--dispatch`",
    "exchange_mode": "`--dispatch`: ranks in a prefill (normal), copies in a decode (low_latency)",
    "dtype": "`--dtype`",
    "cache_dtype": "`--cache-dtype`",
    "weights": "`--matmul-dtype` for fp8, `--weight-dtype` for 4 bits",
    "redundant": "`--redundant-experts`",
    "balanced": "copies are of the experts with most choices",
    "balancing": "`--redundant-experts`: its num_redundant_experts",
    "overlap": "`--overlap-experts`, with `--micro-batch-size` for half of the requests",
    "requests": "`--micro-batch-size` of a decode, and the most requests of a prefill",
    "group_requests": "`--micro-batch-size` of a decode",
    "prefill_requests": "the most requests of a prefill",
    "step_tokens": "`--micro-batch-size` of a prefill, and its chunk without `--seq-len`",
    "prefill_tokens": "the same, if it is less",
    "longest": "the longest request",
    "memory_share": "`--memory-share`",
    "block_size": "`--block-size`",
    "blocks": "the blocks of the cache",
    "cache_tokens": "the most tokens of the cache",
    "cache_bytes": "the bytes of the cache",
    "cache_most": "the most bytes of the cache",
    "speculation": "`--seq-len`, one more than num_speculative_tokens or max_draft_len, and `--draft`, with "
    "`--workflow speculative`",
    "draft_method": "`--draft` of a speculative step: own for layers of the model",
    "draft_tokens": "`--seq-len` of a speculative step, one more",
    "checked_tokens": "`--seq-len` of a speculative step",
    "draft_steps": "the same, one more",
    "draft_model": "`--draft other` of a speculative step",
    "draft_width": "nothing: one chain of drafted tokens",
}
"""What a setting of an engine is among the options of stagedb."""


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def strategy_regions() -> str:
    """The regions of a model with the logical axes that rules may partition."""
    from stagedb.plans.strategy_files import AXES

    return "".join(f"| `{region}` | {', '.join(f'`{axis}`' for axis in axes)} |\n" for region, axes in AXES.items())


EXAMPLE = ("llama3-8b", "--tp", "2", "--pp", "2", "--ranks", "8", "--global-batch-size", "16")
"""The instance in the examples on a store."""


def _job(*plan: str) -> tuple[str, ...]:
    return ("--model", "llama3-8b", *plan, "--ranks", "32", "--global-batch-size", "64")


STUDY = (*_job("--tp", "8", "--pp", "2"), "--name", "tp8")
"""The job in the page of questions, as options of `profile`."""

STUDY_PLANS = (
    _job("--tp", "8", "--sp", "--pp", "2"),
    _job("--tp", "4", "--sp", "--pp", "2"),
    _job("--tp", "2", "--sp"),
    (*_job("--zero", "3"), "--name", "fsdp"),
)
"""Other plans for this job, the best one last."""

STUDY_RECOMPUTED = _job("--zero", "3", "--recompute", "full")
"""The last one with less memory."""


@functools.cache
def _store() -> dict[str, str]:
    """The environment of an embedded store of its own. The store ends with this process."""
    from stagedb.store import embedded

    folder = tempfile.TemporaryDirectory(prefix="stagedb-docs-")
    environment = {"STAGEDB_HOME": folder.name, "STAGEDB_CONFIG": os.devnull, "NEO4J_URI": ""}
    atexit.register(folder.cleanup)
    atexit.register(embedded.stop, Path(folder.name))  # runs first
    return environment


@functools.cache
def _example_store() -> dict[str, str]:
    """A store with the example."""
    environment = _store()
    _print(environment, "instantiate", *EXAMPLE)
    return environment


@functools.cache
def _first_store(page: str) -> dict[str, str]:
    """The store of a new user: empty before the first command of a page."""
    del page  # each has its own
    return _store.__wrapped__()


@functools.cache
def _study_store() -> dict[str, str]:
    """A store in which the newest instance and the newest profile are those of the page of questions."""
    return _store.__wrapped__()


def _print(environment: dict[str, str], *words: str, notes: bool = False) -> str:
    result = _invoked(words, {**environment, "COLUMNS": "200"})
    return str(result.output if notes else result.stdout)


def example(*words: str, most: int | None = None, script: str = "stagedb") -> str:
    """The output of a command on the example, as a block of code: its first `most` lines, without seconds."""
    return _block(_example_store(), words, most, script)


def first(page: str, *words: str, most: int | None = None, script: str = "stagedb", notes: bool | None = None) -> str:
    """The output of a command in a store of the page's own, which begins empty. Notes are included where asked for.
    Those of an export are by default.

    Files are written to a folder that ends with this process, and named as if they were in the current folder.
    """
    environment = _first_store(page)
    folder = environment["STAGEDB_HOME"] + "/written/"
    given = [folder + word if word.startswith("traces") else word for word in words]
    if words[0] == "export" and "--out" not in words:
        given += ["--out", folder + f"llama3-8b-{words[words.index('--ranks') + 1]}"]
    text = _print(environment, *given, notes=words[0] == "export" if notes is None else notes).replace(folder, "")
    return _shown(text, words, most, script)


def recorded(page: str) -> str:
    """Write the traces of four ranks to the folder `traces` of a page, for the commands on it. Prints nothing."""
    from tests.runs.recordings import training_step

    folder = Path(_first_store(page)["STAGEDB_HOME"], "written", "traces")
    folder.mkdir(parents=True)
    for rank in range(4):
        training_step(rank, late=120_000 if rank == 2 else 0).write(folder)
    return ""


def execution_traces(page: str) -> str:
    """Write execution traces of two ranks to the folder `traces-et` of a page, for its commands. Prints nothing."""
    from tests.runs.execution_traces import linear_step

    folder = Path(_first_store(page)["STAGEDB_HOME"], "written", "traces-et")
    folder.mkdir(parents=True)
    for rank in range(2):
        linear_step(rank).write(folder / f"rank{rank}.et.json")
    return ""


def real_run(page: str, name: str) -> str:
    """Copy a run of PyTorch over gloo to the folder `traces` of a page, for the commands on it. Prints nothing.

    name: a folder in `tests/matching/gloo`, or in another one, such as `memory/fsdp`.
    """
    folder = Path(_first_store(page)["STAGEDB_HOME"], "written", "traces")
    recorded = Path(__file__).parents[1] / "tests" / "matching"
    source = recorded / name if "/" in name else recorded / "gloo" / name
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.jsonl"))
    return ""


def served_run(page: str) -> str:
    """Copy a trace of SGLang to the folder `traces` of a page, for the commands on it. Prints nothing."""
    folder = Path(_first_store(page)["STAGEDB_HOME"], "written", "traces")
    folder.mkdir(parents=True)
    source = Path(__file__).parents[1] / "tests" / "runs" / "served" / "sglang-qwen3-8b-decode.json.gz"
    shutil.copy(source, folder / "rank0.json.gz")
    return ""


def on_one_core(page: str, *words: str, most: int | None = None) -> str:
    """The same on one core: several may time a few plans more, so that other machines would print other counts."""
    with _one_core():
        return first(page, *words, most=most)


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Only one core for this process and those that it starts."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


README_QUERY = (
    "MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass {class: 0})-[:RUNS]->(o:Op {layer: 0})\n"
    "    WHERE o.flops > 0\n"
    "    RETURN o.name AS op, o.dims AS dims, o.flops AS flops ORDER BY o.order LIMIT 3"
)


def readme(*words: str, most: int | None = None, one_core: bool = False) -> str:
    """The output of a command in a terminal of 80 columns, in the README's own store, which begins empty.

    one_core: as that of `on_one_core`.
    """
    environment = _first_store("README")
    folder = environment["STAGEDB_HOME"] + "/written"
    Path(folder).mkdir(exist_ok=True)
    with _one_core() if one_core else contextlib.nullcontext():
        text = _in_terminal(environment, folder, *words)
    return _shown(text, words, most, "scripts/stagedb")


def _in_terminal(environment: dict[str, str], folder: str, *words: str, columns: int = 80) -> str:
    """What a command prints in a terminal of so many columns, without its notes."""
    import fcntl
    import pty
    import struct
    import subprocess
    import sys
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 100, columns, 0, 0))
    env = {**os.environ, **environment, "NO_COLOR": "1", "PYTHONPATH": str(Path.cwd())}
    env.pop("COLUMNS", None)
    command = [sys.executable, "-m", "stagedb", *words]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=follower, stderr=subprocess.PIPE) as process:
        os.close(follower)
        parts = []
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        os.close(leader)
        error = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        raise RuntimeError(f"stagedb {' '.join(words)} failed: {error}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def study(*words: str, most: int | None = None) -> str:
    """The output of a command in the store of the page of questions. It finds the results of earlier commands."""
    return _block(_study_store(), words, most, "stagedb")


def _block(environment: dict[str, str], words: tuple[str, ...], most: int | None, script: str) -> str:
    return _shown(_print(environment, *words), words, most, script)


def _shown(text: str, words: tuple[str, ...], most: int | None, script: str) -> str:
    text = re.sub(r", in [0-9.]+ s$", "", text, flags=re.MULTILINE)
    text = text.replace("already in the store: profile", "made profile")  # whichever page was first
    text = re.sub(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-11-21T07:27:26Z", text)  # as good as any
    lines = text.rstrip().splitlines()
    shown = [*lines[:most], "…"] if most is not None and len(lines) > most else lines
    if any("'" in word for word in words):
        raise RuntimeError(f"{words}: a shell would end the word at ', so write texts in Cypher with \"")
    written = " ".join(f"'{word}'" if re.search(r"[\s(]", word) else word for word in words)
    return "\n".join(["```text", f"$ {script} {written}", *shown, "```", ""])


@functools.cache
def plain_profile() -> str:
    """The start of the id of the example's profile on the default system."""
    _print(_example_store(), "profile", "-f", "json")
    rows = json.loads(_print(_example_store(), "ls", "profiles", "-f", "json"))
    return str(rows[0]["id"])


def selectors() -> str:
    """The selectors of `--scale`, as a table."""
    from stagedb.timing.whatif import SELECTORS

    rows = [f"| `{word}` | {what} |\n" for word, what in SELECTORS.items()]
    return "".join(["| selector | chooses |\n", "|---|---|\n", *rows])


def run_selectors() -> str:
    """The selectors of `replay --scale`, as a table."""
    from stagedb.runs.stored_run import RUN_SELECTORS

    rows = [f"| `{word}` | {what} |\n" for word, what in RUN_SELECTORS.items()]
    return "".join(["| selector | chooses |\n", "|---|---|\n", *rows])


GATHERED = '{"regions": {"ffn": {"batch": ["dp"], "seq": ["cp", "tp"]}}, "weights": {"ffn": {"ffn": ["tp"]}}}'


def strategy_choices() -> str:
    """The choices of a search over strategies with the rules that they mean."""
    from stagedb.plans.strategy_files import Rules
    from stagedb.search.space import CHOICES, RegionChoice

    def text(rules: Rules) -> str:
        found = []
        for region, rule in rules.items():
            axes = ", ".join(f"{axis}: [{', '.join(over)}]" for axis, over in rule.items())
            found.append(f"`{region}: {{{axes}}}`")
        return ", ".join(found)

    lines = ["| part | choice | `regions` | `weights` |", "|---|---|---|---|"]
    for part, kinds in CHOICES.items():
        for kind in kinds:
            found = RegionChoice(part, kind).tables(by_batch=part == "tokens")
            lines.append(f"| {part} | {kind} | {text(found.regions)} | {text(found.weights)} |")
    return "\n".join(lines) + "\n"


def strategy_case() -> str:
    """The traffic of one layer under tensor parallelism, gathered feed-forward weights, and FSDP."""
    lines = ["| hidden | sequence | tp 8 + sp | gathered feed-forward | FSDP 8 |", "|---:|---:|---:|---:|---:|"]
    for hidden in (4096, 8192, 16384):
        for sequence in (4096, 16384, 65536, 262144):
            plans: tuple[dict[str, object], ...] = (
                {"tp": 8, "sp": True},
                {"tp": 8, "sp": True, "strategy": GATHERED},
                {"dp": 8, "zero": 3},
            )
            sizes = (_layer_volume(hidden, {**plan, "seq_len": sequence}) for plan in plans)
            lines.append(f"| {hidden:,} | {sequence:,} | " + " | ".join(f"{size / 1e6:,.0f}" for size in sizes) + " |")
    return "\n".join(lines) + "\n"


def _layer_volume(hidden: int, words: dict[str, object]) -> int:
    """Bytes that a rank sends for one layer in a step: rings send (n - 1)/n of what is gathered or scattered."""
    from stagedb.graphs.model_graph import build_graph
    from stagedb.ir import Collective
    from stagedb.ir.expressions import evaluate
    from stagedb.models import load_card
    from stagedb.plans import Plan

    heads = hidden // 128
    widths: dict[str, Any] = {"hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": 128}
    card = dataclasses.replace(
        load_card("llama3-8b"), max_positions=1 << 20, parameters=0, ffn=hidden * 7 // 2, **widths
    )
    plan = Plan.from_mapping(words)
    graph = build_graph(card, plan.options)
    env = plan.env(graph.sizes)
    ops = {op.name: op for op in graph.ops}

    def sent(name: str, **weight: int) -> int:
        """Bytes that one collective sends, if this plan has it; 0 for a kernel."""
        op = ops[name]
        if not isinstance(op.work, Collective) or evaluate(op.present or "1", env) <= 0:
            return 0
        operand, result = (evaluate(each, {**env, **weight}) for each in (op.work.comm_bytes, op.work.comm_out_bytes))
        return _sent(op.kind, operand, result)

    total = sum(sent(op.name) for op in graph.ops if op.block == "layer")
    for tensor in graph.tensors:
        weight = tensor.parameter
        if weight is not None and tensor.block == "layer":
            sizes = {"elements": evaluate(weight.elements, env), "shard": evaluate(weight.shard or "0", env)}
            total += sum(sent(bucket, **sizes) for bucket in (*weight.gathers, *weight.buckets))
    return total


def _sent(kind: str, operand: int, result: int) -> int:
    return 2 * operand * 7 // 8 if kind == "all_reduce" else abs(result - operand)


@functools.cache
def _forty_store() -> dict[str, str]:
    """A store with the instances of the forty questions."""
    from docs import forty
    from stagedb.api.client import Stagedb
    from stagedb.store import connect

    environment = _store.__wrapped__()
    with connect(environment=environment) as store:
        forty.fill(Stagedb(store), forty.read())
    return environment


def forty_commands() -> str:
    """The commands that make the instances of the forty questions."""
    from docs import forty

    return forty.commands(forty.read())


def forty_contents() -> str:
    """The sections of the forty questions, as links."""
    from docs import forty

    return forty.contents(forty.read())


def forty_questions() -> str:
    """The forty questions with their Cypher and their answers."""
    from docs import forty
    from stagedb.api.client import Stagedb
    from stagedb.store import connect

    with connect(environment=_forty_store()) as store:
        return forty.page(Stagedb(store), forty.read())
