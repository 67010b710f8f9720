"""The verbs of stagedb as typed Python: models, build, instantiate, export, profile, query, and the store's content.

The command line is a thin layer over this package, and the only package above it.

    import stagedb

    with stagedb.connect() as db:
        db.export(model="llama3-8b", tp=2, pp=2, ranks=8, out="traces")
        print(db.query("bytes_by_axis").to_pandas())
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.api.checking import StoreProblem
    from stagedb.api.client import Stagedb, connect
    from stagedb.api.matching import CalibratedSystem, MatchedRun
    from stagedb.api.memory_rows import RequestRoom, RequestWords
    from stagedb.api.model_library import model, model_blocks, model_flops, model_layers, models
    from stagedb.api.plan_comparison import PlanComparison
    from stagedb.api.plan_keywords import GraphWords, PlanWords
    from stagedb.api.plan_texts import describe
    from stagedb.api.provenance import Provenance
    from stagedb.api.querying import queries
    from stagedb.api.removing import Unused
    from stagedb.api.result_parts import RunTimes
    from stagedb.api.results import (
        Advised,
        Chart,
        ComparedPlan,
        Difference,
        Exported,
        Gains,
        GraphInfo,
        InstanceInfo,
        Memory,
        PeakMemory,
        Profile,
        ProfileInfo,
        QueryInfo,
        Rows,
        RunInfo,
        Searched,
        SearchInfo,
        Swept,
        Unpacked,
        Viewed,
        ViewedSearch,
        kind_of,
        properties,
    )
    from stagedb.api.run_views import ExportedRun, ViewedRun
    from stagedb.api.searching import search
    from stagedb.api.serving_search import SearchedServing, search_serving
    from stagedb.api.simulating import Simulated
    from stagedb.api.system_choice import durations, import_systems, system, system_curves, systems
    from stagedb.api.trace_sets import unpack, validate

__all__ = [
    "Advised",
    "CalibratedSystem",
    "Chart",
    "ComparedPlan",
    "Difference",
    "Exported",
    "ExportedRun",
    "Gains",
    "GraphInfo",
    "GraphWords",
    "InstanceInfo",
    "JobInfo",
    "MatchedRun",
    "Memory",
    "PeakMemory",
    "PlanComparison",
    "PlanSummary",
    "PlanWords",
    "Profile",
    "ProfileInfo",
    "Provenance",
    "QueryInfo",
    "RequestRoom",
    "RequestWords",
    "Rows",
    "RunInfo",
    "RunTimes",
    "SavedSummary",
    "SearchInfo",
    "Searched",
    "SearchedServing",
    "Simulated",
    "Stagedb",
    "StoreProblem",
    "Swept",
    "Unpacked",
    "Unused",
    "Viewed",
    "ViewedRun",
    "ViewedSearch",
    "connect",
    "describe",
    "durations",
    "import_systems",
    "kind_of",
    "model",
    "model_blocks",
    "model_flops",
    "model_layers",
    "models",
    "properties",
    "queries",
    "search",
    "search_serving",
    "system",
    "system_curves",
    "systems",
    "unpack",
    "validate",
]

_MODULES = {
    "checking": ("StoreProblem",),
    "client": (
        "Stagedb",
        "connect",
    ),
    "matching": (
        "CalibratedSystem",
        "MatchedRun",
    ),
    "jobs": ("JobInfo",),
    "model_library": (
        "model",
        "model_blocks",
        "model_flops",
        "model_layers",
        "models",
    ),
    "plan_comparison": ("PlanComparison",),
    "plan_summaries": (
        "PlanSummary",
        "SavedSummary",
    ),
    "plan_texts": ("describe",),
    "provenance": ("Provenance",),
    "querying": ("queries",),
    "removing": ("Unused",),
    "memory_rows": (
        "RequestRoom",
        "RequestWords",
    ),
    "results": (
        "Advised",
        "Chart",
        "ComparedPlan",
        "Difference",
        "Exported",
        "Gains",
        "GraphInfo",
        "InstanceInfo",
        "Memory",
        "PeakMemory",
        "Profile",
        "ProfileInfo",
        "QueryInfo",
        "Rows",
        "RunInfo",
        "SearchInfo",
        "Searched",
        "Swept",
        "Unpacked",
        "Viewed",
        "ViewedSearch",
        "kind_of",
        "properties",
    ),
    "result_parts": ("RunTimes",),
    "run_views": (
        "ExportedRun",
        "ViewedRun",
    ),
    "searching": ("search",),
    "serving_search": (
        "SearchedServing",
        "search_serving",
    ),
    "simulating": ("Simulated",),
    "system_choice": (
        "durations",
        "import_systems",
        "system",
        "system_curves",
        "systems",
    ),
    "trace_sets": (
        "unpack",
        "validate",
    ),
    "plan_keywords": (
        "GraphWords",
        "PlanWords",
    ),
}

# Names are imported on first use: verbs on files need neither models nor the database's driver, which load slowly.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
