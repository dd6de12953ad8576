"""The formula of `campaign recommend` against steps that are simulated event by event: every strategy, within 10 %."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.objectives import asked
from campaign.report.figure import data_of
from campaign.report.sections import recommendation_figure
from campaign.tables.io import Tables
from tests import formula_errors
from tests.simulated_campaigns import Simulated
from tests.step_simulator import TRACES, Machine
from tests.unit.insight import model_data
from tests.unit.report import report_data


@pytest.mark.parametrize(
    ("strategies", "links", "trace", "speed", "worst"),
    [
        ("ddp", "NVLink", "bert-large", 6.0, 10),
        ("ddp, two precisions", "PCIe", "bert-base", 1.0, 10),
        ("ddp, accumulation 1 and 4", "Ethernet", "resnet50", 1.0, 10),
        ("ddp, overlapped and not", "NVLink", "yolov5l", 6.0, 10),
        ("zero1", "PCIe", "yolov5l", 1.0, 10),
        ("dp", "NVLink", "bert-base", 1.0, 11),
        ("ddp, zero1, fsdp, dp", "PCIe", "resnet50", 6.0, 15),
    ],
)
def test_no_cell_within_the_measured_range_is_far_off(
    strategies: str, links: str, trace: str, speed: float, worst: float
) -> None:
    found = formula_errors.errors(strategies, links, trace, speed)
    size = found["error_pct"].abs()
    of = found["cell"]
    assert size[of == "unseen"].max() < 10.5
    assert size[of == "left out"].max() < worst
    assert size.groupby(of).median().max() < 7
    assert np.mean(size > 10) < 0.02
    assert found["trusted"].all()


@pytest.fixture(scope="module")
def two_strategies() -> Tables:
    """ddp as it is simulated; of fsdp, every configuration is slower or faster by something that no formula knows."""
    machine = Machine(TRACES, {("bert-base", "A100", "fp32"): (0.01, 0.009)}, formula_errors.LINKS["PCIe"])
    cells = [
        report_data.cell(at, "bert-base", batch, "fp32", parallel=parallel)
        for at in formula_errors.MEASURED
        for batch in (4, 8)
        for parallel in ("ddp", "fsdp")
    ]
    simulated = Simulated(machine, tuple(cells), model_data.SYSTEM, repetitions=1)
    tables = simulated.tables(np.random.default_rng(3), 0.003, 0.003)
    odd = np.resize([0.6, 1.7, 1.0], len(formula_errors.MEASURED))
    by = dict(zip((at.name for at in formula_errors.MEASURED), odd, strict=True))
    factor = np.where(tables.cells["option_parallel"] == "fsdp", tables.cells["configuration"].map(by), 1.0)
    scaled = {name: tables.cells[name] * factor for name in ("mean", "ci_low", "ci_high")}
    return replace(tables, cells=tables.cells.assign(**scaled))


def test_a_strategy_that_the_formula_does_not_describe_chooses_nothing_and_others_do(two_strategies: Tables) -> None:
    advice = advise(two_strategies, asked(["throughput"], ["not measured"], [], ["bert-base"], []))
    (model,) = advice.document.models
    assert not model.trusted
    assert "It does not describe fsdp: it chooses nothing there." in model.sentence
    chosen = {answer.about: answer.choice for answer in advice.document.answers}
    assert chosen["bert-base, fp32, parallel ddp"] is not None
    assert chosen["bert-base, fp32, parallel fsdp"] is None


def test_the_table_of_predictions_says_of_cells_that_are_far_off_why(two_strategies: Tables) -> None:
    advice = advise(two_strategies, asked(["throughput"], [], [], ["bert-base"], []))
    checks = advice.checks
    far = checks["error_pct"].abs() > 10
    assert ((checks["reason"] != "") == far).all()
    assert set(checks.loc[far & (checks["option_parallel"] == "fsdp"), "reason"]) >= {
        "the model does not describe fsdp",
        "extrapolated without it: 20 devices, at most 12 measured; 20 devices of a host, at most 12 measured",
    }
    (model,) = advice.document.models
    assert f"{far.sum()} of {len(checks)} cells are more than 10\u202f% off" in model.sentence
    drawn = recommendation_figure.figure(advice).draw(data_of(two_strategies, None))
    row = next(row for row in drawn.rows if row[0] == "fabric-20")
    assert row[-1].endswith("at most 12 measured; 20 devices of a host, at most 12 measured")


@pytest.mark.parametrize(("predicted", "gb_per_s"), [(True, "12.5"), (False, "0.00500")])
def test_links_of_replayed_workloads_are_the_real_ones_and_others_the_emulated(predicted: bool, gb_per_s: str) -> None:
    machine = Machine(TRACES, {("resnet50", "A100", "fp32"): (0.006, 0.0025)}, formula_errors.LINKS["PCIe"])
    shapes = [at for at in formula_errors.MEASURED if at.hosts == 1]
    cells = tuple(report_data.cell(at, "resnet50", batch, "fp32") for at in shapes for batch in (8, 16))
    emulation = {"scale": 0.0004, "dilation": 20}
    system = {**model_data.SYSTEM, "links": {"network": {"gb_per_s": 12.5}}, "emulation": emulation}
    tables = Simulated(machine, cells, system).tables(np.random.default_rng(3))
    tables = replace(tables, cells=tables.cells.assign(predicted=predicted))
    document = advise(tables, asked(["throughput"], ["hosts == 1"], [], ["resnet50"], [])).document
    (model,) = document.models
    (link,) = (each for each in model.parameters if each.name == "bandwidth B, network")
    assert (link.value, link.start) == (f"{gb_per_s}\u202fGB/s", "the system file")
    assert model.trusted
    (answer,) = document.answers
    assert answer.choice.replayed == predicted
