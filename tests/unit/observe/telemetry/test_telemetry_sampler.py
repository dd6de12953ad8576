"""The sampler as a process: what it leaves whatever ends it, and what it costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from campaign.observe.telemetry.sampler import (
    MAX_CPU_SHARE,
    ProbeReader,
    SampleOutput,
    choose_interval,
    compute_next_tick,
)
from campaign.observe.telemetry.samples import SampleFile
from campaign.observe.telemetry.sources import SamplerOptions, SensorReading
from campaign.observe.telemetry.sources.program_gauges import open_probes, read_machine_id, read_start_ticks

ARGV = (sys.executable, "-m", "campaign.observe.telemetry.sampler", "--host", "h", "--interval", "0.1")


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ticks(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()[1:]] if path.exists() else []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_sampled_is_there_whatever_ends_it(tmp_path: Path, end: signal.Signals) -> None:
    out = tmp_path / "h.jsonl"
    with subprocess.Popen([*ARGV, "--out", str(out)]) as sampler:
        until(lambda: out.exists() and out.read_bytes().count(b'"cpu_used_s"') > 4)
        sampler.send_signal(end)
        assert sampler.wait(5) == -end
    content = out.read_bytes()
    assert content.endswith(b"\n")
    file = SampleFile(out)
    file.read_new_lines()
    found = file.collect_samples(0, time.time())
    assert found is not None
    assert found.machine == read_machine_id()
    assert found.interval_s >= 0.1
    assert 0 < found.look_s < 0.1, "measured at the start"
    series = found.find_series("sampler", "cpu_used_s")
    assert series is not None
    assert len(series.times) >= 3
    # Processor time, by the sample; 1 % of a core at one a second.
    assert (series.values[-1] - series.values[0]) / (len(series.values) - 1) < 0.01


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    out = tmp_path / "h.jsonl"
    code = f"import subprocess, time; print(subprocess.Popen({[*ARGV, '--out', str(out)]!r}).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        sampler = psutil.Process(int(parent.stdout.readline()))
        until(lambda: len(ticks(out)) > 1)
        parent.kill()
    until(lambda: not sampler.is_running() or sampler.status() == psutil.STATUS_ZOMBIE)


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, campaign.observe.telemetry.sampler; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pandas", "pyarrow", "numpy", "torch", "pydantic", "psutil"} & set(modules)


def test_too_short_an_interval_is_refused() -> None:
    argv = [*ARGV[:-1], "0.01", "--out", "x"]
    told = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "at least 0.1 s" in told.stderr


class Costly:
    """A probe that takes a known processor time, and waits for as long again."""

    def __init__(self, part: str, costs_s: float, world: dict[str, float]) -> None:
        self.part, self.costs_s, self.world = part, costs_s, world

    def read(self) -> Iterable[SensorReading]:
        self.world["cpu"] += self.costs_s
        self.world["now"] += 2 * self.costs_s
        yield self.part, "power_w", 1.0


def in_force(asked_s: float, costs_s: dict[str, float]) -> float:
    world = {"now": 0.0, "cpu": 0.0}
    looks = ProbeReader([Costly(*each, world) for each in costs_s.items()], lambda: world["now"], lambda: world["cpu"])
    cpu_s, wall_s = looks.measure_cost_s()
    assert cpu_s == pytest.approx(sum(costs_s.values()))
    return choose_interval(asked_s, cpu_s, wall_s, looks.devices)


def test_what_is_cheap_is_read_as_often_as_asked() -> None:
    assert in_force(0.1, {"host": 1e-4, "socket:0": 2e-4}) == 0.1


@pytest.mark.parametrize("look_s", [0.003, 0.00975])
def test_eight_devices_are_read_within_a_second_or_two(look_s: float) -> None:
    """3 to 10 ms a device: with the share of one core for all of them, that was each 4 to 13 s."""
    interval_s = in_force(1.0, {"host": 2e-4, **{f"gpu:{n}": look_s for n in range(8)}})
    assert 1.0 <= interval_s <= 1.5
    assert (8 * look_s + 2e-4) / interval_s <= 9 * MAX_CPU_SHARE + 1e-9


def test_calls_that_wait_leave_half_of_the_time() -> None:
    assert choose_interval(1.0, 0.0, 0.8, 4) == 1.6


def test_counters_are_read_between_samples_where_they_need_it() -> None:
    class Counter:
        reads = 0

        def read(self) -> Iterable[SensorReading]:
            self.reads += 1
            yield "gpu:a", "pcie_sent_bytes", 1.0

        def __init__(self, every_s: float) -> None:
            self.every_s = every_s

        def max_read_interval_s(self) -> float:
            return self.every_s

    counter, wide, other = Counter(0.04), Counter(5.0), Costly("host", 0.0, {"now": 0.0, "cpu": 0.0})
    looks = ProbeReader([counter, wide, other])
    looks.read_frequent_probes(1.0)
    assert (counter.reads, wide.reads, looks.max_read_interval_s()) == (1, 0, 0.04)
    assert ProbeReader([other]).max_read_interval_s() == float("inf")


def test_samples_of_the_driver_keep_their_times() -> None:
    class Kept:
        def read(self) -> Iterable[SensorReading]:
            yield "gpu:a", "power_w", 5.0, 10.25
            yield "gpu:a", "power_w", 6.0, 10.5
            yield "gpu:a", "energy_j", 7.0

    assert ProbeReader([Kept()]).read_all() == (
        {"gpu:a": {"energy_j": 7.0}},
        {"gpu:a": {"power_w": [(10.25, 5.0), (10.5, 6.0)]}},
    )


def test_a_probe_that_breaks_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def read(self) -> Iterable[SensorReading]:
            raise RuntimeError("no such counter")

    looks = ProbeReader([Broken(), Costly("host", 0.0, {"now": 0.0, "cpu": 0.0})])
    assert [looks.read_all()[0] for _ in range(2)] == [{"host": {"power_w": 1.0}}] * 2
    assert capsys.readouterr().err.count("no such counter") == 1


def test_missed_ticks_are_not_made_up_for() -> None:
    assert compute_next_tick(10.0, 0.5, 10.0) == 10.5
    assert compute_next_tick(10.0, 0.5, 10.6) == 11.0
    assert compute_next_tick(10.0, 0.5, 99.99) == 100.0


def test_a_disk_that_is_full_costs_samples_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = SampleOutput(tmp_path / "h.jsonl")
    out.write_line({"n": 1})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:4]))
    out.write_line({"n": 2})
    monkeypatch.setattr(os, "write", write)
    out.write_line({"n": 3})
    assert (tmp_path / "h.jsonl").read_text().splitlines() == ['{"n":1}', '{"n"', '{"n":3}']


def published(directory: Path, pid: int, started: int | None, machine_id: str = "") -> None:
    document = {"started": started, "devices": {"h/0": {"power_w": 5, "memory_mib": None, "other": 1}}}
    (directory / f"{machine_id or read_machine_id()}.{pid}.json").write_text(json.dumps(document))


def test_gauges_count_while_their_process_lives(tmp_path: Path) -> None:
    (probe,) = open_probes(SamplerOptions(1.0, tmp_path))
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as program:
        published(tmp_path, program.pid, read_start_ticks(program.pid))
        assert list(probe.read()) == [("gauge:h/0", "power_w", 5)]
        program.kill()
    assert list(probe.read()) == []


def test_gauges_of_others_do_not_count(tmp_path: Path) -> None:
    (probe,) = open_probes(SamplerOptions(1.0, tmp_path))
    published(tmp_path, os.getpid(), (read_start_ticks(os.getpid()) or 0) + 1)  # its pid is another's now
    published(tmp_path, os.getpid(), read_start_ticks(os.getpid()), "another-machine")
    (tmp_path / f"{read_machine_id()}.{os.getppid()}.json").write_text('{"started": 1, "dev')
    (tmp_path / f"{read_machine_id()}.1.json").write_text(json.dumps({"started": read_start_ticks(1), "devices": [1]}))
    (tmp_path / "unrelated").write_text("")
    assert list(probe.read()) == []
    assert open_probes(SamplerOptions(1.0)) == []
