"""The published numbers, made into runs, come out of our figures and of our claims again."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import pandas as pd
import pytest

from campaign.analysis.published.claims import evaluate_claims
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.leases import build_leases_table
from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import Campaign, campaign_from_document
from campaign.report import plot
from campaign.report.figure import Drawing, FigureData, load_figure
from campaign.spec.published_file import load_set
from tests import reference_campaign as reference
from tests.unit.report.figure_columns import UNPAINTED

# What the campaigns that repeat the studies cannot decide, and why that is right.
OPEN = {
    "falcon.f16.sharded_batch",  # the study's campaign tries no batch beyond the paper's own
}


def tables(name: str) -> Tables:
    return reference.tables(name)


def claims(name: str) -> dict[str, dict[str, Any]]:
    return {claim["id"]: claim for claim in tables(name).context["published"]["claims"]}


@cache
def drawn(name: str, figure: str, cells: str) -> Drawing:
    """A figure of the cells for which an expression holds; the others would only cost time."""
    of = tables(name)
    campaign = of.context["campaign"]
    kept, leases = of.cells.query(cells).reset_index(drop=True), build_leases_table(of.leases)
    protocol, links = campaign["protocol"], tuple(of.links)
    data = FigureData(of.runs, kept, leases, campaign["baseline"], protocol, links, context=of.context)
    with mock.patch.object(plot, "to_svg", return_value=UNPAINTED):
        drawing: Drawing = load_figure(figure).draw(data)
    return drawing


def accepted(name: str, claim: str) -> tuple[float, float]:
    low, high = next(each.accept for each in load_set(name).claims if each.id == claim)
    return float("-inf") if low is None else low, float("inf") if high is None else high


def only(rows: pd.DataFrame, column: str) -> float:
    assert len(rows) == 1
    return float(rows[column].iloc[0])


@pytest.mark.parametrize("name", reference.SETS)
def test_every_claim_that_the_study_can_show_agrees(name: str) -> None:
    unmeasurable = {claim.id for claim in load_set(name).claims if claim.here is None}
    said = claims(name)
    verdicts = {of: claim["verdict"] for of, claim in said.items() if of not in unmeasurable}
    assert {of for of, verdict in verdicts.items() if verdict in ("differs", "undecided")} == OPEN & set(verdicts)
    assert all(said[of]["verdict"] == "not measured here" for of in unmeasurable)


def test_what_a_study_leaves_out_is_listed_with_the_reason() -> None:
    missing = {of: claim["reason"] for of, claim in claims("falcon").items() if claim["verdict"] == "not measured here"}
    assert missing["falcon.f15.nvme_dir"] == "no two measured cells differ only in the claimed property"
    assert all(missing.values())
    assert claims("faster")["faster.f6.cv.order"]["reason"] == "the same workload represents both models"


def test_node_spread_shows_the_published_drops() -> None:
    rows = drawn("faster", "node_spread", "workload == 'resnet50' and precision == 'tf32'").data
    rows = rows[(rows["workload"] == "resnet50") & (rows["precision"] == "tf32") & (rows["ranks"] == 4)]
    for hosts, claim in ((2, "faster.f5.drop.2nodes"), (4, "faster.f5.drop.4nodes")):
        low, high = accepted("faster", claim)
        assert low <= only(rows[rows["hosts"] == hosts], "drop_pct") <= high


@pytest.mark.parametrize("devices", [1, 12])
@pytest.mark.parametrize("batch", [4, 8, 16])
def test_precision_shows_the_published_speedups(devices: int, batch: int) -> None:
    rows = drawn("faster", "precision", "workload == 'bert-large' and ranks in (1, 12) and batch < 32").data
    rows = rows[(rows["workload"] == "bert-large") & (rows["devices_per_host"] == devices) & (rows["hosts"] == 1)]
    rows = rows[(rows["devices_used"] == devices) & (rows["batch"] == batch) & (rows["precision"] == "fp16-o2")]
    low, high = accepted("faster", f"faster.f8.fp16.{devices}gpu.bs{batch}")
    assert low <= only(rows, "ratio") <= high


def test_part_of_host_keeps_to_the_published_spread() -> None:
    rows = drawn("faster", "part_of_host", "workload == 'resnet50' and hosts == 1").data
    spread = rows.loc[rows["workload"] == "resnet50", "case_cv_pct"].dropna()
    assert len(spread)
    assert spread.max() <= accepted("faster", "faster.f6.cv.tf")[1]


def test_overhead_shows_what_the_fabric_costs() -> None:
    rows = drawn("falcon", "overhead", "precision == 'fp16-o2' and option_parallel == 'ddp'").data
    rows = rows[(rows["precision"] == "fp16-o2") & (rows["option_parallel"] == "ddp") & (rows["storage"] == "local")]
    vision = rows[rows["workload"].isin(["mobilenetv2", "resnet50", "yolov5l"])]
    assert len(vision) == 6
    assert vision["overhead_pct"].max() <= accepted("falcon", "falcon.f11.vision")[1]
    low, high = accepted("falcon", "falcon.f11.bertlarge")
    large = rows[(rows["workload"] == "bert-large") & (rows["attach"] == "fabric")]
    assert low <= 1 + only(large, "overhead_pct") / 100 <= high


def test_link_matrices_hold_the_published_table() -> None:
    numbers = set(
        pd.to_numeric(drawn("falcon", "link_matrices", "ranks > 0").data.stack(), errors="coerce").dropna().round(3)
    )
    assert {72.37, 19.64, 24.47, 1.85, 2.66, 2.08} <= numbers


def held(of: Tables, *wanted: str) -> dict[str, dict[str, Any]]:
    """Some claims held against other tables than the study's own."""
    whole = load_set(wanted[0].partition(".")[0])
    some = whole.model_copy(update={"claims": tuple(claim for claim in whole.claims if claim.id in wanted)})
    return {claim["id"]: claim for claim in evaluate_claims([some], of)["claims"]}


def _with_cells(of: Tables, **changes: Any) -> Tables:
    return replace(
        of, cells=of.cells.assign(**changes), runs=of.runs.assign(**{k: v for k, v in changes.items() if k in of.runs})
    )


def test_other_hardware_is_called_other_conditions() -> None:
    elsewhere = _with_cells(tables("falcon"), device="h100")
    fabric = held(elsewhere, "falcon.f11.bertlarge")["falcon.f11.bertlarge"]
    assert fabric["verdict"] == "agrees"
    assert fabric["other"] == ["device h100 instead of v100-16gb"]
    assert not fabric["other_program"]


def test_the_program_alone_is_told_from_other_conditions() -> None:
    said = claims("faster")["faster.f5.drop.2nodes"]
    assert (said["other"], said["other_program"]) == (["program resnet50 instead of tf-resnet50"], True)
    elsewhere = held(_with_cells(tables("faster"), device="h100"), "faster.f5.drop.2nodes")["faster.f5.drop.2nodes"]
    assert len(elsewhere["other"]) == 2
    assert not elsewhere["other_program"]


def test_other_numbers_differ() -> None:
    of = tables("faster")
    slower = of.cells["hosts"].map({1: 1.0, 2: 0.8, 4: 0.5})
    cells = of.cells.assign(mean=of.cells["mean"] * slower, sd=of.cells["sd"] * slower)
    runs = of.runs.assign(value=of.runs["value"] * of.runs["hosts"].map({1: 1.0, 2: 0.8, 4: 0.5}))
    said = held(replace(of, cells=cells, runs=runs), "faster.f5.drop.2nodes", "faster.f4.t4_flat", "faster.f3.monotone")
    assert said["faster.f5.drop.2nodes"]["verdict"] == "differs"
    assert said["faster.f4.t4_flat"]["verdict"] == "differs"
    assert said["faster.f3.monotone"]["verdict"] == "agrees"


def test_without_intervals_nothing_is_decided() -> None:
    of = tables("faster")
    once = of.cells.assign(n_ok=of.cells["n_ok"].clip(upper=1), sd=float("nan"))
    alone = replace(of, cells=once, runs=of.runs[of.runs["repetition"] == 1])
    said = held(alone, "faster.f5.drop.2nodes")
    assert said["faster.f5.drop.2nodes"]["verdict"] == "undecided"
    assert "one run" in said["faster.f5.drop.2nodes"]["here"]


def test_a_campaign_without_cells_measures_nothing() -> None:
    of = tables("faster")
    empty = replace(of, cells=of.cells.iloc[:0], runs=of.runs.iloc[:0], links=[])
    verdicts = {
        claim["verdict"] for name in reference.SETS for claim in evaluate_claims([load_set(name)], empty)["claims"]
    }
    assert verdicts == {"not measured here"}


def test_claims_are_part_of_the_campaign_as_used() -> None:
    of = reference.campaign("bitfusion")
    again: Campaign = campaign_from_document(of.to_document())
    assert again.references == of.references == (load_set("bitfusion"),)


def test_a_reference_that_is_not_there_is_an_error_of_the_campaign(tmp_path: Any) -> None:
    from campaign.plan.campaign.resolve import load_campaign

    text = (reference.CAMPAIGNS / "remote-study.yaml").read_text(encoding="utf-8")
    (tmp_path / "c.yaml").write_text(text.replace("[bitfusion]", "[bitfusio]"), encoding="utf-8")
    with pytest.raises(ConfigError, match="bitfusio: there is no such set of published claims"):
        load_campaign(tmp_path / "c.yaml")
