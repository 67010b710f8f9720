"""Banned words of code and documentation: `scripts/style` finds them, and finished parts of the project have none."""

from pathlib import Path

import pytest

from scripts._style import PATTERNS, ROOT, Use, uses, uses_in

CLEAN = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "cypher/analyze",
    "cypher/build",
    "cypher/catalog",
    "cypher/instantiate/bucket_readers.cypher",
    "cypher/instantiate/carried.cypher",
    "cypher/instantiate/chains.cypher",
    "cypher/instantiate/classes.cypher",
    "cypher/instantiate/copied.cypher",
    "cypher/instantiate/copy_buckets.cypher",
    "cypher/instantiate/copy_ops.cypher",
    "cypher/instantiate/edge_conditions.cypher",
    "cypher/instantiate/graph.cypher",
    "cypher/instantiate/groups.cypher",
    "cypher/instantiate/links.cypher",
    "cypher/instantiate/ops.cypher",
    "cypher/instantiate/ranks.cypher",
    "cypher/instantiate/task_feeds.cypher",
    "cypher/instantiate/task_order.cypher",
    "cypher/instantiate/tasks.cypher",
    "cypher/instantiate/touch.cypher",
    "cypher/instantiate/weights.cypher",
    "cypher/lifecycle",
    "cypher/memory",
    "cypher/profile",
    "cypher/reference",
    "cypher/schema",
    "cypher/workload",
    "docs/api.md",
    "docs/api_reference.py",
    "docs/bench-profile.md",
    "docs/bench-scale.md",
    "docs/bench.md",
    "docs/cli.md",
    "docs/compatibility.md",
    "docs/data-model.md",
    "docs/formats.md",
    "docs/forty.py",
    "docs/generate.py",
    "docs/graphs.md",
    "docs/how-to.md",
    "docs/index.md",
    "docs/instantiation.md",
    "docs/memory.md",
    "docs/packed.md",
    "docs/pictures.py",
    "docs/profile.md",
    "docs/queries.md",
    "docs/questions.md",
    "docs/report.md",
    "docs/schedules.md",
    "docs/step-times.md",
    "docs/strategies.md",
    "docs/systems.md",
    "docs/tutorial.md",
    "scripts",
    "stagedb",
    "tests/api",
    "tests/build",
    "tests/cli",
    "tests/conftest.py",
    "tests/expressions",
    "tests/faults",
    "tests/frameworks",
    "tests/instances/small_graph.py",
    "tests/instances/test_buckets.py",
    "tests/instances/test_classes.py",
    "tests/instances/test_context.py",
    "tests/instances/test_engines.py",
    "tests/instances/test_experts.py",
    "tests/instances/test_pattern.py",
    "tests/instances/test_recompute.py",
    "tests/ir",
    "tests/memory",
    "tests/models",
    "tests/plans",
    "tests/reports",
    "tests/sampling.py",
    "tests/schedules",
    "tests/semantics",
    "tests/store",
    "tests/systems",
    "tests/test_docs.py",
    "tests/test_layers.py",
    "tests/test_scripts.py",
    "tests/timing",
    "tests/traces/astra_sim_runs.py",
    "tests/traces/crafted.py",
    "tests/traces/exporter.py",
    "tests/traces/plain.py",
    "tests/traces/synthetic.py",
    "tests/traces/test_congestion_aware.py",
    "tests/traces/test_encode.py",
    "tests/traces/test_export.py",
    "tests/traces/test_failures.py",
    "tests/traces/test_granularity.py",
    "tests/traces/test_measured.py",
    "tests/traces/test_parquet.py",
    "tests/traces/test_places.py",
    "tests/traces/test_ranks.py",
    "tests/traces/test_registries.py",
    "tests/traces/test_scale.py",
    "tests/traces/test_schema.py",
    "tests/traces/test_simulator.py",
    "tests/traces/test_source.py",
    "tests/traces/test_tools.py",
    "tests/traces/test_validation.py",
    "tests/traces/written.py",
    "tests/validation",
    "tests/workflows",
)
"""Parts that are finished. Add a path when it has no banned word left."""


def words(path: str, text: str) -> list[tuple[int, str]]:
    return [(use.line, use.word) for use in uses_in(path, text)]


def test_finished_parts_have_no_banned_words() -> None:
    found = list(uses(CLEAN))
    assert not found, "\n".join(map(str, found))


def test_a_use_has_its_place_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one.py").write_text('"""Fine."""\n\nx = 1  # it tells what x is\n', encoding="utf-8")
    (tmp_path / "folder" / "data.json").write_text('"say"', encoding="utf-8")
    assert uses(["folder"], tmp_path) == [Use("folder/one.py", 3, "tell", "x = 1  # it tells what x is")]
    assert str(uses(["folder"], tmp_path)[0]) == "folder/one.py:3: tell: x = 1  # it tells what x is"


def test_a_path_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_folder"):
        uses(["no_such_folder"])


def test_identifiers_count_and_parts_of_other_words_do_not() -> None:
    assert words("a.py", "said = was_told(standing)\n") == [(1, "say"), (1, "tell"), (1, "stand")]
    assert words("a.py", "stand_alone = 1  # outstanding, understand, a stand-in, stand-alone, besides, believe\n") == [
        (1, "stand")
    ]


def test_a_phrase_may_go_on_in_the_next_line() -> None:
    assert words("a.py", "# This is done in\n# vain.\n") == [(1, "in vain")]
    assert words("a.py", 'error("what it is "\n      "of")\n') == [(1, "what it is of")]


def test_inversions_count_in_any_language() -> None:
    assert words("a.cypher", "// Of each rank its operators.\n") == [(1, "of X, Y")]
    assert words("a.md", "Each has a row: of all ranks the sum.\nOf course.\n") == [(1, "of X, Y")]
    assert words("a.md", "The sum of all ranks.\n") == []


def test_code_in_markdown_does_not_count() -> None:
    text = "It `said`.\n\n    $ say\n    told\n\n```\nsay\n```\n- an item\n\n  that stands\n\nIt lies.\n"
    assert words("page.md", text) == [(11, "stand"), (13, "lie")]


def test_the_style_page_lists_every_banned_word() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    style = page.partition("## How we write")[2]
    assert all(f"`{word}`" in style for word in PATTERNS if word not in ("archaic", "what it is of")), style
