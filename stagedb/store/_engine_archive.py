"""An archive of the classes that the embedded engine loads, with which it starts in two thirds of the time.

The first engine of a machine lists the classes that it loads (Java's class-data sharing). When nobody is connected any
more, a process of low priority makes the archive. Engines of all stores share it. The virtual machine checks that an
archive fits, and starts without one that does not.

Like the engine's process, this imports nothing of stagedb.
"""

import hashlib
import os
import shutil
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import psutil

KEPT = 3
"""Archives of other environments, and this one, that are kept."""

ROOM = 200 << 20
"""Free bytes that a disk needs for an archive."""


@dataclass
class ClassArchive:
    """An archive in a directory of the user's own. name: a digest of all that it depends on."""

    directory: Path
    name: str
    _begun: bool = field(default=False, init=False)

    @classmethod
    def of(cls, directory: str, arguments: str) -> "ClassArchive | None":
        """The archive for an engine with these arguments of its virtual machine; None without a directory for it."""
        # The arguments are split at spaces.
        if not directory or any(letter.isspace() for letter in directory):
            return None
        import arcadedb_embedded

        package = Path(arcadedb_embedded.__file__).parent
        parts = [arguments, str(package), str((package / "jars").stat().st_mtime_ns)]
        return cls(Path(directory), hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16])

    @property
    def path(self) -> Path:
        """The file of the archive."""
        return self.directory / f"classes-{self.name}.jsa"

    @property
    def _listed(self) -> Path:
        return self.directory / f"classes-{self.name}.{os.getpid()}.list"

    def arguments(self) -> str:
        """Arguments with which the virtual machine uses the archive, or lists its classes if there is none yet."""
        if self.path.exists():
            return f"-XX:SharedArchiveFile={self.path} -Xlog:disable"
        for left in self.directory.glob("classes-*.*.*"):
            # A killed engine leaves its list.
            if not psutil.pid_exists(int(left.name.split(".")[1])):
                left.unlink(missing_ok=True)
        return f"-XX:DumpLoadedClassList={self._listed}"

    def make(self) -> None:
        """Make the archive in the background, once, if there is none."""
        if self._begun or self.path.exists() or not self._listed.exists():
            return
        self._begun = True
        threading.Thread(target=self._make, name="archive of classes", daemon=True).start()

    def _make(self) -> None:
        new = self._listed.with_suffix(".new")
        # Engines do without an archive that cannot be made.
        with (
            suppress(OSError, filelock.Timeout, subprocess.SubprocessError),
            filelock.FileLock(self.directory / "archive.lock", timeout=0),
        ):
            self._dump(new)
        for left in (new, self._listed):
            left.unlink(missing_ok=True)

    def _dump(self, new: Path) -> None:
        if shutil.disk_usage(self.directory).free < ROOM or self.path.exists():
            return
        # The last line may be incomplete: the engine may be writing it.
        lines = self._listed.read_text(encoding="utf-8").splitlines(keepends=True)
        self._listed.write_text("".join(line for line in lines if line.endswith("\n")), encoding="utf-8")
        dump = ["-Xshare:dump", f"-XX:SharedClassListFile={self._listed}", f"-XX:SharedArchiveFile={new}"]
        quiet = subprocess.DEVNULL
        done = subprocess.run([*_java(), *dump], stdin=quiet, stdout=quiet, stderr=quiet, check=False)
        if done.returncode == 0 and new.exists():
            new.replace(self.path)
            # Several environments of one user each have one.
            made = sorted(self.directory.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime)
            for old in made[:-KEPT]:
                old.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the list of an engine that ends before the archive is made."""
        if not self._begun:
            self._listed.unlink(missing_ok=True)


def _java() -> list[str]:
    """The command of a virtual machine like this process's, with low priority."""
    import jpype

    system: Any = jpype.JClass("java.lang.System")
    bean = jpype.JClass("java.lang.management.ManagementFactory").getRuntimeMXBean()
    given = [str(each) for each in bean.getInputArguments()]
    kept = [
        each for each in given if not each.startswith(("-XX:DumpLoadedClassList", "-Djava.class.path", "exit", "abort"))
    ]
    java = Path(str(system.getProperty("java.home"))) / "bin" / "java"
    slowly = ["nice", "-n", "10"] if shutil.which("nice") else []
    return [*slowly, str(java), *kept, "-cp", str(system.getProperty("java.class.path"))]
