"""The job length from which recomposing pays: a planted length is found, and its interval covers it in 95 of 100 campaigns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics.break_even import (
    compare_recomposed_cells,
    compute_average_break_even_s,
    compute_break_even_s,
    estimate_overhead_s,
)
from campaign.analysis.statistics.comparisons import Design, build_design
from campaign.analysis.statistics.ratios import LogRatios
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.runs import build_runs_table
from tests.unit.report import report_data as synthetic


def lease_table(configuration: str, seconds: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {"configuration": configuration, "compose_s": np.array(seconds) * 0.8, "release_s": np.array(seconds) * 0.2}
    )


@pytest.mark.parametrize(("leases", "ratio", "ratio_sd", "times_cv"), [
    (3, 1.5, 0.02, 0.1), (3, 1.1, 0.02, 0.1), (5, 3.0, 0.05, 0.02), (8, 1.25, 0.05, 0.3), (3, 1.0, 0.03, 0.1), (4, 0.8, 0.05, 0.1),
])  # fmt: skip
def test_the_interval_covers_a_planted_length(leases: int, ratio: float, ratio_sd: float, times_cv: float) -> None:
    """Composing takes 60 s; the ratio is a mean of as many compositions on each side, whose relative spread is `ratio_sd`."""
    random, campaigns = np.random.default_rng(38), 4000
    truth = 60 / (1 - 1 / ratio) if ratio > 1 else np.inf
    seconds = random.gamma(times_cv**-2, 60 * times_cv**2, (campaigns, leases))
    logs = random.normal(0, ratio_sd, (2, campaigns, leases))
    variance = logs.var(axis=2, ddof=1).sum(axis=0) / leases
    estimate = LogRatios(
        ratio * np.exp(logs[0].mean(axis=1) - logs[1].mean(axis=1)), variance, np.full(campaigns, 2.0 * (leases - 1))
    )
    tables = [lease_table(str(number), list(times)) for number, times in enumerate(seconds)]
    overheads = estimate_overhead_s(pd.concat(tables))
    overhead_s = LogRatios(*(overheads[name].to_numpy() for name in ("overhead_s", "variance", "freedom")))
    length, low, high = compute_break_even_s(overhead_s, estimate)
    coverage = ((low <= truth) & (truth <= high)).mean()
    assert coverage >= 0.935
    assert coverage <= 0.975 or ratio <= 1.1, "only where the gain may be nothing, the interval is wider"
    assert (low <= length).all()
    assert (length <= high).all()
    if ratio > 1.2:
        assert np.median(length) == pytest.approx(truth, rel=0.05)


def test_a_length_is_the_overhead_over_the_gain() -> None:
    exact = np.zeros(3), np.full(3, 5.0)
    length, low, high = compute_break_even_s(
        LogRatios(np.full(3, 90.0), *exact), LogRatios(np.array([1.2, 0.9, 1.0]), *exact)
    )
    assert length.tolist() == low.tolist() == high.tolist() == [pytest.approx(540), np.inf, np.inf]
    unknown = LogRatios(np.full(3, 90.0), np.full(3, np.nan), np.zeros(3))
    assert np.isnan(compute_break_even_s(unknown, LogRatios(np.full(3, 1.2), *exact))[1:]).all()


@pytest.fixture(scope="module")
def campaign() -> tuple[pd.DataFrame, Design]:
    plan = synthetic.planned()
    runs = build_runs_table(synthetic.records(plan))
    return build_cells_table(plan, runs), build_design(runs)


def test_composed_devices_are_compared_with_the_baseline_and_with_fewer_local_ones(
    campaign: tuple[pd.DataFrame, Design],
) -> None:
    cells, design = campaign
    names = list(cells["configuration"].unique())
    leases = pd.concat([lease_table(name, [50, 60, 70]) for name in names if name != "fabric-2"])
    rows = compare_recomposed_cells(cells, leases, synthetic.BASELINE, design)
    assert "fabric-2" not in set(rows["configuration"]), "nobody knows how long it takes to compose"
    against_others = rows[rows["against_configuration"] != synthetic.BASELINE]
    assert len(against_others)
    assert set(against_others["attach"]) & {"local"} == set()
    assert (against_others["against_devices"] < against_others["devices"]).all()
    assert (against_others["against_hosts"] == against_others["hosts"]).all()
    assert set(rows.loc[rows["attach"] == "local", "against_configuration"]) == {synthetic.BASELINE}
    assert rows["overhead_s"].unique() == pytest.approx(60)
    gain = 1 - 1 / rows["ratio"]
    assert rows["saving_s_per_h"].to_numpy() == pytest.approx(3600 * gain)
    pays = rows["ratio"] > 1
    assert rows.loc[pays, "break_even_s"].to_numpy() == pytest.approx(60 / gain[pays])
    assert np.isinf(rows.loc[~pays, "break_even_s"]).all()
    group = rows[rows["configuration"] == rows.loc[pays, "configuration"].iloc[0]]
    group = group[group["against_configuration"] == group["against_configuration"].iloc[0]]
    length, low, high = compute_average_break_even_s(group, leases, design)
    assert group["break_even_s"].min() <= length <= group["break_even_s"].max()
    assert low < length < high
