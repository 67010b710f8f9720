"""Records of models as their own code has them: `scripts/record_models configs.json -o models.json`.

The file has a Hugging Face config, a record with one (`config`, `name`, `batch`, `seq`), or a list of either. With `-`
each line of standard input is one, and each line of output its record, or `{"error": ...}`. `stagedb validate --models
FILE` compares records with graphs. The model's own code is that of the package `transformers`; nothing is fetched.
`--decode` records a step of decoding too, and the bytes of its cache.

`--step` records one training step at the sizes of a config instead, which must be tiny: the loss and gradients
(`scripts.recording.under_torch.model_step`). `tests/models/steps.json` has such records. With
`multi_token_prediction` a record asks for as many layers behind the model that predict further tokens.

`--draw` needs no configs: it writes those of every class that is read, as `save_pretrained` writes them, with one key
changed at a time, and their parameters. `--classes` writes the table of classes (`scripts._draw_models`).
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Record what the arguments ask for. Returns 1 if a config could not be recorded."""
    parser = argparse.ArgumentParser(prog="scripts/record_models", description="models as their own code has them")
    parser.add_argument(
        "configs", nargs="?", help="a JSON file with a config or a list of them; -: one a line of standard input"
    )
    parser.add_argument("--batch", type=int, default=2, help="sequences of the forward (2)")
    parser.add_argument("--seq", type=int, default=256, help="tokens of a sequence (256)")
    parser.add_argument("--decode", action="store_true", help="a step that adds a token, and the bytes of its cache")
    parser.add_argument("--step", action="store_true", help="a training step of a tiny model: loss and gradients")
    parser.add_argument("-o", "--output", type=Path, help="the file to write (standard output)")
    parser.add_argument("--draw", action="store_true", help="configs of every class that is read, one key changed")
    parser.add_argument("--only", default="", help="with --draw: architectures whose names begin so")
    parser.add_argument("--classes", action="store_true", help="the classes' spellings and defaults of keys")
    given = parser.parse_args(arguments)
    if given.draw or given.classes:
        if given.configs or given.step or (given.draw and given.classes):
            parser.error("--draw and --classes go without configs, without --step, and without each other")
        drawing = importlib.import_module("scripts._draw_models")
        drawing.write(drawing.draw(given.only) if given.draw else drawing.classes(), given.output)
        return 0
    if given.decode and (given.step or given.draw or given.classes):
        parser.error("--decode goes without --step, --draw and --classes")
    if given.only or not given.configs:
        parser.error("give a file of configs, or --draw (with --only) or --classes")
    module = "model_step" if given.step else "model_code"
    record = importlib.import_module(f"scripts.recording.under_torch.{module}").record
    decode = {"decode": True} if given.decode else {}
    if given.configs == "-":
        for line in sys.stdin:
            found = recorded(record, asked(json.loads(line), given.batch, given.seq) | decode)
            print(json.dumps({"error": str(found)} if isinstance(found, Exception) else found), flush=True)
        return 0
    records, failed = [], 0
    for each in read(Path(given.configs)):
        wanted = asked(each, given.batch, given.seq) | decode
        found = recorded(record, wanted)
        if isinstance(found, Exception):
            failed += 1
            print(f"{wanted['name']}: {type(found).__name__}: {str(found).strip()[:300]}", file=sys.stderr)
        else:
            records.append(found)
    text = "[\n" + ",\n".join(json.dumps(each) for each in records) + "\n]\n"
    if given.output is None:
        print(text, end="")
    else:
        given.output.write_text(text, encoding="utf-8")
    print(f"{len(records)} recorded, {failed} not", file=sys.stderr)
    return 1 if failed else 0


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """The configs or records of a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    yield from found if isinstance(found, list) else [found]


def asked(content: Mapping[str, Any], batch: int, seq: int) -> dict[str, Any]:
    """The arguments of a record."""
    if "config" not in content:
        return {"config": content, "name": str(content.get("model_type")), "batch": batch, "seq": seq}
    name = str(content.get("name", content["config"].get("model_type")))
    own = {"batch": content.get("batch", batch), "seq": content.get("seq", seq)}
    own |= {word: content[word] for word in ("multi_token_prediction",) if word in content}
    return {"config": content["config"], "name": name, **own}


def recorded(record: Any, wanted: Mapping[str, Any]) -> dict[str, Any] | Exception:
    """A record, or what the model's own code raised."""
    try:
        found: dict[str, Any] = record(**wanted)
    except Exception as error:  # noqa: BLE001
        return error
    return found


if __name__ == "__main__":
    sys.exit(main())
