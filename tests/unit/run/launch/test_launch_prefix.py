"""Runs on remote devices and parts of devices: what ranks are started through, by both launchers, and what a record keeps of it."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.accelerators.nvidia import CUDA
from campaign.common.errors import ConfigError, LaunchError
from campaign.common.processes.marked import find_marked_processes
from campaign.plan.campaign.launch_prefix_rules import count_devices_to_request
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.resolve_slurm_options import count_requested_devices
from campaign.plan.matrix import expand_matrix
from campaign.plan.used_devices import UsedDevices
from campaign.run.local_launcher import LocalLauncher
from campaign.slurm.rank_placement import SlurmPlacement
from campaign.slurm.sbatch_options import build_sbatch_parameters
from campaign.slurm.srun_step import build_rank_script, build_step_argv, find_launch_error, read_rank_ends
from campaign.slurm.verify_devices import build_devices_script, compare_devices
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.launch_prefix import Launch
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd
from tests.campaign_files import load, one_cell, one_run
from tests.launch_client import LEND, asked, install
from tests.unit.run.launch.compositions import system

GOLDEN = Path(__file__).parents[3] / "golden" / "step-remote.sh"
SHOW = "import json, os; print(json.dumps(dict(os.environ), sort_keys=True), flush=True)"


def device(host: str, number: int, local: bool, **launch: Any) -> Device:
    name = f"{host if local else 'server1'}/gpu{number}"
    told = Launch(**{"device": name, "id": str(number), "server": name.partition("/")[0], **launch}) if launch else None
    return Device(name, "gpu", "cpu-rank", None, "", local, launch=told)


def mixed(*hosts: str) -> Composition:
    """On each host one device of its own through CUDA's variables, and two remote ones through a prefix, a quarter each."""
    return Composition(
        tuple(
            ComposedHost(
                host,
                4,
                8.0,
                (
                    device(host, 0, False, prefix=LEND, fraction="1/4"),
                    device(host, 1, False, prefix=LEND, fraction="1/4"),
                    device(host, 7, True, environment={"CUDA_VISIBLE_DEVICES": "{ids}", "GIVEN": "it's"}),
                ),
            )
            for host in hosts
        )
    )


class Bench:
    """A launcher with a stand-in for the layer's client on its path."""

    def __init__(self, directory: Path, composition: Composition) -> None:
        self.asked = install(directory)
        self.launcher: LocalLauncher = LocalLauncher(system(), composition)
        self.mark = f"test-{uuid.uuid4().hex}"
        self.log = directory / "run.log"
        self.directory = directory

    def run(self, step: Step, time_limit_s: float = 60.0) -> StepEnd:
        return self.launcher.run(step, self.mark, self.log, self.directory, StepLimits(time_limit_s))

    def environments(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    bench = Bench(tmp_path, mixed("host1"))
    yield bench
    bench.launcher.close()
    assert list(find_marked_processes(bench.mark)) == []


def show(ranks: int = 3, per_rank: bool = True, **environment: str) -> Step:
    return Step((sys.executable, "-S", "-c", SHOW), environment, {"host1": ranks}, per_rank)


def test_each_rank_is_started_as_its_device_needs_it_local_ones_first(bench: Bench) -> None:
    assert bench.run(show(CUDA_VISIBLE_DEVICES="the workload's", GIVEN="too")).codes == (0, 0, 0)
    ranks = sorted(bench.environments(), key=lambda environment: environment["RANK"])
    assert [rank.get("LENT_DEVICES") for rank in ranks] == [None, "1", "1"]
    assert [rank.get("LENT_PART") for rank in ranks] == [None, "0.25", "0.25"]
    # What the record says of a device counts over what a workload says.
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["7", "the workload's", "the workload's"]
    assert (ranks[0]["GIVEN"], {rank["CAMPAIGN_RUN"] for rank in ranks}) == ("it's", {bench.mark})
    assert sorted((line["rank"], line["asked"]) for line in asked(bench.asked)) == [
        ("1", "1 0.25"),
        ("2", "1 0.25"),
    ]


def test_one_program_has_one_prefix_for_all_its_devices(tmp_path: Path, bench: Bench) -> None:
    hosts = mixed("host1").hosts
    remote = Composition((replace(hosts[0], devices=hosts[0].devices[:2]),))
    alone = Bench(tmp_path, remote)
    assert alone.run(show(2, per_rank=False)).codes == (0,)
    (environment,) = alone.environments()
    assert (environment["LENT_DEVICES"], environment["CAMPAIGN_RANKS"]) == ("2", "2")
    alone.launcher.close()
    with pytest.raises(LaunchError, match=r"different command prefixes.*once per rank"):
        bench.run(show(3, per_rank=False))
    two = LocalLauncher(system(), mixed("host1", "host2"))
    step = Step(("true",), {}, {"host1": 1, "host2": 1}, per_rank=False)
    with pytest.raises(LaunchError, match="devices on host2 need"):
        two.run(step, bench.mark, bench.log, tmp_path, StepLimits(5.0))
    two.close()


def test_a_program_that_only_stands_for_devices_is_given_nothing(bench: Bench) -> None:
    step = replace(show(3, per_rank=False), takes_devices=False)
    assert bench.run(step).codes == (0,)
    assert "LENT_DEVICES" not in bench.environments()[0]
    assert not open_workload_of(bench.directory, "steps").takes_devices


def open_workload_of(directory: Path, name: str) -> Step:
    campaign = load(directory / "files")
    return campaign.workloads[name].step(one_run(directory / "run", one_cell()))


def test_a_prefix_that_is_not_there_is_the_apparatus_failure_and_is_named(tmp_path: Path) -> None:
    composition = Composition(
        (ComposedHost("host1", 4, 8.0, (device("host1", 0, False, prefix=("no-such-layer", "--")),)),)
    )
    launcher = LocalLauncher(system(), composition)
    with pytest.raises(LaunchError, match="no-such-layer: could not be started"):
        launcher.run(show(1), "m", tmp_path / "log", tmp_path, StepLimits(5.0))
    launcher.close()


def test_a_layer_that_refuses_is_the_runs_failure_with_its_words(tmp_path: Path, bench: Bench) -> None:
    wrong = device("host1", 0, False, prefix=("lend", "1", "{percent}", "--"), fraction="1/4")
    launcher = LocalLauncher(system(), Composition((ComposedHost("host1", 4, 8.0, (wrong,)),)))
    assert launcher.run(show(1), bench.mark, bench.log, tmp_path, StepLimits(5.0)).codes == (64,)
    assert "lend: 25 is no part" in bench.log.read_text()
    launcher.close()


def test_what_is_behind_a_prefix_ends_at_the_time_limit(bench: Bench) -> None:
    step = Step((sys.executable, "-S", "-c", "import time; time.sleep(60)"), {}, {"host1": 3})
    ended = bench.run(step, time_limit_s=0.5)
    assert ended.timed_out
    assert ended.codes == (-9, -9, -9)


def test_training_goes_through_a_prefix_as_processes_of_its_own(bench: Bench, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    campaign = load(tmp_path / "files", {"campaign.axes.workload": ["nano"]})
    cell = one_cell(devices=3, workload="nano", batch=1)
    cell = replace(cell, configuration=replace(cell.configuration, devices_used=2))
    run = replace(one_run(tmp_path / "run", cell), composition=mixed("host1"))
    workload = campaign.workloads["nano"]
    step = workload.step(run)
    ended = bench.launcher.run(step, bench.mark, bench.log, run.directory, StepLimits(120.0))
    outcome = workload.read(run, ended, bench.log.read_text())
    assert outcome.status == "ok", outcome
    assert outcome.throughput_per_s is not None
    # A rank beside it that needs no prefix is a process of its own, too: they meet all the same.
    assert [line["rank"] for line in asked(bench.asked)] == ["1"]


def test_variables_alone_leave_training_its_cheap_forks() -> None:
    devices = UsedDevices(mixed("host1"))
    step = Step(("true",), {}, {"host1": 1}, preload="campaign.workloads.trainer")
    (given,) = devices.build_environments(step)
    assert (given.prefix, dict(given.environment)) == ((), {"CUDA_VISIBLE_DEVICES": "7", "GIVEN": "it's"})


# ---- srun ----

TWO = {"host1": 3, "host2": 3}
TRAIN = Step(("python", "-m", "campaign.workloads.trainer.rank"), {"CAMPAIGN_SPEC": "spec.json", "GIVEN": "no"}, TWO)


def made() -> str:
    """The command as a comment, and the script that it starts."""
    placement = SlurmPlacement(system(), mixed("host1", "host2"), None).place_step(TRAIN, 29500)
    directory = Path("/shared/results/work/L1R2/runs/cell.1")
    argv = build_step_argv(
        TRAIN, StepLimits(600.0), directory / "rank.sh", Path("/shared/log"), name="cell.1", gres=None, cpus_per_task=8
    )
    return f"# {shlex.join(argv)}\n" + build_rank_script(TRAIN, placement, "0123/L1R2/cell.1", directory)


def test_golden() -> None:
    assert made() == GOLDEN.read_text(), "if the change is wanted: python -m tests.unit.run.launch.test_launch_prefix"


@pytest.mark.parametrize("there", [True, False])
def test_the_script_of_a_rank_starts_it_through_its_prefix(tmp_path: Path, bench: Bench, there: bool) -> None:
    step = Step(("sh", "-c", 'echo "$GIVEN ${LENT_PART-none} $CUDA_VISIBLE_DEVICES"'), {"GIVEN": "no"}, {"host1": 3})
    placement = SlurmPlacement(system(), mixed("host1"), None).place_step(step, 1)
    assert placement.list_programs(step) == ("sh", "lend")
    (tmp_path / "rank.sh").write_text(build_rank_script(step, placement, "m", tmp_path))
    if not there:
        (tmp_path / "bin" / "lend").unlink()
    said = []
    for local in range(3):
        slurm = {"SLURMD_NODENAME": "host1", "SLURM_LOCALID": str(local), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}
        done = subprocess.run(
            ["/bin/sh", str(tmp_path / "rank.sh"), *step.argv],
            env={**os.environ, **step.environment, **slurm, "CUDA_VISIBLE_DEVICES": "0,1"},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        said.append(done.stdout.strip())
    ends = read_rank_ends(tmp_path, 3)
    assert said[0] == "it's none 7"
    if there:
        assert said[1:] == ["no 0.25 0,1"] * 2
        assert [end.code for end in ends] == [0, 0, 0]
    else:
        error = find_launch_error(1, "", "", ends, ended_by_us=False, program=", ".join(placement.list_programs(step)))
        assert str(error) == "sh, lend: no such program on host1"


def test_devices_with_launches_are_not_named_by_the_host_as_well() -> None:
    hosts = tuple(
        replace(host, devices=tuple(replace(each, model="a100", host_id="GPU-1") for each in host.devices))
        for host in mixed("host1").hosts
    )
    placement = SlurmPlacement(system(), Composition(hosts), None).place_step(
        replace(TRAIN, ranks_by_host={"host1": 3}), 1
    )
    assert placement.devices == {}
    assert sorted(placement.device_environments) == [0, 1, 2]


# ---- what Slurm is asked for, and what its hosts are looked at for ----


def prefix_system(**keys: Any) -> SystemFile:
    rules = [
        {"device": "virtual", "of": "a100", "where": "local", "prefix": list(LEND)},
        {"device": "virtual", "where": "pool", "prefix": list(LEND)},
        {"device": "mig", "fraction": "1/7", "environment": {"CUDA_VISIBLE_DEVICES": "{ids}"},
         "ids": {"host1": [f"MIG-{number}" for number in range(14)]}},
        {"device": "half", "fraction": "1/2", "environment": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "{percent}"}},
    ]  # fmt: skip
    devices = [{"model": model, "count": 2} for model in ("a100", "virtual", "mig", "half")]
    document = {
        "name": "bench",
        "launcher": "slurm",
        "fabric": {"kind": "prefix", "launch": rules},
        "hosts": [{"name": "host1", "devices": devices}],
        "pool": [{"model": "virtual", "count": 4, "drawer": "server1"}],
        "slurm": {"gres": "gpu"},
    }
    return SystemFile.model_validate({**document, **keys})


@pytest.mark.parametrize(
    ("model", "local", "remote", "gres"),
    [("a100", 2, 0, 2), ("virtual", 2, 0, 2), ("virtual", 1, 1, 1), ("virtual", 0, 4, None), ("mig", 5, 0, 5), ("half", 3, 0, 2)],
)  # fmt: skip
def test_slurm_is_asked_for_what_is_on_its_hosts(model: str, local: int, remote: int, gres: int | None) -> None:
    site = prefix_system()
    configuration = replace(
        one_cell().configuration, device=model, devices_per_host=local + remote, local_devices_per_host=local
    )
    assert count_requested_devices(site, configuration) == (gres or 0)
    assert (count_devices_to_request(site, configuration) is None) == (model == "a100")
    parameters = build_sbatch_parameters("c", site, configuration, site.slurm, time_min=10)
    assert parameters.get("gres") == (None if gres is None else f"gpu:{gres}")


def test_remote_devices_are_not_looked_for_on_the_host_and_parts_of_one_are_one() -> None:
    site = system(devices={"cpu-rank": {"runs_on": "cuda"}})
    parts = tuple(
        replace(device("host1", 0, True, environment={"A": "b"}, fraction="1/4"), fabric_id=f"host1/gpu0/{part}")
        for part in range(4)
    )
    remote = mixed("host1").hosts[0].devices[:2]
    seen = ("device GPU-1, A100", "exit 0")

    def problem(*devices: Device, said: tuple[str, ...] = seen) -> str | None:
        composition = Composition((ComposedHost("host1", 4, 8.0, devices),))
        return compare_devices(site, composition, {"host1": said}, is_identified=True).problems.get("host1")

    assert problem(*parts, *remote) is None
    assert problem(*remote, said=("exit 0",)) is None
    assert problem(*parts, device("host1", 1, True)) == "only 1 of 2 devices found"
    only_remote = Composition((ComposedHost("host1", 4, 8.0, remote),))
    assert " ".join(CUDA.list_command) not in build_devices_script(site, only_remote)[0]


# ---- identity, and what a plan refuses ----

LAUNCH = {"device": "virtual", "prefix": list(LEND), "fraction": "1/4", "of": "cpu-rank", "where": "local"}
VIRTUAL: dict[str, Any] = {
    "system.fabric": {"kind": "prefix", "launch": [LAUNCH, {**LAUNCH, "where": "pool", "of": None}]},
    "system.hosts": [{"name": "host[1-2]", "devices": [{"model": "cpu-rank", "count": 2}, {"model": "virtual", "count": 2}]}],
    "system.pool": [{"model": "virtual", "count": 4}],
    "system.devices": {"cpu-rank": {"runs_on": "cpu"}, "virtual": {"runs_on": "cpu"}},
    "campaign.configurations": [{"devices_per_host": 2, "device": "virtual", "attach": ["local", "hybrid", "fabric"]}],
}  # fmt: skip


def cells(directory: Path, changes: dict[str, Any]) -> dict[str, str]:
    """Cell ids by attachment, of one cell each."""
    one = {"campaign.axes.batch": 1, "campaign.axes.precision": "fp32"}
    found = expand_matrix(load(directory, {**VIRTUAL, **one, **changes})).cells
    return {cell.configuration.attach: cell.id for cell in found}


@pytest.mark.parametrize(
    ("change", "measured_again"),
    [
        ({"prefix": ["env", *LEND]}, True),
        ({"environment": {"A": "b"}}, True),
        ({"fraction": "1/2"}, True),
        ({"fraction": 0.25}, False),
        ({"fraction": "5/20"}, False),
        ({"shares": 2}, True),
        ({"memory_mib": 4096}, True),
        ({"ids": {"host1": ["a", "b"]}}, False),
    ],
)
def test_what_reaches_a_run_is_identity_and_which_devices_it_meets_is_not(
    tmp_path: Path, change: dict[str, Any], measured_again: bool
) -> None:
    before = cells(tmp_path / "before", {})
    launch = [{**LAUNCH, **change}, {**LAUNCH, "where": "pool", "of": None}]
    after = cells(tmp_path / "after", {"system.fabric": {"kind": "prefix", "launch": launch}})
    assert after["fabric"] == before["fabric"]
    assert (after["local"] != before["local"], after["hybrid"] != before["hybrid"]) == (measured_again,) * 2


def planned(directory: Path, **changes: Any) -> Campaign:
    launch = changes.pop("launch", VIRTUAL["system.fabric"]["launch"])
    campaign = load(
        directory,
        {
            **VIRTUAL,
            "system.fabric": {"kind": "prefix", "launch": launch},
            "campaign.axes.workload": ["program"],
            **changes,
        },
    )
    expand_matrix(campaign)
    return campaign


def test_a_plan_refuses_one_program_on_devices_that_are_used_in_two_ways(tmp_path: Path) -> None:
    planned(tmp_path / "alike")
    other = {**LAUNCH, "where": "pool", "of": None, "fraction": "1/2"}
    with pytest.raises(
        ConfigError, match=r"'1x2-hybrid': workload 'program' is one program .* different prefixes"
    ) as caught:
        planned(tmp_path / "differ", launch=[LAUNCH, other])
    assert "`launch: per_rank`" in str(caught.value)
    planned(tmp_path / "ranks", launch=[LAUNCH, other], **{"workloads.program.launch": "per_rank"})
    tasks = {"workloads.program.launch": "srun", "system.launcher": "slurm"}
    planned(tmp_path / "tasks", launch=[LAUNCH, other], **tasks)
    with pytest.raises(ConfigError, match="different prefixes"):
        planned(tmp_path / "mpi", launch=[LAUNCH, other], **{"workloads.program.launch": "mpirun"})
    left_out = {"campaign.exclude": [{"when": "attach == 'hybrid'", "why": "not for one program"}]}
    planned(tmp_path / "left", launch=[LAUNCH, other], **left_out)
    spread = {"campaign.configurations": [{"hosts": 2, "devices_per_host": 1, "device": "virtual"}]}
    with pytest.raises(ConfigError, match="on the first host only"):
        planned(tmp_path / "spread", **spread)
    planned(tmp_path / "stands", **spread, **{"campaign.axes.workload": ["steps"]})


@pytest.mark.parametrize(("key", "value"), [("strategy", "dynamic"), ("placement", "scheduler")])
def test_slurm_settings_that_contradict_it_are_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"slurm.{key}"):
        planned(tmp_path, **{f"system.slurm.{key}": value})


if __name__ == "__main__":
    GOLDEN.write_text(made())
