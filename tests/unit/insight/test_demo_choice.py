"""The default campaign with simulated steps, where devices scale and links cost: what `campaign recommend` chooses is the best."""

from __future__ import annotations

import pandas as pd
import pytest

from campaign.config.resolve import load_campaign
from campaign.paths import ROOT
from campaign.plan.matrix import expand
from tests.choices_under_truth import choices
from tests.simulated_campaigns import Machine, Simulated

PLANTED = {
    "launch": 3e-4,
    "latency": 1e-4,
    "latency[network]": 1e-4,
    "fixed": 2e-3,
    "rate[local]": 0.9e8,
    "compute": 1.01,
}
ANYWHERE = ((), ("attach != 'local' or hosts > 1",), ("devices <= 3",))


@pytest.fixture(scope="module")
def demo() -> Simulated:
    return default_campaign()


def default_campaign() -> Simulated:
    campaign = load_campaign(ROOT / "config" / "campaign.yaml")
    machine = Machine(campaign.system, campaign.workloads, PLANTED)
    return Simulated(machine, tuple(expand(campaign).cells), compositions=3, repetitions=1)


def right(found: pd.DataFrame, least: float) -> None:
    """For each question, in this part of the campaigns the choice is the best or is tied with it."""
    by = found.assign(right=found["outcome"].isin(["best", "tied"])).groupby(["objective", "about"])
    assert by["right"].mean().min() >= least, found["outcome"].value_counts()
    assert by["covers"].mean().mean() > 0.85


@pytest.mark.parametrize("where", ANYWHERE)
def test_the_choice_is_the_best_or_tied_with_it(demo: Simulated, where: tuple[str, ...]) -> None:
    """`python -m tests.benchmarks.truth` asks more of them."""
    right(choices(demo, 3, 0.015, where=where), 1.0)


def test_one_device_of_several_hosts_or_of_one_costs_the_same_and_is_a_tie(demo: Simulated) -> None:
    # Alone, a device communicates with nobody: what it is attached by costs nothing that was planted.
    found = choices(demo, 3, 0.01, ["throughput"], ["devices == 1"])
    assert (found["tied"] >= 1).mean() > 0.8
    assert (found["outcome"] == "best").all()
