"""What short commands import: `ls`, `show` and `query` are little more than their imports."""

import subprocess
import sys

import pytest

HEAVY = (
    *("numpy", "pandas", "pyarrow", "sympy", "yaml", "rich", "pydantic", "filelock", "importlib.metadata"),
    *("stagedb.models.card", "stagedb.models.kinds", "stagedb.ir.symbolic_graph", "stagedb.systems", "stagedb.runs"),
    *(
        "stagedb.plans.plan",
        "stagedb.plans.aspects",
        "stagedb.frameworks.profiles",
        "stagedb.frameworks.engines.flags",
    ),
    *(
        "stagedb.store.schema",
        "stagedb.api.answer_hints",
        "stagedb.api.result_parts",
        "stagedb.traces",
        "stagedb.graphs",
    ),
)
"""What none of these modules needs before there is a row to show."""


@pytest.mark.parametrize(
    "module", ["stagedb.api.client", "stagedb.api.listing", "stagedb.cli.ls_show_rm", "stagedb.cli.query"]
)
def test_a_short_command_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_questions_import_the_schema_and_no_systems() -> None:
    """The schema names what a free query may have; hints about systems and runs are of few queries."""
    code = (
        "import sys, stagedb.api.querying\n"
        "print([name for name in ('numpy', 'stagedb.systems', 'stagedb.runs', 'stagedb.plans.plan') "
        "if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
