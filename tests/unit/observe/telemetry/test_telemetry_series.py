"""Samples over time: one run a cell, devices that it used, rates of counters, and few points."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.tables import time_series
from campaign.common.errors import RecordError
from campaign.observe.telemetry.run_telemetry import write_samples
from campaign.observe.telemetry.samples import HostSamples, SampleSeries
from campaign.spec.record import Record
from tests.unit.report import report_data as synthetic

START = 1_700_000_000.0
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


def steady(rate: float, seconds: int = 20, first: float = 0.0) -> SampleSeries:
    return SampleSeries(tuple(START + t for t in range(seconds)), tuple(first + rate * t for t in range(seconds)))


def host(devices: int = 4, name: str = "host0") -> HostSamples:
    found = {
        ("host", "cpu_busy_s"): steady(1.0),
        ("host", "cpu_all_s"): steady(4.0),
        ("host", "memory_used_mib"): steady(0.0, first=1000.0),
        ("nic:a", "received_bytes"): steady(1e9),
        ("nic:b", "received_bytes"): steady(2e9),
    }
    for number in range(devices):
        part = f"gpu:{UUID.format(number)}"
        found |= {(part, "index"): steady(0.0, first=number), (part, "power_w"): steady(0.0, first=100.0 + number)}
        found |= {(part, "pcie_received_bytes"): steady(5e9)}
    return HostSamples(name, name, 0, 1.0, found)


def composition(devices: int = 4, local: Sequence[int] = ()) -> dict[str, Any]:
    each = [
        {"fabric_id": f"gpu-{number}", "host_id": UUID.format(number), "local": number in local}
        for number in range(devices)
    ]
    return {"hosts": [{"name": "host0", "devices": each}]}


def kept(tmp_path: Path, record: Record, samples: Sequence[HostSamples]) -> Record:
    path = Path("telemetry") / record.cell_id[:2] / f"{record.cell_id}.{record.repetition}.parquet"
    written = write_samples(tmp_path / path, samples)
    return record.model_copy(update={"telemetry": str(written.relative_to(tmp_path)), "started": START})


def one(used: Sequence[int] = (0, 1, 2, 3)) -> Record:
    record = synthetic.record(synthetic.cell(synthetic.configuration(each=4, used=len(used))), 1, 100.0)
    return record.model_copy(update={"devices": tuple(f"gpu-{number}" for number in used)})


def test_samples_of_a_host_without_pyarrow_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        elsewhere = kept(tmp_path / "a", one(), [host()])
    here = kept(tmp_path / "b", one(), [host()])
    assert (elsewhere.telemetry[-8:], here.telemetry[-8:]) == (".json.gz", ".parquet")
    tables = [
        time_series.build_telemetry_table([record], tmp_path / name, lambda _: composition())
        for name, record in (("a", elsewhere), ("b", here))
    ]
    assert len(tables[0]) > 0
    pd.testing.assert_frame_equal(*tables)


def test_samples_are_written_without_importing_pandas(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from campaign.observe.telemetry.run_telemetry import write_samples\n"
        "write_samples(Path(sys.argv[1]), []); print('pyarrow' in sys.modules, 'pandas' in sys.modules)"
    )
    python = [sys.executable, "-c", program, str(tmp_path / "samples.parquet")]
    assert subprocess.run(python, capture_output=True, text=True, check=True).stdout.split() == ["True", "False"]


def test_a_damaged_file_of_a_host_without_pyarrow_is_named(tmp_path: Path) -> None:
    record = one().model_copy(update={"telemetry": "telemetry/samples.json.gz"})
    (tmp_path / "telemetry").mkdir()
    for content in (b"", b"torn", gzip.compress(b"{}"), gzip.compress(b"[1"), gzip.compress(b'{"time": [1]}')):
        (tmp_path / record.telemetry).write_bytes(content)
        with pytest.raises(RecordError, match=r"samples\.json\.gz: the samples cannot be read"):
            time_series.build_telemetry_table([record], tmp_path, lambda _: composition())


def test_counters_are_rates_and_values_stay(tmp_path: Path) -> None:
    record = kept(tmp_path, one(), [host()])
    table = time_series.build_telemetry_table([record], tmp_path, lambda _: composition())
    assert list(table.columns) == list(time_series.TELEMETRY_COLUMNS)
    means = table.groupby(["part", "quantity"])["value"].mean().to_dict()
    assert means["host", "cpu_utilisation_pct"] == pytest.approx(25.0)
    assert means["host", "network_rx_gb_per_s"] == pytest.approx(3.0)
    assert means[f"gpu:{UUID.format(2)}", "pcie_rx_gb_per_s"] == pytest.approx(5.0)
    assert means[f"gpu:{UUID.format(2)}", "power_w"] == pytest.approx(102.0)
    assert set(table["quantity"]) <= set(time_series.QUANTITIES)
    assert table["time_s"].between(0, 19).all()


def test_devices_that_the_run_did_not_use_are_left_out(tmp_path: Path) -> None:
    record = kept(tmp_path, one(used=(0, 3)), [host()])
    table = time_series.build_telemetry_table([record], tmp_path, lambda _: composition(local=[3]))
    used = {part for part in table["part"] if part.startswith("gpu")}
    assert used == {f"gpu:{UUID.format(number)}" for number in (3, 0)}


def test_the_device_that_a_rank_reports_is_shown_whatever_the_composition_calls_it(tmp_path: Path) -> None:
    record = kept(tmp_path, one(used=(0,)), [host()])
    (first, *_) = composition()["hosts"][0]["devices"]
    table = time_series.build_telemetry_table([record], tmp_path, lambda _: composition())
    assert {part for part in table["part"] if part.startswith("gpu")} == {f"gpu:{first['host_id']}"}
    ran_on = ("cuda:0 " + UUID.format(2).removeprefix("GPU-"),)
    devices = {"hosts": [{"name": "host0", "devices": [{**first, "fabric_id": "gpu-7"}]}]}
    reporting = record.model_copy(update={"devices": ("gpu-7",), "ran_on": ran_on})
    table = time_series.build_telemetry_table([reporting], tmp_path, lambda _: devices)
    assert {part for part in table["part"] if part.startswith("gpu")} == {f"gpu:{UUID.format(2)}"}


def test_what_nobody_counted_is_absent_and_no_file_is_no_error(tmp_path: Path) -> None:
    bare = replace(host(0), series={("host", "load_1min"): steady(1.0)})
    records = [kept(tmp_path, one(), [bare]), one(used=(0,)).model_copy(update={"telemetry": "telemetry/gone.parquet"})]
    table = time_series.build_telemetry_table(records, tmp_path, lambda _: composition())
    assert table.empty
    assert list(table.columns) == list(time_series.TELEMETRY_COLUMNS)
    assert table["value"].dtype == np.float64


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    record = kept(tmp_path, one(), [host()])
    (tmp_path / record.telemetry).write_bytes(b"not parquet")
    with pytest.raises(RecordError, match=record.cell_id):
        time_series.build_telemetry_table([record], tmp_path, lambda _: composition())


def test_the_first_believed_run_of_each_cell_is_taken(tmp_path: Path) -> None:
    cell = synthetic.cell(synthetic.configuration())
    runs = [(3, "ok"), (2, "ok"), (1, "crashed")]
    records = [kept(tmp_path, synthetic.record(cell, n, 100.0, status), [host()]) for n, status in runs]
    table = time_series.build_telemetry_table(records, tmp_path, lambda _: composition())
    assert set(table["repetition"]) == {2}


def test_of_too_many_cells_some_of_every_configuration_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_series, "MAX_CELLS", 4)
    shapes = [synthetic.configuration(each=4), synthetic.configuration(hosts=2, each=2)]
    cells = [synthetic.cell(shapes[0], seed=n) for n in range(6)] + [
        synthetic.cell(shapes[1], seed=n) for n in range(6)
    ]
    records = [kept(tmp_path, synthetic.record(cell, 1, 100.0), [host(1)]) for cell in cells]
    table = time_series.build_telemetry_table(records, tmp_path, lambda _: composition(1), [cell.id for cell in cells])
    assert list(dict.fromkeys(table["cell_id"])) == [cells[n].id for n in (0, 1, 6, 7)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=900))
def test_few_points_keep_the_mean_and_the_growth(values: list[float]) -> None:
    times = tuple(START + n for n in range(len(values)))
    time_s, means = time_series.thin_series(SampleSeries(times, tuple(values)), START)
    assert len(means) <= time_series.MAX_POINTS
    assert min(values) - 1e-6 <= means.min() <= means.max() <= max(values) + 1e-6
    counter = np.cumsum(values)
    middle_s, rates = time_series.compute_rates(SampleSeries(times, tuple(counter)), START)
    assert len(rates) <= time_series.MAX_POINTS
    assert (np.diff(middle_s) > 0).all()
    assert (np.diff(time_s) > 0).all()
    edges = np.zeros(len(middle_s) + 1)  # intervals follow each other, by their middles
    for n in range(len(middle_s)):
        edges[n + 1] = 2 * middle_s[n] - edges[n]
    assert float((np.diff(edges) * rates).sum()) == pytest.approx(float(counter[-1] - counter[0]), rel=1e-6, abs=1e-6)


def test_a_counter_that_went_back_says_nothing_there() -> None:
    _, rates = time_series.compute_rates(SampleSeries((START, START + 1, START + 2), (5.0, 1.0, 3.0)), START)
    assert np.isnan(rates[0])
    assert rates[1] == pytest.approx(2.0)
