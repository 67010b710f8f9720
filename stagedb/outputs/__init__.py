"""The one door for what goes out: files that are written whole, names of files, and text for a terminal."""

from stagedb.outputs.file_names import file_name
from stagedb.outputs.path_texts import check_path, not_a_path, path_text
from stagedb.outputs.printable_text import printable
from stagedb.outputs.units import GB
from stagedb.outputs.whole_files import write_whole

__all__ = ["GB", "check_path", "file_name", "not_a_path", "path_text", "printable", "write_whole"]
