"""What measured steps tell of the parameters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from campaign.model.description import StepCase
from campaign.model.parameters import Draws, Floats, Prior


@dataclass(frozen=True)
class ObservedStep:
    """A measured cell. step_s: seconds of a step, mean of its runs; sd: standard deviation of the logarithm of that mean."""

    case: StepCase
    step_s: float
    sd: float


@dataclass(frozen=True)
class Posterior:
    """Draws of the parameters after measured steps, with weights that add up to 1.

    effective: effective size of the weighted sample (Kish): a few hundred are needed for intervals. misfit: sd of the logarithm
    that the model itself is off by, beside the steps' own; it belongs to predictions of other cells.
    """

    draws: Draws
    weights: Floats
    effective: float
    misfit: float

    def interval(self, values: Floats, share: float = 0.8) -> tuple[float, float, float]:
        """(median, low, high) of one value a draw, weighted; low and high hold the share of the weight."""
        raise NotImplementedError


def fit(observed: Sequence[ObservedStep], prior: Prior, count: int = 1000, seed: int = 0) -> Posterior:
    """Weighted draws from the posterior of all parameters of the prior that are not known exactly."""
    raise NotImplementedError
