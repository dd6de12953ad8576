"""Telemetry beside runs of the reference workload, whose power is known: what is kept is what the workload file says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from campaign.observe.telemetry import run_telemetry
from campaign.observe.telemetry.run_metrics import SHARED_MACHINE_FLAG, WHOLE_RUN_FLAG
from campaign.observe.telemetry.run_telemetry import NO_SAMPLES_FLAG, Telemetry, TelemetrySummary
from campaign.run.launchers import open_launcher
from campaign.spec.hardware import Composition
from campaign.spec.host_load import FOREIGN_LOAD_FLAG
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, StepEnd
from campaign.workloads.synthetic import SyntheticWorkload
from tests.campaign_files import one_cell, one_run
from tests.unit.analysis.statistics.sample_data import summarize
from tests.unit.run.launch.compositions import composition, system

POWER_W, MEMORY_MIB, UTILISATION_PCT = 250.0, 1024.0, 80.0


def measured(
    directory: Path, hosts: Composition, interval_s: float | None, **workload: Any
) -> tuple[Outcome, StepEnd, TelemetrySummary]:
    """One run of the reference workload, with telemetry beside it."""
    truth = {"power_w": POWER_W, "memory_mib": MEMORY_MIB, "utilisation_pct": UTILISATION_PCT}
    document = {"name": "s", "kind": "synthetic", "precisions": ["fp32"], **truth, **workload}
    model = SyntheticWorkload.model_validate(document)
    run = one_run(directory / "run", one_cell(hosts=len(hosts.hosts), devices=2, batch=1))
    run = replace(run, composition=hosts)
    launcher = open_launcher("local", system(), hosts)
    log = directory / "log"
    try:
        with Telemetry(launcher, hosts, interval_s, directory / "telemetry") as telemetry:
            _await_sampler(directory / "telemetry", interval_s)
            step = model.step(run)
            step = replace(step, environment={**step.environment, **telemetry.environment})
            ended = launcher.run(step, "telemetry-test", log, run.directory, StepLimits(30.0))
            outcome = model.read(run, ended, Log(log))
            samples = 4.0 * len(outcome.step_times_s[0]) if outcome.step_times_s else None
            out = directory / "samples.parquet"
            return outcome, ended, telemetry.store_run(ended.started, ended.ended, outcome.steady, samples, out, {})
    finally:
        launcher.close()


def _await_sampler(directory: Path, interval_s: float | None) -> None:
    """A run begins when it does; this one is to be sampled from its start on."""
    deadline = time.monotonic() + 20
    while interval_s == 0.1 and not [path for path in directory.glob("*.jsonl") if path.read_bytes().count(b"\n") > 1]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_throughput_spread_energy_power_and_utilisation_are_the_true_ones(tmp_path: Path) -> None:
    outcome, _, kept = measured(tmp_path, composition((2, 0), (2, 0)), 0.1, sample_ms=300)
    assert outcome.steady is not None
    window_s = outcome.steady[1] - outcome.steady[0]
    # Steps sleep, and oversleep where the machine is busy.
    assert outcome.throughput_per_s == pytest.approx(4 / 0.3, rel=0.2)
    assert summarize(outcome.step_times_s[0]).cv_pct < 20
    metrics = kept.metrics
    assert metrics["energy_j"] == pytest.approx(POWER_W * 4 * window_s, rel=0.05)
    assert metrics["energy_per_sample_j"] == pytest.approx(POWER_W * 4 * window_s / 12, rel=0.05)
    assert metrics["device_power_mean_w"] == pytest.approx(POWER_W, rel=0.01)
    assert metrics["device_memory_peak_mib"] == MEMORY_MIB
    assert metrics["device_utilisation_mean_pct"] == pytest.approx(UTILISATION_PCT, rel=0.01)
    assert 0 < metrics["cpu_utilisation_mean_pct"] <= 100
    assert metrics["host_memory_used_peak_mib"] > 0
    # Other programs may be busy on this machine.
    assert {*kept.flags} - {FOREIGN_LOAD_FLAG} == {SHARED_MACHINE_FLAG}
    assert kept.samples_file
    table = pq.read_table(tmp_path / "samples.parquet").to_pandas()
    assert list(table) == ["time", "host", "part", "quantity", "value"]
    powers = table[(table["quantity"] == "power_w") & (table["part"] == "gauge:host2/1")]
    assert len(powers) >= 5
    assert set(powers["value"]) == {POWER_W}
    assert not (tmp_path / "telemetry").exists()


def test_without_telemetry_only_the_load_is_kept(tmp_path: Path) -> None:
    outcome, _, kept = measured(tmp_path, composition((2, 0)), None, sample_ms=900)
    assert outcome.status == "ok"
    assert [load.host for load in kept.loads] == ["host1"]
    assert kept == TelemetrySummary(flags=kept.flags, loads=kept.loads)
    assert {*kept.flags} <= {FOREIGN_LOAD_FLAG}
    assert not (tmp_path / "samples.parquet").exists()


def test_a_run_that_is_shorter_than_the_interval_has_no_samples_and_no_flag(tmp_path: Path) -> None:
    _, _, kept = measured(tmp_path, composition((2, 0)), 5.0, sample_ms=1)
    assert kept == TelemetrySummary()


class _Beside:
    """A launcher whose samplers have said what a test wants."""

    def __init__(self, hosts: Sequence[str], say: Callable[[Path], None]) -> None:
        self.hosts, self.say = tuple(hosts), say

    @contextmanager
    def sidecar(self, argv: Sequence[str], directory: Path) -> Iterator[tuple[str, ...]]:
        self.say(directory)
        yield self.hosts


def _says(hosts: Sequence[str], jump_s: float = 0.0) -> Callable[[Path], None]:
    def say(directory: Path) -> None:
        for host in hosts:
            header = {"schema_version": "telemetry/1", "host": host, "machine": host, "network": 1, "interval_s": 1}
            read = {f"gauge:{host}/0": {"power_w": 100}}
            ticks = [{"time": 1000 + n + (jump_s if n > 5 else 0), "monotonic": n, "read": read} for n in range(31)]
            lines = [json.dumps(document) for document in (header, *ticks)]
            (directory / f"{host}.jsonl").write_text("\n".join(lines) + "\n")

    return say


@contextmanager
def _telemetry(directory: Path, launcher: Any) -> Iterator[Telemetry]:
    stub: Launcher = launcher
    with Telemetry(stub, composition((1, 0), (1, 0)), 1.0, directory / "telemetry") as telemetry:
        telemetry._started_s = 900.0
        yield telemetry


def test_a_clock_that_only_samples_saw_disturbed_the_run_and_is_flagged(tmp_path: Path) -> None:
    with _telemetry(tmp_path, _Beside(["host1", "host2"], _says(["host1", "host2"], 0.5))) as telemetry:
        kept = telemetry.store_run(1000.0, 1010.0, (1000.0, 1010.0), None, tmp_path / "a.parquet")
    changed = [f"the clock of {host} was changed by 0.5 s during the run" for host in ("host1", "host2")]
    assert list(kept.disturbances) == changed
    assert {f"telemetry: {text}" for text in changed} <= {*kept.flags}


def test_without_a_steady_window_the_whole_run_counts_and_says_so(tmp_path: Path) -> None:
    with _telemetry(tmp_path, _Beside(["host1", "host2"], _says(["host1", "host2"]))) as telemetry:
        kept = telemetry.store_run(1000.0, 1010.0, None, None, tmp_path / "a.parquet")
        assert kept == TelemetrySummary(
            {**kept.metrics, "energy_j": pytest.approx(2000)}, (WHOLE_RUN_FLAG,), tmp_path / "a.parquet"
        )
        later = telemetry.store_run(1011.0, 1020.0, (1012.0, 1016.0), 8.0, tmp_path / "b.parquet")
    assert later.flags == ()
    assert later.metrics["energy_per_sample_j"] == pytest.approx(100)
    times = pq.read_table(tmp_path / "b.parquet").to_pandas()["time"]
    assert (times.min(), times.max()) == (1011, 1020)


def test_a_host_whose_sampler_died_is_named_and_costs_nothing_else(tmp_path: Path) -> None:
    with _telemetry(tmp_path, _Beside(["host1", "host2"], _says(["host1"]))) as telemetry:
        kept = telemetry.store_run(1000.0, 1010.0, (1000.0, 1010.0), None, tmp_path / "a.parquet")
    assert kept.flags == ("telemetry: no samples of host2",)
    assert kept.metrics["device_power_mean_w"] == 100
    assert kept.samples_file


@pytest.mark.parametrize(("length_s", "flagged"), [(1.5, False), (10.0, True)])
def test_samples_are_missed_only_where_there_should_be_some(tmp_path: Path, length_s: float, flagged: bool) -> None:
    with _telemetry(tmp_path, _Beside(["host1", "host2"], _says([]))) as telemetry:
        kept = telemetry.store_run(2000.0, 2000.0 + length_s, None, None, tmp_path / "a.parquet")
    expected = ("telemetry: no samples of host1", "telemetry: no samples of host2") if flagged else ()
    assert kept == TelemetrySummary({}, expected)


def test_a_full_disk_loses_the_samples_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"the first")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with _telemetry(tmp_path, _Beside(["host1", "host2"], _says(["host1", "host2"]))) as telemetry:
        kept = telemetry.store_run(1000.0, 1010.0, (1000.0, 1010.0), None, tmp_path / "deep" / "a.parquet")
    assert kept.flags == ("telemetry: the samples could not be written (No space left on device)",)
    assert not kept.samples_file
    assert kept.metrics["energy_j"] == pytest.approx(2000)
    assert list((tmp_path / "deep").iterdir()) == []


def test_samples_that_no_writer_takes_cost_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise AttributeError("a pyarrow of another release")

    monkeypatch.setattr(pq, "write_table", broken)
    with _telemetry(tmp_path, _Beside(["host1"], _says(["host1"]))) as telemetry:
        kept = telemetry.store_run(1000.0, 1010.0, (1000.0, 1010.0), None, tmp_path / "a.parquet")
    assert kept.flags[-1] == "telemetry: the samples could not be written (a pyarrow of another release)"
    assert kept.metrics


def test_a_directory_that_cannot_be_made_costs_samples_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    launcher = open_launcher("local", system(), composition((1, 0)))
    with Telemetry(launcher, composition((1, 0)), 1.0, tmp_path / "file" / "telemetry") as telemetry:
        now = time.time()
        assert telemetry.store_run(now, now, None, None, tmp_path / "a.parquet") == TelemetrySummary()
    launcher.close()


def test_keeping_nothing_imports_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_telemetry, "write_samples", None)
    with _telemetry(tmp_path, _Beside(["host1"], _says(["host1"]))) as telemetry:
        assert telemetry.store_run(5000.0, 5000.5, None, None, tmp_path / "a.parquet") == TelemetrySummary()


GPUS = [f"GPU-{n}0000000-0000-0000-0000-000000000000" for n in range(4)]


def _devices(host: str = "host1") -> Callable[[Path], None]:
    """A sampler of a host whose four devices take 0, 100, 200 and 300 W."""

    def say(directory: Path) -> None:
        header = {"schema_version": "telemetry/1", "host": host, "machine": host, "network": 1, "interval_s": 1}
        read = {f"gpu:{uuid}": {"power_w": 100 * n} for n, uuid in enumerate(GPUS)}
        ticks = [{"time": 1000 + n, "monotonic": n, "read": read} for n in range(31)]
        (directory / f"{host}.jsonl").write_text(
            "\n".join(json.dumps(document) for document in (header, *ticks)) + "\n"
        )

    return say


@pytest.mark.parametrize(
    ("ran_on", "mask", "power_w"),
    [
        ((f"cuda:0 {GPUS[3]}",), "", 300),
        ((f"cuda:0 {GPUS[3]}",), GPUS[1], 300),  # what a rank reports counts more
        ((), GPUS[2], 200),  # a program that reports nothing
        ((), "3", None),
        ((), f"{GPUS[2]},3", None),
        ((), "GPU-2", None),  # CUDA takes the beginning of a UUID; here that is no identity
        ((), "0000:17:00.0", None),
        (("cuda:0",), "", None),
    ],
)
def test_telemetry_is_of_the_device_that_the_run_used_or_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran_on: tuple[str, ...], mask: str, power_w: float | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    (host,) = composition((1, 0)).hosts
    nameless = replace(composition((1, 0)), hosts=(replace(host, devices=(replace(host.devices[0], host_id=None),)),))
    stub: Any = _Beside(["host1"], _devices())
    with Telemetry(stub, nameless, 1.0, tmp_path / "telemetry") as telemetry:
        telemetry._started_s = 900.0
        kept = telemetry.store_run(1000.0, 1010.0, (1000.0, 1010.0), None, tmp_path / "a.parquet", {"host1": 1}, ran_on)
    assert kept.metrics.get("device_power_mean_w") == power_w
    assert bool(kept.flags) is (power_w is None)
    assert all("it is unknown which 1 of 4 devices on host1 the run used" in flag for flag in kept.flags)


def test_a_run_on_devices_that_is_too_short_for_samples_says_so(tmp_path: Path) -> None:
    stub: Any = _Beside(["host1"], _devices())
    with Telemetry(stub, composition((1, 0)), 1.0, tmp_path / "telemetry") as telemetry:
        kept = telemetry.store_run(1000.2, 1000.7, (1000.3, 1000.65), None, tmp_path / "a.parquet", {"host1": 1})
        on_cpus = telemetry.store_run(1001.2, 1001.7, (1001.3, 1001.65), None, tmp_path / "b.parquet", {})
    assert kept.metrics == {}
    assert kept.flags == (NO_SAMPLES_FLAG.format(0.35, 1.0),)
    assert on_cpus == TelemetrySummary()
