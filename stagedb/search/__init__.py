"""Plans tried: what bounds a step, what it would gain without each of its losses, the plans near it, and sweeps.

A search is for the best plan: all plans of a model on a system, tried or ruled out by a bound, and why each of them
loses.
"""

from stagedb.search.candidates import Candidate, Fate, Objective, SearchRequest, SearchResult, Shards

__all__ = ["Candidate", "Fate", "Objective", "SearchRequest", "SearchResult", "Shards"]
