"""The simulation of steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from campaign.model.description import StepCase
from campaign.model.parameters import Draws, Floats


@dataclass(frozen=True)
class StepPrediction:
    """What a step of a case is like under each draw; all arrays have one value a draw.

    step_s: seconds of a step. parts: seconds of `compute` (both passes, slowed down or not), `optimizer`, `communication` (that
    compute does not hide), `input` (waiting), `copy` and `fixed`, which add up to step_s. communication_s: that collectives run,
    hidden or not. link_bytes: by kind of link, bytes of a step over all of its ports, in and out. sent_bytes: of one rank, the most
    of any. busy: share of the step that a device computes or runs collectives (what tools call utilisation). host_busy: share of the
    step that the cores of a host read and decode, None without an input path. memory_mib: on the fullest device, nan where
    activations are not known. fits: share of the draws that fit into memory, None where that is not known.
    """

    step_s: Floats
    parts: Mapping[str, Floats]
    communication_s: Floats
    link_bytes: Mapping[str, Floats]
    sent_bytes: float
    busy: Floats
    host_busy: Floats | None
    memory_mib: Floats
    fits: float | None


def simulate(case: StepCase, draws: Draws) -> StepPrediction:
    """A step of the case under each draw. KeyError: a rate that the topology needs has no value."""
    raise NotImplementedError
