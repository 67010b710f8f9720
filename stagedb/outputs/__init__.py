"""The one door for what goes out: files that are written whole, names of files, and text for a terminal."""

from stagedb.outputs.file_names import file_name
from stagedb.outputs.printable_text import printable
from stagedb.outputs.whole_files import write_whole

__all__ = ["file_name", "printable", "write_whole"]
