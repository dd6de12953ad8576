"""The links stage with real ranks over gloo: what is measured, what is left out, and how it ends when a rank is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.common.processes.marked import list_children
from campaign.observe.links.alpha_beta_model import add_models
from campaign.observe.links.document import LinksDocument
from campaign.observe.links.external_tools import LinkTestSetup
from campaign.observe.links.lease_links import measure_links
from campaign.run.local_launcher import LocalLauncher
from campaign.spec.campaign_file import LinkMeasurement
from campaign.workloads.protocol import StepEnd
from tests.unit.run.launch.compositions import composition, system

SIZES = (8, 4096, 65536)
THREE = composition((2, 0), (0, 1))


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    """One for all: its parent loads torch once."""
    launcher = LocalLauncher(system(), THREE)
    yield launcher
    launcher.close()


def measure(launcher: LocalLauncher, at: Any, directory: Path, **keys: Any) -> LinksDocument:
    settings = {"sizes_bytes": SIZES, "repeats": 3, "warmup": 1, "budget_s": 30.0, **keys}
    given = LinkMeasurement.model_validate(settings)
    document = measure_links(
        LinkTestSetup(launcher, at, directory, "links-test", directory / "log" / "links.log"), "cpu", given
    )
    assert [path.name for path in directory.iterdir() if path.name != "log"] == []
    return LinksDocument.model_validate(document)


@pytest.fixture(scope="module")
def three(launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> LinksDocument:
    return measure(launcher, THREE, tmp_path_factory.mktemp("three"))


def test_every_pair_is_measured_in_every_way(three: LinksDocument) -> None:
    assert three.problems == ()
    assert three.left_out == ()
    assert three.matrix_size_bytes == SIZES[-1]
    assert three.matrices is not None
    for matrix in (
        three.matrices.unidirectional_gb_per_s,
        three.matrices.bidirectional_gb_per_s,
        three.matrices.latency_us,
    ):
        values = [value for row, line in enumerate(matrix) for column, value in enumerate(line) if row != column]
        assert len(values) == 6
        assert all(value is not None and value > 0 for value in values)
        assert [matrix[rank][rank] for rank in range(3)] == [None, None, None]
    # One measurement stands for both directions.
    both = three.matrices.bidirectional_gb_per_s
    assert both[0][1] == both[1][0]


def test_a_measurement_that_is_disturbed_is_repeated_and_then_discarded(tmp_path: Path) -> None:
    class Suspended:
        runs = 0

        def run(self, *_: Any) -> StepEnd:
            self.runs += 1
            return StepEnd((0, 0, 0), 0.0, 1.0, disturbance="the run was suspended and continued")

    suspended: Any = Suspended()
    found = measure(suspended, THREE, tmp_path)
    assert suspended.runs == 3
    assert found.problems == (
        "links: the run was suspended and continued, 3 times in a row; the results were discarded",
    )
    assert found.matrices is None


def test_devices_and_ways_are_named(three: LinksDocument) -> None:
    assert [(each.name, each.attach, each.fabric_id) for each in three.devices] == [
        ("host1.gpu0", "local", "host1/0"),
        ("host1.gpu1", "local", "host1/1"),
        ("host2.gpu0", "fabric", "host2/0"),
    ]
    assert three.kinds[0] == (None, "local", "fabric + network")
    assert set(three.curves) == {"local", "fabric + network"}
    assert [curve.pairs for curve in three.curves.values()] == [2, 4]
    assert all(curve.size_bytes == SIZES for curve in three.curves.values())


def test_all_reduce_is_counted_as_nccl_tests_do(three: LinksDocument) -> None:
    assert three.allreduce is not None
    assert (three.allreduce.ranks, three.allreduce.size_bytes) == (3, SIZES)
    for size, seconds, algbw, busbw in zip(
        SIZES, three.allreduce.time_s, three.allreduce.algbw_gb_per_s, three.allreduce.busbw_gb_per_s, strict=True
    ):
        assert algbw == pytest.approx(size / seconds / 1e9, rel=1e-4)
        assert busbw == pytest.approx(algbw * 4 / 3, rel=1e-4)


def test_copies_of_a_cpu_process_are_called_what_they_are(three: LinksDocument) -> None:
    assert three.host_device is not None
    assert "main memory" in three.host_device.what
    assert len([rate for rate in three.host_device.h2d_gb_per_s if rate]) == 3
    assert three.tools[0].startswith("torch ")
    assert three.tools[0].endswith(", gloo")


def test_sizes_that_do_not_fit_are_left_out_for_all_and_named(launcher: LocalLauncher, tmp_path: Path) -> None:
    found = measure(launcher, composition((2, 0)), tmp_path, budget_s=0.001)
    assert [each.size_bytes for each in found.left_out] == [4096, 65536]
    assert all("0.001 s" in each.why for each in found.left_out)
    # The smallest is measured in any case.
    assert found.matrix_size_bytes == 8
    assert found.matrices is not None
    assert found.matrices.latency_us[0][1] is not None
    assert found.allreduce is not None
    assert found.allreduce.size_bytes == (8,)
    assert add_models(found.model_dump(mode="json"))["model"]["allreduce"] is None


def test_one_device_has_its_host_only(launcher: LocalLauncher, tmp_path: Path) -> None:
    found = measure(launcher, composition((1, 0)), tmp_path)
    assert (found.matrices, found.allreduce, found.curves, found.problems) == (None, None, {}, ())
    assert found.host_device is not None
    assert found.host_device.d2h_gb_per_s[0] is not None


def test_programs_that_are_not_installed_are_named(launcher: LocalLauncher, tmp_path: Path) -> None:
    found = measure(launcher, composition((2, 0)), tmp_path, tools=("nvbandwidth", "nccl-tests"))
    assert found.problems == (
        "nvbandwidth: nvbandwidth is not installed on host1",
        "nccl-tests: all_reduce_perf is not installed on host1",
    )
    assert (found.matrices, found.host_device, found.tools, found.foreign) == (None, None, (), {})


PRINTS = """#!/bin/sh
cat <<'END'
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\\\D     0      1
     0 911.08  20.10
     1  20.30 912.00
END
"""


def test_what_an_installed_program_prints_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "log" / "p2pBandwidthLatencyTest"
    program.parent.mkdir()
    program.write_text(PRINTS.replace("\\\\", "\\"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    with closing(LocalLauncher(system(), THREE)) as launcher:
        found = measure(launcher, composition((2, 0)), tmp_path, tools=("p2pBandwidthLatencyTest",))
    (matrix,) = found.foreign["p2pBandwidthLatencyTest"]["host1"]["matrices"].values()
    assert matrix["unit"] == "gb_per_s"
    assert (matrix["values"][0][1], matrix["values"][1][0]) == (20.1, 20.3)
    assert found.tools == ("p2pBandwidthLatencyTest",)


def test_a_rank_that_is_killed_is_a_problem_and_no_hang(launcher: LocalLauncher, tmp_path: Path) -> None:
    parent = launcher._fork_server("campaign.workloads.trainer", "lease/run")._process.pid
    victim = threading.Thread(target=kill_a_rank, args=(parent, list_children() or set()))
    victim.start()
    started_s = time.monotonic()
    found = measure(launcher, composition((2, 0)), tmp_path, repeats=1000, sizes_bytes=(8, 2**20), budget_s=60.0)
    victim.join()
    assert time.monotonic() - started_s < 30  # of the 60 s that are allowed
    assert any("host1.gpu1" in problem and "SIGKILL" in problem for problem in found.problems), found.problems
    assert found.allreduce is None
    # The parent has not suffered.
    assert measure(launcher, composition((1, 0)), tmp_path).problems == ()


def kill_a_rank(parent: int, before: set[int]) -> None:
    """The second of two, when both have been at work for a moment; a fork has its parent's command line."""
    line = Path(f"/proc/{parent}/cmdline").read_bytes()
    ranks: list[int] = []
    while len(ranks) < 2:
        time.sleep(0.05)
        found = (list_children() or set()) - before
        ranks = sorted(pid for pid in found if Path(f"/proc/{pid}/cmdline").read_bytes() == line)
    time.sleep(0.5)
    os.kill(ranks[1], signal.SIGKILL)


def test_what_cannot_be_started_at_all_is_the_apparatus_failure(tmp_path: Path) -> None:
    class Refuses:
        def run(self, *_: Any) -> Any:
            raise LaunchError("no")

    with pytest.raises(LaunchError):
        measure(Refuses(), composition((2, 0)), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(("runs_on", "largest"), [("cuda", 2**28), ("cpu", 2**26)])
def test_between_processes_no_message_is_larger_than_says_something(tmp_path: Path, runs_on: Any, largest: int) -> None:
    class Looks:
        def run(self, step: Any, *_: Any) -> Any:
            assert json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text())["sizes_bytes"][-1] == largest
            raise LaunchError("seen")

    looks: Any = Looks()
    with pytest.raises(LaunchError, match="seen"):
        measure_links(LinkTestSetup(looks, THREE, tmp_path, "links-test", tmp_path / "log"), runs_on, LinkMeasurement())


def test_a_rank_without_a_valid_specification_says_so(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"hosts": ["a", "b"], "sizes_bytes": [8], "repeats": 1, "warmup": 0}')
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "CAMPAIGN_OUT": str(tmp_path)}
    files = {"CAMPAIGN_SPEC": str(tmp_path / "spec.json")}
    command = [sys.executable, "-m", "campaign.observe.links.rank"]
    ended = subprocess.run(command, env={**os.environ, **place, **files}, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert str(tmp_path / "spec.json") in ended.stderr
    assert "budget_s" in ended.stderr
