"""Load of a host by a campaign and by other programs: from saved samples, and of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from campaign.common.processes.marked import INVOCATION_VARIABLE, MARK_VARIABLE
from campaign.observe.telemetry.host_load import list_load_flags, measure_host_loads
from campaign.observe.telemetry.samples import HostSamples, SampleSeries, TimeWindow
from campaign.observe.telemetry.sources.host import parse_processors
from campaign.observe.telemetry.sources.own_processes import OwnProcesses, parse_process_times
from campaign.spec.host_load import FOREIGN_LOAD_FLAG, HostLoad, describe_foreign_load

# A host with two cores, sampled every second: what the kernel counts in hundredths of a second.
STAT = "cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
WINDOW = TimeWindow(101.0, 104.0)


def host(
    foreign_pct: float, *, name: str = "host1", machine: str = "m", start: float = 100.0, count: int = 6
) -> HostSamples:
    """Samples of a host on which the run keeps one of two cores busy, and other programs a share of both."""
    times = tuple(start + number for number in range(count))
    series: dict[tuple[str, str], list[float]] = {}
    for number in range(count):
        busy = 500 + (100 + 2 * foreign_pct) * number
        text = STAT.format(busy=round(busy), idle=round(1000 + 200 * number - busy))
        for part, quantity, value in (*parse_processors(text, {}, 100.0), ("host", "cpu_own_s", 3.0 + number)):
            series.setdefault((part, quantity), []).append(value)
    return HostSamples(
        name, machine, 1, 1.0, {key: SampleSeries(times, tuple(values)) for key, values in series.items()}
    )


def test_an_idle_machine_has_no_foreign_load_and_a_busy_one_is_flagged() -> None:
    (idle,) = measure_host_loads([host(0)], WINDOW)
    assert idle == HostLoad(host="host1", own_s=3.0, foreign_s=0.0, own_pct=50.0, foreign_pct=0.0)
    (busy,) = measure_host_loads([host(25)], WINDOW)
    assert busy == HostLoad(host="host1", own_s=3.0, foreign_s=1.5, own_pct=50.0, foreign_pct=25.0)
    assert [list_load_flags([load]) for load in (idle, busy)] == [[], [FOREIGN_LOAD_FLAG]]


@pytest.mark.parametrize(("foreign_pct", "flags"), [(4.5, []), (5.5, [FOREIGN_LOAD_FLAG])])
def test_a_flag_needs_more_than_five_percent_of_one_host(foreign_pct: float, flags: list[str]) -> None:
    loads = measure_host_loads([host(0), host(foreign_pct, name="host2", machine="n")], WINDOW)
    assert [load.host for load in loads] == ["host1", "host2"]
    assert list_load_flags(loads) == flags


def test_one_sentence_describes_the_load_of_all_runs() -> None:
    runs = [measure_host_loads([host(share)], WINDOW) for share in (0, 4, 10)]
    assert (
        describe_foreign_load(runs)
        == "Other programs used 4 % of a host's cores in the median, and more than 5 % in 1 of 3 runs."
    )
    assert describe_foreign_load([*runs, ()]).endswith(" The load is unknown for 1 run.")
    assert describe_foreign_load([(), ()]) == ""


def test_hosts_on_one_machine_have_one_load() -> None:
    assert [load.host for load in measure_host_loads([host(0), host(0, name="host2")], WINDOW)] == ["host1"]


@pytest.mark.parametrize("samples", [host(9, count=1), host(9, start=200.0), HostSamples("host1", "m", 1, 1.0)])
def test_a_load_that_was_not_sampled_is_unknown(samples: HostSamples) -> None:
    assert measure_host_loads([samples], WINDOW) == ()


def test_a_run_whose_processes_ended_before_the_last_sample_counts_up_to_then() -> None:
    samples = host(0)
    own = samples.series["host", "cpu_own_s"]
    ended = SampleSeries(own.times[:-2], own.values[:-2])
    (load,) = measure_host_loads(
        [HostSamples("host1", "m", 1, 1.0, {**samples.series, ("host", "cpu_own_s"): ended})], TimeWindow(100.0, 106.0)
    )
    assert load.foreign_pct == 0


def test_a_name_of_a_program_with_spaces_does_not_hide_its_times() -> None:
    text = "7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 100 20 3 4 20 0 1 0"
    assert parse_process_times(text, 100.0) == (3, 1.27)


def burn_s(probe: OwnProcesses, argv: list[str], mark: str = "", invocation: str = "other") -> float:
    """Processor time that a probe sees of a program, between its start and its end."""
    (before,) = probe.read()
    process = subprocess.Popen(
        argv,
        env={**os.environ, MARK_VARIABLE: mark, INVOCATION_VARIABLE: invocation},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    (after,) = probe.read()
    process.communicate()
    return float(after[2]) - float(before[2])


BURN = "import time\nwhile time.process_time() < 0.5: pass"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
IN_A_CHILD += "; print('done', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("mark", "invocation", "share"),
    [("results/lease/run", "other", 1), ("another/lease/run", "other", 0), ("", "token", 1)],
)
def test_marked_processes_and_their_ended_children_are_own(mark: str, invocation: str, share: int) -> None:
    """The root is a process that does nothing, so that only the mark tells what belongs to the campaign."""
    with subprocess.Popen(["sleep", "60"]) as root:
        probe = OwnProcesses(root.pid, "results/", "token")
        used_s = burn_s(probe, [sys.executable, "-c", IN_A_CHILD], mark, invocation)
        root.kill()
    assert used_s == pytest.approx(0.6 * share, abs=0.15)


def test_snakemake_itself_is_own_as_the_parent_of_processes_with_its_token() -> None:
    child = f"subprocess.Popen(['sleep', '60'], env={{'{INVOCATION_VARIABLE}': 'token'}})"
    burn = f"import subprocess, sys\nchild = {child}\nsys.stdin.readline()\n{BURN}\n"
    code = f"{burn}print('done', flush=True)\nsys.stdin.readline()\nchild.kill()\nchild.wait()"
    with subprocess.Popen(["sleep", "60"]) as root:
        probe = OwnProcesses(root.pid, "results/", "token")
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            time.sleep(0.5)  # Until its child exists, which is found in the first reading.
            (before,) = probe.read()
            parent.stdin.write(b"\n")
            assert parent.stdout.readline() == b"done\n"
            (after,) = probe.read()
            parent.stdin.write(b"\n")
        root.kill()
    assert float(after[2]) - float(before[2]) == pytest.approx(0.5, abs=0.15)


def test_children_of_the_driver_are_own_without_a_mark() -> None:
    start_s = time.process_time()
    used_s = burn_s(OwnProcesses(os.getpid()), [sys.executable, "-c", IN_A_CHILD])
    assert used_s == pytest.approx(0.6 + time.process_time() - start_s, abs=0.2)


def test_the_time_of_a_process_is_kept_after_its_end() -> None:
    with subprocess.Popen(["sleep", "60"]) as root:
        probe = OwnProcesses(root.pid, "results/")
        burn_s(probe, [sys.executable, "-c", IN_A_CHILD], "results/lease/run")
        assert list(probe.read()) == []  # The time before its end is unknown.
        ((*_, kept_s),) = probe.read()
        root.kill()
    assert kept_s > 0.45
