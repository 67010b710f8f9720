"""Experts that some tokens of a step choose: with few tokens some have none, and their weights are not read."""

import math

import numpy as np

from stagedb.systems.tables.grids import Floats


def chosen_share(tokens: float) -> float:
    """The share of experts with a token, in the mean, if each token chooses any of them with the same probability.

    None of many choices are for an expert with the probability exp(-tokens) (Poisson). With equal loads each expert has
    one as soon as there are as many choices as experts.

    tokens: those of one expert in the mean.
    """
    return -math.expm1(-tokens)


def chosen_experts(experts: Floats, tokens: Floats) -> Floats:
    """How many experts of a rank have a token, in the mean, as `chosen_share` has it.

    experts: how many the rank has. tokens: those of one expert in the mean.
    """
    found: Floats = -experts * np.expm1(-tokens)
    return found
