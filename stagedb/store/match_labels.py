"""Labels and relationships of matches: a run that was recorded against an instance, and what differs."""

from stagedb.store.schema_forms import Label, Property, Relationship, id_of

_RUN = Property("run", "string", "id of the run that it belongs to")

MATCH_LABELS = (
    Label(
        "Match",
        "A run matched with an instance, op by op. It is there once everything of it is.",
        (
            id_of("run id, `/m/`, instance id"),
            _RUN,
            Property("instance", "string", "id of the instance"),
            Property("planned", "integer", "ops that the plan has on the recorded ranks, in all recorded steps"),
            Property("matched", "integer", "those that are in the run, as planned"),
            Property("changed", "integer", "those that are in the run with another size, format, group or kind"),
            Property("missing", "integer", "those that are not in the run"),
            Property("extra", "integer", "ops of the run that the plan does not have"),
            Property("findings", "integer", "what differs, that of several ranks counted once"),
            Property("created", "integer", "when it was made", "ms since 1970"),
        ),
        style=("#a5abb6", "findings"),
    ),
    Label(
        "Finding",
        "A difference between a run and its plan.",
        (
            id_of("match id, `/`, number"),
            _RUN,
            Property(
                "number",
                "integer",
                "its place among those of the match, from 0: what costs most on the critical path is first",
            ),
            Property("kind", "string", "missing, extra, size, format, group, kind, shape, moved, order, late or slow"),
            Property("ranks", "integer[]", "ranks that have it"),
            Property("module", "string", "where, such as `layer.1.attn.wq`"),
            Property("phase", "string", "forward, backward, recompute, optimizer or step"),
            Property("planned", "string", "what the plan has, in words; empty: nothing"),
            Property("seen", "string", "what the run has; empty: nothing"),
            Property("reason", "string", "why the plan has it"),
            Property("count", "integer", "ops of each rank"),
            Property("ns", "integer?", "time of each rank, of a finding about time", "ns"),
            Property(
                "critical",
                "integer?",
                "of its ops, or its gap, on the critical path; absent: none ran, or it has no times",
                "ns",
            ),
        ),
        style=("#f16667", "kind"),
    ),
)

MATCH_RELATIONSHIPS = (
    Relationship("HAS_MATCH", "Run", "Match", "The instances that it was matched with.", owns=True),
    Relationship("HAS_FINDING", "Match", "Finding", "What differs.", owns=True),
    Relationship("AGAINST", "Match", "Instance", "The instance, if the store still has it."),
    Relationship(
        "MATCHES",
        "RunOp",
        "Op",
        "The planned op that a recorded one is. A dump does not have it: match a run that was loaded again.",
        (
            Property("match", "string", "id of the match"),
            Property("changed", "boolean", "it has another size, format, group or kind than planned"),
        ),
    ),
)
