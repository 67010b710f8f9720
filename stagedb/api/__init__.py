"""The verbs of stagedb as typed Python: models, build, instantiate, export, query, and what the store holds.

The command line is a thin skin over this package; it stands above all others but that one.

    import stagedb

    with stagedb.connect() as db:
        db.export(model="llama3-8b", tp=2, pp=2, ranks=8, out="traces")
        print(db.query("bytes_by_axis").to_pandas())
"""

from stagedb.api.client import Stagedb, connect, model, models, validate
from stagedb.api.library import describe
from stagedb.api.queries import named as queries
from stagedb.api.results import Exported, GraphInfo, InstanceInfo, QueryInfo, Rows, properties
from stagedb.api.words import GraphWords, PlanWords

__all__ = [
    "Exported",
    "GraphInfo",
    "GraphWords",
    "InstanceInfo",
    "PlanWords",
    "QueryInfo",
    "Rows",
    "Stagedb",
    "connect",
    "describe",
    "model",
    "models",
    "properties",
    "queries",
    "validate",
]
