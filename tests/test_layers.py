"""What the code may import and call: read from its syntax trees, so that a breach is found without running it."""

import ast
import functools
import graphlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "stagedb"

CORE = (
    *("files", "systems", "workflows", "ir", "models", "frameworks"),
    *(
        "schedules",
        "plans",
        "graphs",
        "lowering",
        "memory",
        "timing",
        "search",
        "traces",
        "runs",
        "reports",
    ),
)
"""Packages that compute: plain functions over plain data, without a store, a driver or a command line."""

LAYERS = (*CORE, "store", "api", "validation", "serve", "agents", "cli")
"""Each package may import those before it."""

FREE = {"collectives", "copied_processes", "cores", "errors", "lazy_names", "mentions", "places", "shared_work"}
"""Modules that every package may import."""

FILES = sorted(path for path in ROOT.rglob("*.py") if not path.stem.endswith("_pb2"))


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a file: most tests ask for that of each file."""
    return ast.parse(source)


@pytest.fixture(scope="module", autouse=True)
def _no_trees_left() -> Iterator[None]:
    yield
    parsed.cache_clear()


@functools.cache
def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


PACKAGES = sorted({layer_of(path) for path in FILES})


def faults(package: str, check: Callable[[str], list[str]]) -> list[str]:
    """What a check of the source of a file finds in a package, each with its file."""
    files = (path for path in FILES if layer_of(path) == package)
    return [f"{path.relative_to(ROOT)}: {each}" for path in files for each in check(path.read_text(encoding="utf-8"))]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def breaches(layer: str, source: str) -> list[str]:
    """Imports that a file of this layer may not have."""
    found = []
    for line, name in imports(parsed(source)):
        parts = name.split(".")
        if parts[0] == "neo4j" and layer != "store":
            found.append(f"{line}: only stagedb.store imports neo4j")
        if parts[0] in ("mcp", "mcp_types") and layer != "agents":
            found.append(f"{line}: only stagedb.agents imports {parts[0]}")
        if parts[0] != "stagedb" or len(parts) < 2 or parts[1] in FREE or parts[1] == layer:
            continue
        if parts[1] in LAYERS and layer in LAYERS and LAYERS.index(parts[1]) > LAYERS.index(layer):
            found.append(f"{line}: {layer} imports {parts[1]}, which is above it")
    return found


def dangers(source: str) -> list[str]:
    """Calls that could run what a file or a database holds."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [
                f"{node.lineno}: {name}" for name in names if name.split(".")[0] in ("pickle", "marshal", "shelve")
            ]
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "sympify", "parse_expr"):
            found.append(f"{node.lineno}: {node.func.id}")
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if any(key.arg == "allow_pickle" and ast.unparse(key.value) == "False" for key in node.keywords):
                continue
            if (owner, node.func.attr) in {
                ("yaml", "load"),
                ("yaml", "unsafe_load"),
                ("yaml", "full_load"),
                ("sympy", "sympify"),
                ("sympy", "S"),
                ("np", "load"),
            } or node.func.attr == "parse_expr":
                found.append(f"{node.lineno}: {owner}.{node.func.attr}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_imports_only_what_is_below_it(package: str) -> None:
    assert faults(package, partial(breaches, package)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_data_is_run_as_code(package: str) -> None:
    assert faults(package, dangers) == []


def test_every_package_has_a_layer_and_a_purpose() -> None:
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert packages == sorted(LAYERS)
    for package in packages:
        text = ast.get_docstring(parsed((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
        assert text, f"stagedb.{package} has no docstring"


@pytest.mark.parametrize("package", CORE)
def test_the_core_imports_no_store(package: str) -> None:
    """Neither the store, nor its driver, nor what people see; also inside functions, and by name."""
    above = {*LAYERS[len(CORE) :], "neo4j", "typer", "rich", "starlette", "mcp"}
    for path in sorted((ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.stem.endswith("_pb2"):
            continue
        for line, name in imports(parsed(source)):
            parts = name.removeprefix("stagedb.").split(".")
            assert parts[0] not in above, f"{path}:{line} imports {name}"
        for name in re.findall(r"\"stagedb\.([a-z_]+)[\w.]*\"", source):
            assert name not in above, f"{path} names stagedb.{name}"


def test_a_breach_is_found() -> None:
    assert breaches("reports", "from stagedb.store import connect\n")
    assert breaches("ir", "from stagedb.store import connect\n")
    assert breaches("ir", "def f():\n    import stagedb.cli.application\n")
    assert breaches("cli", "from neo4j import GraphDatabase\n")
    assert breaches("cli", "import mcp.server\n")
    assert not breaches("agents", "import mcp.server\n")
    assert not breaches("cli", "from stagedb.api import connect\nimport stagedb.errors\n")
    assert not breaches("store", "import neo4j.exceptions\n")


@pytest.mark.parametrize(
    "line",
    ["eval('1')", "exec('1')", "import pickle", "from marshal import loads", "yaml.load(text)", "sympy.sympify('x')"],
)
def test_a_danger_is_found(line: str) -> None:
    assert dangers(line)


LINES_OF_A_FILE = 800
LINES_OF_A_FUNCTION = 60


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def too_long(source: str) -> list[str]:
    """A file over 800 lines, and functions over 60 lines."""
    tree = parsed(source)
    found = []
    lines = len(source.splitlines())
    if lines > LINES_OF_A_FILE:
        found.append(f"{lines} lines")
    for each in functions(tree):
        length = (each.end_lineno or each.lineno) - each.lineno + 1
        if length > LINES_OF_A_FUNCTION:
            found.append(f"{each.lineno}: {each.name} has {length} lines")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_functions_are_short(package: str) -> None:
    assert faults(package, too_long) == []


def test_what_is_too_long_is_found() -> None:
    assert too_long("def f():\n" + "    pass\n" * 60)
    assert not too_long("def f():\n" + "    pass\n" * 59)
    assert too_long("x = 1\n" * 801)
    assert not too_long("x = 1\n" * 800)


def test_no_class_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def cycle(imported: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty where none do."""
    order = graphlib.TopologicalSorter(imported)
    try:
        order.prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports when a module is loaded; one inside a function or for type checkers alone may close a circle."""
    modules = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in FILES}
    imported: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = (
            name
            for node in parsed(path.read_text(encoding="utf-8")).body
            for _, full in imports(node if isinstance(node, ast.Import | ast.ImportFrom) else ast.Pass())
            for name in (full, full.rpartition(".")[0])
        )
        imported[module.removesuffix(".__init__")] = {name for name in names if name in modules}
    assert cycle(imported) == []
    assert cycle({"a": {"b"}, "b": {"a"}})


EDGE = {"cli", "serve", "agents", "api", "store", "__init__", "mentions"}
"""What is not the core: doors, the verbs, what opens a store, and the form of the command line itself."""

OPTION = re.compile(r"(?<![\w-])--[a-z]|`stagedb ")

OTHERS_OPTIONS = {
    "search/ray_workers.py": ("ray start --head",),
    "frameworks/bucket_policies.py": ("--overlap-grad-reduce", "--use-distributed-optimizer"),
    "frameworks/profiles.py": (
        *("--pp-partition-method", "--sequence-parallel", "--use-flash-attn", "--overlap-grad-reduce"),
        *("--overlap-param-gather", "--moe-token-dispatcher-type", "--expert-tensor-parallel-size"),
    ),
    "models/readers/classes.py": ("--classes",),
    "runs/nsight.py": ("--trace=cuda,nvtx", "--type sqlite"),
    "plans/written_words.py": ("--pipeline-model-parallel-layout",),
    "systems/tables/aiconfigurator.py": ("--no-deps",),
    "systems/tables/operator_times.py": ("--moe-grouped-gemm",),
    "traces/generate_chakra.py": ("--proto_path", "--python_out", "--pyi_out"),
    "traces/packed_file.py": ("`stagedb unpack`",),
    "traces/simulation.py": ("--recurse-submodules", "--workload-configuration"),
    "traces/simulators/astra_files.py": (
        *("--recurse-submodules", "--workload-configuration", "--comm-group-configuration"),
        *("--system-configuration", "--remote-memory-configuration", "--network-configuration"),
    ),
    "validation/step_times.py": (
        *("--account-for-", "--pipeline-model-parallel-layout", "--expert-tensor-parallel-size"),
    ),
}
"""Files with options of other programs and of scripts, variables of style sheets, and the text of a file's head."""


def options_in(source: str) -> list[str]:
    """The strings of a file, docstrings too, that have an option or a command of the command line."""
    strings = (node.value for node in ast.walk(parsed(source)) if isinstance(node, ast.Constant))
    return [each for each in strings if isinstance(each, str) and OPTION.search(each)]


def test_options_in_strings_are_found() -> None:
    assert options_in('"""Needs `--zero`."""\nx = f"take --tp {n}"') == ["Needs `--zero`.", "take --tp "]
    assert options_in('"run `stagedb ls`"') == ["run `stagedb ls`"]
    assert options_in('"a -- b"; "a--b"; "--"') == []


@pytest.mark.parametrize("package", [package for package in PACKAGES if package not in EDGE])
def test_the_core_has_no_options_of_the_command_line(package: str) -> None:
    """Its messages name words and verbs as data (`stagedb.mentions`), and doors show them."""
    for path in (path for path in FILES if layer_of(path) == package):
        source = path.read_text(encoding="utf-8")
        for each in OTHERS_OPTIONS.get(path.relative_to(ROOT).as_posix(), ()):
            assert each in source, path
            source = source.replace(each, "")
        assert options_in(source) == [], path
