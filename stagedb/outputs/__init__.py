"""The one door for what goes out: whole files, names of files, text for a terminal, rows as CSV and JSON."""

from stagedb.outputs.file_names import file_name
from stagedb.outputs.path_texts import check_path, make_directory, not_a_path, path_text
from stagedb.outputs.printable_text import printable
from stagedb.outputs.row_texts import csv_text, json_lines, json_text, plain_cell, readable_cell
from stagedb.outputs.units import GB, reserve_text
from stagedb.outputs.whole_files import whole_file, write_whole

__all__ = [
    "GB",
    "check_path",
    "csv_text",
    "file_name",
    "json_lines",
    "json_text",
    "make_directory",
    "not_a_path",
    "path_text",
    "plain_cell",
    "printable",
    "readable_cell",
    "reserve_text",
    "whole_file",
    "write_whole",
]
