"""The roofline of links: the bound follows from the measured all-reduce and one device's compute time."""

from __future__ import annotations

import re
from unittest import mock

import pytest
from matplotlib.figure import Figure as MplFigure

from campaign.observe.links.alpha_beta_model import predict_allreduce_s
from campaign.report import plot
from campaign.report.figure import load_figure
from tests.unit.observe.links import links_data
from tests.unit.report import report_data as synthetic
from tests.unit.report.figure_columns import UNPAINTED
from tests.unit.report.test_figures import data


def test_the_bound_is_that_of_the_measured_links_and_of_one_device() -> None:
    plan = [entry for entry in synthetic.planned() if entry.cell.workload == "bert"]
    drawing = load_figure("roofline").draw(
        data(plan, list(synthetic.records(plan)), synthetic.leases(), links_data.links())
    )
    rows = drawing.data
    assert set(rows["configuration"]) == {"local-4", "hybrid-4", "fabric-4", "fabric-2x2", "fabric-8"}
    row = rows[(rows["configuration"] == "fabric-4") & (rows["batch"] == 8) & (rows["precision"] == "fp32")].iloc[0]
    one = synthetic.cell(synthetic.configuration(each=1, attach="local"), "bert", 8)
    assert row["compute"] == pytest.approx(8 / synthetic.true_rate(one), rel=0.03)
    links = next(each for each in links_data.links() if each["configuration"] == "fabric-4")["document"]
    model = links["model"]["allreduce"]
    assert row["allreduce"] == pytest.approx(
        predict_allreduce_s(row["size_bytes"], 4, model["alpha_us"], model["gb_per_s"]), rel=1e-9
    )
    assert row["bound"] == pytest.approx(100 * min(1.0, row["compute"] / row["allreduce"]))
    assert drawing.findings[0].startswith("Links limit 3 of 25 cells: ")


def test_an_axis_of_little_more_than_a_power_of_ten_has_plain_numbers() -> None:
    plan = [each for each in synthetic.planned() if (each.cell.workload, each.cell.batch) == ("bert", 8)]
    links = [each for each in links_data.links() if each["configuration"] == "hybrid-4"]
    pictures: list[MplFigure] = []
    with mock.patch.object(plot, "to_svg", lambda picture: pictures.append(picture) or UNPAINTED):
        load_figure("roofline").draw(data(plan, list(synthetic.records(plan)), synthetic.leases(), links))
    pictures[0].draw_without_rendering()
    labels = [label.get_text() for axes in pictures[0].axes for label in axes.get_xticklabels(which="both")]
    assert sum(bool(label) for label in labels) >= 3
    assert all(re.fullmatch(r"[\d.]*", label) for label in labels)


def test_without_links_or_bytes_it_says_why() -> None:
    plan = [entry for entry in synthetic.planned(1) if entry.cell.workload == "bert"]
    given = data(plan, list(synthetic.records(plan)))
    assert load_figure("roofline").draw(given).svg is None
    assert "all-reduce" in load_figure("roofline").draw(given).empty_reason
