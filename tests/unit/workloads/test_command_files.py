"""Every workload file that is shipped: it loads, a campaign is planned with it, and its command comes out whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from campaign.common.paths import CONFIG_DIRECTORY, ROOT
from campaign.plan.campaign.load import load_named
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.run.try_workload import TrialRequest, build_trial_campaign, build_trial_run, get_only_cell
from campaign.workloads.command import CommandWorkload
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import RunContext, read_log
from campaign.workloads.protocol import Workload
from tests.unit.workloads.parsed import LOGS

NAMES = sorted(path.stem for path in (CONFIG_DIRECTORY / "workloads").glob("*.yaml"))
ENVIRONMENTS = sorted(path for path in (ROOT / "envs/workloads").rglob("*") if path.is_file())
FOREIGN = [name for name in NAMES if "kind: command" in (CONFIG_DIRECTORY / f"workloads/{name}.yaml").read_text()]


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_is_planned_with_it(name: str, tmp_path: Path) -> None:
    file = load_named(Workload, name, CONFIG_DIRECTORY / "campaign.yaml").model
    document = {
        "name": "one",
        "system": "faster",
        "configurations": [{"name": "two", "hosts": 2, "devices_per_host": 2, "device": "a100-40gb"}],
        "axes": {"workload": name, "batch": 8, "precision": list(file.precisions)},
    }
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(document))
    plan = read_plan(PlanRequest(tmp_path / "campaign.yaml", tmp_path / "results"))
    assert {cell.precision for _, cell in plan.cells} == set(file.precisions)


@pytest.mark.parametrize("name", FOREIGN)
def test_its_command_is_whole_in_every_precision(name: str, tmp_path: Path) -> None:
    loaded = load_named(Workload, name, CONFIG_DIRECTORY / "campaign.yaml")
    assert isinstance(loaded.model, CommandWorkload)
    assert loaded.model.parser is not None
    launcher = "slurm" if loaded.model.launch == "srun" else "local"
    said = set()
    for precision in loaded.model.precisions:
        campaign = build_trial_campaign(loaded, TrialRequest(batch=8, precision=precision, devices=2), None, launcher)
        step = loaded.model.step(build_trial_run(campaign, get_only_cell(campaign), tmp_path, launcher))
        assert not [word for word in step.argv if re.search(r"\{\w*\}", word)]
        said.add((step.argv, tuple(step.environment.items())))
    # A precision that changes no word would be a number under a wrong name.
    assert len(said) == len(loaded.model.precisions)


REFUSED = {
    "osu-latency": {"bandwidth-validated", "barrier", "bcast-full", "bibw", "iallreduce", "ibarrier-full", "reduce"},
    "osu-bw": {"latency-cuda", "barrier", "bcast-full", "bibw", "iallreduce", "ibarrier-full", "reduce"},
    "osu-allreduce": {"bandwidth-validated", "barrier", "bcast-full", "bibw", "reduce", "latency-cuda"},
    "ib-write-bw": {"gbits", "write-lat"},
    "nccl-allreduce": {"hypercube-4-ranks", "rccl-alltoall-8-ranks", "rccl-broadcast", "reduce-scatter-3-ranks"}
    | {"sendrecv-2-ranks"},
    "nccl-collectives": {"hypercube-4-ranks", "rccl-alltoall-8-ranks", "rccl-broadcast", "reduce-scatter-3-ranks"}
    | {"sendrecv-2-ranks", "file", "all-reduce-8-ranks"},
    "fio": set(),
    "hpl": {"mxp-8-gpus"},
}
"""Saved logs of the same suite that are of another of its programs than the file starts."""


@pytest.mark.parametrize("name", FOREIGN)
def test_output_of_another_program_of_its_suite_is_refused(name: str) -> None:
    file = load_named(Workload, name, CONFIG_DIRECTORY / "campaign.yaml").model
    assert file.log_parser is not None
    readings = {
        path.stem: read_log(file.log_parser, Log(path), RunContext()) for path in (LOGS / file.log_parser).glob("*")
    }
    good = {stem: reading for stem, reading in readings.items() if reading.status == "ok"}
    assert {stem for stem, reading in good.items() if file.find_program_mismatch(reading, file.options)} == REFUSED.get(
        name, set()
    )


def test_what_a_program_needs_is_described() -> None:
    texts = {path: path.read_text() for path in ENVIRONMENTS}
    assert len(texts) >= 5
    for path, text in texts.items():
        head = text.split("\n\n")[0] if path.suffix != ".lua" else text
        assert "nverified" in head, f"{path} does not say that it was not built"
        assert "config/workloads/" in head, f"{path} does not say what it is for"
    for path in ENVIRONMENTS:
        if path.suffix == ".yaml":
            assert yaml.safe_load(texts[path])["name"] == path.stem
