"""Writes plain buffers to files, from several processes at once: the floor that exports are compared with.

python scripts/_floor.py DIRECTORY PROCESSES COUNT:SIZE [COUNT:SIZE …]
"""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path


def write(directory: Path, first: int, end: int, sizes: list[tuple[int, int]]) -> None:
    """Write the files with the numbers `first` to `end - 1`."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    number = 0
    for count, size in sizes:
        data = memoryview(os.urandom(size))
        for _ in range(count):
            if first <= number < end:
                file = os.open(f"plain.{number}.et", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
                done = 0
                while done < size:
                    done += os.write(file, data[done:])
                os.close(file)
            number += 1


def main() -> None:
    directory, processes, *words = sys.argv[1:]
    path = Path(directory)
    if processes.isdigit():
        path.mkdir()
        total = sum(int(word.split(":")[0]) for word in words)
        bounds = [index * total // int(processes) for index in range(int(processes) + 1)]
        children = [
            subprocess.Popen([sys.executable, __file__, directory, f"{first}-{end}", *words])
            for first, end in pairwise(bounds)
        ]
        sys.exit(max(child.wait() for child in children))
    first, end = map(int, processes.split("-"))
    pairs = [word.split(":") for word in words]
    write(path, first, end, [(int(count), int(size)) for count, size in pairs])


if __name__ == "__main__":
    main()
