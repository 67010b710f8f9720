"""Generate `chakra_pb2` from `chakra.proto`: `python -m stagedb.traces.generate_chakra`.

The Python code of protoc begins with a check that refuses every protobuf that is older than protoc's own. The rest is a
serialised descriptor and calls that all versions from the project's minimum on have. So the check is left out, and with
it the version in the comment: every protoc gives the same text.
"""

import importlib.resources
import re
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NAME = "chakra"

_VERSION_LINE = re.compile(r"^# Protobuf Python Version: .*\n", re.MULTILINE)
_IMPORT = re.compile(r"^from google\.protobuf import runtime_version as _runtime_version\n", re.MULTILINE)
_CHECK = re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n.*?^\)\n", re.MULTILINE | re.DOTALL)


def generate() -> dict[str, str]:
    """Text of the generated files by their names. Needs grpcio-tools."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as directory:
        # The path below the include directory is the descriptor's name, and must be unique in a process.
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={HERE.parents[1]}",
                f"--proto_path={importlib.resources.files('grpc_tools') / '_proto'}",
                f"--python_out={directory}",
                f"--pyi_out={directory}",
                str(HERE / f"{NAME}.proto"),
            ]
        )
        if status:
            raise SystemExit(f"protoc ended with status {status}")
        made = Path(directory) / "stagedb" / "traces"
        texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(made.iterdir())}
    return {name: _CHECK.sub("", _IMPORT.sub("", _VERSION_LINE.sub("", text))) for name, text in texts.items()}


def main() -> None:
    """Write the generated files next to the schema."""
    for name, text in generate().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
