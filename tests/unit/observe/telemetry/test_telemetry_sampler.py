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

from campaign.observe.telemetry.sampler import SHARE, SampleOutput, Turns, next_tick
from campaign.observe.telemetry.samples import SampleFile
from campaign.observe.telemetry.sources import Reading, SamplerOptions
from campaign.observe.telemetry.sources.program_gauges import machine, open_probes, started_ticks

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
        # On a busy machine not every sample has this one: what costs too much waits.
        until(lambda: out.exists() and out.read_bytes().count(b'"cpu_used_s"') > 4)
        sampler.send_signal(end)
        assert sampler.wait(5) == -end
    content = out.read_bytes()
    assert content.endswith(b"\n")
    file = SampleFile(out)
    file.read_on()
    found = file.between(0, time.time())
    assert found is not None
    assert found.machine == machine()
    series = found.of("sampler", "cpu_used_s")
    assert series is not None
    assert len(series.times) >= 3
    # Processor time, by the sample; 1 % of a core at one a second. The figure itself is in tests/benchmarks.
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
    assert "from 0.1 s on" in told.stderr


class Costly:
    """A probe that takes a known processor time."""

    def __init__(self, name: str, costs_s: float, world: dict[str, float]) -> None:
        self.name, self.costs_s, self.world, self.times = name, costs_s, world, 0

    def read(self) -> Iterable[Reading]:
        self.world["cpu"] += self.costs_s
        self.times += 1
        yield "host", self.name, 1.0


def sampled(costs_s: dict[str, float], interval_s: float, count: int) -> tuple[dict[str, int], float]:
    """How often each probe was read, and the share of a core that took."""
    world = {"now": 0.0, "cpu": 0.0}
    probes = [Costly(name, cost, world) for name, cost in costs_s.items()]
    turns = Turns(probes, clock=lambda: world["now"], cpu=lambda: world["cpu"])
    turns.sample()
    first = world["cpu"]
    for _ in range(count):
        world["now"] += interval_s
        turns.sample()
    return {probe.name: probe.times for probe in probes}, (world["cpu"] - first) / world["now"]


def test_what_is_cheap_is_read_every_time() -> None:
    assert sampled({"a": 1e-4, "b": 2e-4}, 0.1, 100)[0] == {"a": 101, "b": 101}


def test_what_is_costly_takes_turns_within_its_share() -> None:
    counts, share = sampled({"a": 1e-4, "b": 4e-3, "c": 1e-4}, 0.1, 1000)
    assert share < 0.01
    assert share == pytest.approx(SHARE, rel=0.1)
    assert min(counts.values()) > 100
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_probe_that_breaks_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def read(self) -> Iterable[Reading]:
            raise RuntimeError("no such counter")

    world = {"now": 0.0, "cpu": 0.0}
    turns = Turns([Broken(), Costly("a", 0.0, world)], clock=lambda: 0.0, cpu=lambda: 0.0)
    assert [turns.sample() for _ in range(2)] == [{"host": {"a": 1.0}}] * 2
    assert capsys.readouterr().err.count("no such counter") == 1


def test_missed_ticks_are_not_made_up_for() -> None:
    assert next_tick(10.0, 0.5, 10.0) == 10.5
    assert next_tick(10.0, 0.5, 10.6) == 11.0
    assert next_tick(10.0, 0.5, 99.99) == 100.0


def test_a_disk_that_is_full_costs_samples_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = SampleOutput(tmp_path / "h.jsonl")
    out.line({"n": 1})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:4]))
    out.line({"n": 2})
    monkeypatch.setattr(os, "write", write)
    out.line({"n": 3})
    assert (tmp_path / "h.jsonl").read_text().splitlines() == ['{"n":1}', '{"n"', '{"n":3}']


def published(directory: Path, pid: int, started: int | None, machine_id: str = "") -> None:
    document = {"started": started, "devices": {"h/0": {"power_w": 5, "memory_mib": None, "other": 1}}}
    (directory / f"{machine_id or machine()}.{pid}.json").write_text(json.dumps(document))


def test_gauges_count_while_their_process_lives(tmp_path: Path) -> None:
    (probe,) = open_probes(SamplerOptions(1.0, tmp_path))
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as program:
        published(tmp_path, program.pid, started_ticks(program.pid))
        assert list(probe.read()) == [("gauge:h/0", "power_w", 5)]
        program.kill()
    assert list(probe.read()) == []


def test_gauges_of_others_do_not_count(tmp_path: Path) -> None:
    (probe,) = open_probes(SamplerOptions(1.0, tmp_path))
    published(tmp_path, os.getpid(), (started_ticks(os.getpid()) or 0) + 1)  # its pid is another's now
    published(tmp_path, os.getpid(), started_ticks(os.getpid()), "another-machine")
    (tmp_path / f"{machine()}.{os.getppid()}.json").write_text('{"started": 1, "dev')
    (tmp_path / f"{machine()}.1.json").write_text(json.dumps({"started": started_ticks(1), "devices": [1]}))
    (tmp_path / "unrelated").write_text("")
    assert list(probe.read()) == []
    assert open_probes(SamplerOptions(1.0)) == []
