"""The default campaign with simulated steps, where devices scale and links cost: what `campaign recommend` chooses is the best."""

from __future__ import annotations

import pandas as pd
import pytest

from campaign.config.resolve import load_campaign
from campaign.paths import ROOT
from campaign.plan.matrix import expand
from tests.choices_under_truth import choices
from tests.simulated_campaigns import Simulated
from tests.step_simulator import TRACES, Machine

SECONDS = {"bert-nano": (0.010, 0.012), "resnet50w16": (0.020, 0.030)}
"""(t0, t1) of a device in fp32."""
LOCAL = (100e-6, 1.5e9)
ALPHA_S = 150e-6
ANYWHERE = ((), ("attach != 'local' or hosts > 1",), ("devices <= 3",))


@pytest.fixture(scope="module")
def demo() -> Simulated:
    return default_campaign()


def default_campaign() -> Simulated:
    campaign = load_campaign(ROOT / "config" / "campaign.yaml")
    system = campaign.system
    stated = {name: link for name in ("local", "fabric", "network") if (link := getattr(system.links, name))}
    links = {name: (ALPHA_S, link.gb_per_s * 1e9 * system.emulation.scale) for name, link in stated.items()}
    compute = {
        (workload, "cpu-rank", precision): (t0 * by, t1 * by)
        for workload, (t0, t1) in SECONDS.items()
        for precision, by in (("fp32", 1.0), ("bf16", 0.5))
    }
    machine = Machine(TRACES, compute, {"local": LOCAL, **links})
    cells = tuple(expand(campaign).cells)
    return Simulated(machine, cells, system.model_dump(mode="json"), compositions=3, repetitions=1)


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
