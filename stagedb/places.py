"""Directories that stagedb reads, found without the imports of a store: completion needs them at once."""

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def statements_directory() -> Path:
    """The directory of the Cypher statements: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parent
    return next((path for path in (package / "cypher", package.parent / "cypher") if path.is_dir()), package / "cypher")


def embedded_home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory of the embedded store: STAGEDB_HOME, or the user's data directory.

    environment: variables by name; None: those of this process.
    """
    directory = (os.environ if environment is None else environment).get("STAGEDB_HOME")
    return Path(directory).absolute() if directory else platformdirs.user_data_path("stagedb")
