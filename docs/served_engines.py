"""Measured times a token of engines next to those of a search, for docs/serving.md."""

from stagedb.validation import kinds_served, known_served, served_errors


def table() -> str:
    """The errors by accelerator, engine and model, as Markdown."""
    lines = ["| accelerator | engine | model | rows | mean error | bias | worst |", "|---|---|---|---|---|---|---|"]
    for (system, engine, model), found in kinds_served(known_served()):
        errors = [each.error or 0.0 for each in found]
        mean, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
        name, worst = model.rpartition("/")[2], max(errors, key=abs)
        lines.append(f"| {system} | {engine} | {name} | {len(errors)} | {mean:.1%} | {bias:+.1%} | {worst:+.1%} |")
    if (figures := served_errors(known_served())) is not None:
        lines += [
            "",
            f"All {figures.rows} rows are off by {figures}.",
        ]
    return "\n".join(lines) + "\n"
