"""Records of real training steps under PyTorch: `scripts/record --seed N --count M`, `--config FILE` or `--blocks`.

A record has what one rank computes, sends and holds in a step, in the format of `tests/validation/records.json`.
`stagedb validate --records FILE` compares it with the same plan here. `scripts/recording` draws configurations and
runs them with torch, which only this script needs. docs/recording.md describes it.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.recording.block_configurations import configurations
from scripts.recording.configurations import DEFAULTS, Config, completed, drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Record what the arguments ask for. Returns 1 if a configuration could not be recorded."""
    parser = argparse.ArgumentParser(prog="scripts/record", description="records of training steps under PyTorch")
    parser.add_argument("--seed", type=int, help="the seed of random configurations")
    parser.add_argument("--count", type=int, default=100, help="how many of them (100)")
    parser.add_argument("--skip", type=int, default=0, help="how many of them are left out at the beginning")
    parser.add_argument("--config", type=Path, help="a JSON file with a configuration, or a list of them")
    parser.add_argument("--blocks", action="store_true", help="the kinds of blocks, each under its plans")
    parser.add_argument("-o", "--output", type=Path, help="the file to write (standard output)")
    given = parser.parse_args(arguments)
    if (given.seed is not None) + (given.config is not None) + given.blocks != 1:
        parser.error("exactly one of --seed and --config, or --blocks")
    configs = chosen(given)
    try:
        record = importlib.import_module("scripts.recording.under_torch.recorder").record
    except ModuleNotFoundError as missing:
        print(f"scripts/record: {missing.name} is not installed: pip install 'torch==2.13.*'", file=sys.stderr)
        return 1
    records: list[dict[str, Any]] = []
    failed = 0
    for config, found in recorded(record, configs):
        if isinstance(found, Exception):
            failed += 1
            print(f"{config['label']}: {type(found).__name__}: {str(found).strip()[:300]}", file=sys.stderr)
        else:
            records.append(without_operators(found) if given.blocks else found)
            if given.output is not None:
                # After each, so that an interrupted run leaves what it has.
                given.output.write_text(lines(records), encoding="utf-8")
    if given.output is None:
        print(lines(records), end="")
    print(f"{len(records)} recorded, {failed} not", file=sys.stderr)
    return 1 if failed else 0


def chosen(given: argparse.Namespace) -> list[Config]:
    """The configurations that the arguments choose."""
    if given.blocks:
        return list(configurations())
    return list(drawn(given.seed, given.count))[given.skip :] if given.config is None else read(given.config)


def without_operators(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what no comparison reads: its operators, and how long it took to make."""
    return {word: value for word, value in record.items() if word not in ("ops", "ops_columns", "seconds")}


def lines(records: Sequence[dict[str, Any]]) -> str:
    """Records as JSON, one a line."""
    return "[\n" + ",\n".join(json.dumps(each) for each in records) + "\n]\n"


def read(path: Path) -> list[Config]:
    """The configurations of a file. Fields that it leaves out have their defaults."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return [completed(DEFAULTS | each) | given(each) for each in (found if isinstance(found, list) else [found])]


def given(config: Config) -> Config:
    """The words of a configuration that only its writer knows: a label, and stagedb's words for it."""
    return {word: config[word] for word in ("label", "extension", "block") if word in config}


def recorded(record: Any, configs: Sequence[Config]) -> Iterator[tuple[Config, dict[str, Any] | Exception]]:
    """Each configuration with its record, or with what PyTorch raised."""
    for config in configs:
        begin = time.monotonic()
        try:
            found = record(config)
        except Exception as error:  # noqa: BLE001
            yield config, error
        else:
            yield config, found | {"seconds": round(time.monotonic() - begin, 1)}


if __name__ == "__main__":
    sys.exit(main())
