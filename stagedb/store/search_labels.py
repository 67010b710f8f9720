"""Labels and relationships of searches: what was asked, and every plan that was tried or ruled out."""

from stagedb.store.instance_labels import PLAN_WORDS, RANK_GROUPS
from stagedb.store.schema_forms import OWNED, Label, Property, Relationship, id_of

TERMS: dict[str, str] = {
    "compute": "term_compute",
    "bubble": "term_bubble",
    "idle": "term_idle",
    **{f"exposed {axis}": f"exposed_{axis}" for axis in RANK_GROUPS},
}
"""The terms of a step, each with its property of `Candidate`."""

_MEANINGS = {
    "compute": "computing",
    "bubble": "waiting for other stages",
    "idle": "waiting for ranks of the same stage, and all remaining time",
}

_EXPOSED = "communication that nothing hides"

CHOSEN_WORDS = tuple(Property(row.name, f"{row.type.rstrip('?')}?", row.description, row.unit) for row in PLAN_WORDS)
"""The words that a search may choose. A candidate has those that differ from plan to plan."""

SEARCH_LABELS = (
    Label(
        "Search",
        "A search over the plans of a model: what was asked, and what came out. One that ended before its time is "
        "unfinished, and the same search goes on with what it has. A shard of a search is one, too, of a part of the "
        "plans.",
        (
            id_of("digest of what was asked"),
            Property("model", "string", "the model's name"),
            Property("systems", "string[]", "names of the systems"),
            Property("ranks", "integer[]", "numbers of ranks that were searched", "ranks"),
            Property("seq_len", "integer?", "length of a sequence", "tokens"),
            Property("global_batch_size", "integer?", "sequences of a step", "sequences"),
            Property("by", "string", "what is best: step, memory, bytes, tokens_per_dollar or tokens_per_joule"),
            Property("allow", "string[]", "groups of words that vary in addition to degrees and the micro-batch"),
            Property("room", "integer?", "memory of an accelerator; absent: that of each system", "B"),
            Property("condition", "string?", "what plans must fulfil, such as `tp <= 8 and peak < 76e9`"),
            Property(
                "top",
                "integer",
                "number of best plans on each number of ranks, of which no two differ only in what recomputes",
            ),
            Property("request", "string", "all that was asked, as JSON"),
            Property("format", "integer", "version of the stored form"),
            Property("size", "integer", "plans whose degrees divide"),
            Property("timed", "integer", "plans that were timed"),
            Property("covered", "boolean", "every plan was tried or ruled out by a bound: the first one is the best"),
            Property("step", "integer?", "step of the best plan; absent if none that fits was found", "ns"),
            Property("peak", "integer?", "what the fullest rank of the best plan holds", "B"),
            Property("left", "integer?", "no plan that was not tried has a shorter step; absent if all were", "ns"),
            Property("seconds", "float", "time of the search", "s"),
            Property("content", "string", "digest of its candidates as they were found"),
            Property("shards", "integer?", "of a shard, and of a search that was merged: how many shards there are"),
            Property("finished", "integer[]?", "of a search that was merged: numbers of the finished shards, from 1"),
            Property("whole", "string?", "of a shard: id of the search; `covered` and what was found are of its plans"),
            Property("shard", "integer?", "of a shard: its number, from 1"),
            Property(
                "limits",
                "float[]?",
                "of a shard: what its best plans on each number of ranks have of what is to be small, ascending",
            ),
            Property("limit_ranks", "integer[]?", "on how many ranks each of these is, if there are several", "ranks"),
            *OWNED,
        ),
        indexes=(("model",),),
        style=("#8dcc93", "model"),
    ),
    Label(
        "Candidate",
        "A plan that a search tried, or a set of plans that it ruled out together. It has the words that the search "
        "chose; those of all plans are in `request` of the search.",
        (
            id_of("search id, `/`, digest of system, ranks and words"),
            Property("place", "integer?", "its place, from 0, the best first; absent while the search runs"),
            Property("fate", "string", "timed, memory, slower, filtered, refused or untried"),
            Property("system", "string", "the system's name"),
            Property("ranks", "integer", "size of the world", "ranks"),
            Property("plans", "integer", "plans that it represents; 1 for a plan"),
            Property("step", "integer", "length of the step if `timed`, otherwise a lower bound", "ns"),
            Property("peak", "integer", "what the fullest rank holds if `timed`, otherwise a lower bound", "B"),
            Property(
                "sent",
                "integer?",
                "what a rank sends at most in a step if `timed`, otherwise a lower bound; absent if not counted",
                "B",
            ),
            Property(
                "code",
                "string?",
                "why it loses: a term, bytes, memory, filtered, refused, untried; or `best`, `equal`",
            ),
            Property("why", "string?", "the same as a sentence; of a plan that is refused, the reason"),
            Property("instance", "string?", "id of the instance of this plan, for the best plans"),
            *CHOSEN_WORDS,
            *(
                Property(
                    name,
                    "integer?",
                    f"{_MEANINGS.get(term, _EXPOSED)}: mean of all ranks if `timed`, otherwise of the step's bound",
                    "ns",
                )
                for term, name in TERMS.items()
            ),
        ),
        indexes=(("instance",),),
        style=("#d9c8ae", "code"),
    ),
)

SEARCH_RELATIONSHIPS = (
    Relationship("TRIED", "Search", "Candidate", "The plans that it tried, and the sets that it ruled out.", owns=True),
    Relationship("MADE", "Candidate", "Instance", "The instance of this plan, if the store has it."),
)
