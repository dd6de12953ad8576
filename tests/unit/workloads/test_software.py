"""Software environments of foreign programs, with small scripts in place of conda, apptainer and module."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.common.paths import Results
from campaign.run.driver import Driver
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.hardware import ComposedHost, Composition
from campaign.spec.record import RecordStore
from campaign.workloads import software
from campaign.workloads.command import CommandWorkload
from campaign.workloads.software import Container, Software, compute_image_digest, describe_environment
from campaign.workloads.train import TrainWorkload
from tests.campaign_files import load
from tests.planned_leases import written_plan

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a shell script under a name on the PATH, on which is nothing else of what is looked for."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")

    def put(name: str, script: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)

    return put


def conda(name: str) -> Software:
    return Software(conda=name)


def container(image: Path, **keys: Any) -> Software:
    return Software(apptainer=Container(image=str(image), **keys))


CONDA = """\
test "$*" = "list --json -n ml" || { echo "EnvironmentLocationNotFound: Not a conda environment: $4" >&2; exit 1; }
echo '[{"name": "pytorch", "version": "1.8.1", "build_string": "py3.8_cuda11.1"}, {"name": "pip", "version": "23"}]'
"""


def test_a_conda_environment_is_its_packages(install: Install, tmp_path: Path) -> None:
    install("conda", CONDA)
    assert describe_environment(conda("ml"), tmp_path) == {
        "kind": "conda",
        "environment": "ml",
        "packages": {"pytorch": "1.8.1 py3.8_cuda11.1", "pip": "23"},
    }


def test_a_conda_that_says_something_else_leaves_the_packages_unknown(install: Install, tmp_path: Path) -> None:
    install("conda", "echo 'WARNING: update conda'")
    assert describe_environment(conda("ml"), tmp_path) == {"kind": "conda", "environment": "ml"}


APPTAINER = """\
case "$1" in
inspect) echo '{"data": {"attributes": {"labels": {"version": "21.10"}}}}' ;;
exec) test "$2" = --nv && exit 1; shift 3; echo 'INFO: starting'; echo '{"torch": "1.10.0", "apex": "0.1"}' ;;
esac
"""


def test_an_image_is_its_digest_its_labels_and_what_is_in_it(install: Install, tmp_path: Path) -> None:
    install("apptainer", APPTAINER)
    image = tmp_path / "a.sif"
    image.write_bytes(b"layers")
    found = describe_environment(container(image, binds=("/not/there:/mnt",)), tmp_path)
    assert found == {
        "kind": "apptainer",
        "image": str(image),
        "sha256": hashlib.sha256(b"layers").hexdigest(),
        "labels": {"version": "21.10"},
        "packages": {"apex": "0.1", "torch": "1.10.0"},
    }
    install("apptainer", "exit 1")
    assert set(describe_environment(container(image), tmp_path)) == {"kind", "image", "sha256"}


def test_an_image_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, kept = tmp_path / "a.sif", tmp_path / "kept"
    image.write_bytes(b"a" * 100)
    first = compute_image_digest(image, kept)
    with monkeypatch.context() as once:
        once.setattr(software.hashlib, "sha256", None)  # would be needed to read it again
        assert compute_image_digest(image, kept) == first
    image.write_bytes(b"b" * 100)
    os.utime(image, ns=(0, 12345))
    assert compute_image_digest(image, kept) == hashlib.sha256(b"b" * 100).hexdigest()
    assert [path.name for path in kept.iterdir()] == ["images.json"]


@pytest.mark.parametrize("damage", ["", "[]", '{"IMAGE": 3}', "\0", '{"IMAGE": {"state": [0, 0], "sha256": 5}}'])
def test_a_damaged_memory_of_digests_is_made_anew(damage: str, tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.write_bytes(b"x")
    (tmp_path / "images.json").write_text(damage.replace("IMAGE", str(image.resolve())))
    assert compute_image_digest(image, tmp_path) == hashlib.sha256(b"x").hexdigest()
    assert json.loads((tmp_path / "images.json").read_text())[str(image.resolve())]["sha256"] == compute_image_digest(
        image, tmp_path
    )


def test_a_virtual_environment_is_its_packages(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin/python").chmod(0o755)
    found = describe_environment(Software(venv=str(tmp_path)), tmp_path)
    assert (found["kind"], found["directory"]) == ("venv", str(tmp_path))
    assert "pydantic" in found["packages"]


MODULE = '() { test "$2" = gcc/10 || { echo "$WORDS" >&2; return $CODE; }; export LOADEDMODULES=gcc/10:zlib/1; }'


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    monkeypatch.setenv("BASH_FUNC_module%%", MODULE)
    monkeypatch.setenv("WORDS", "ERROR: Unable to locate a modulefile for 'gcc/11'")
    monkeypatch.setenv("CODE", "1")


@pytest.mark.usefixtures("module")
def test_modules_are_what_is_loaded_in_the_end(tmp_path: Path) -> None:
    found = describe_environment(Software(modules=("gcc/10",)), tmp_path)
    assert found == {"kind": "modules", "modules": ["gcc/10"], "loaded": ["gcc/10", "zlib/1"]}


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("code", ["1", "0"])  # old ones end well
def test_a_module_that_is_not_there_is_told(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE", code)
    with pytest.raises(
        LaunchError, match=r"w: the modules 'gcc/11' cannot be used on .*Unable to locate.*module avail"
    ):
        describe_environment(Software(modules=("gcc/11",)), tmp_path, "w")


def test_what_is_not_there_is_told_with_what_to_do(install: Install, tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    for wanted, message in (
        (conda("ml"), "w: conda is not on the PATH of .*; load or install it"),
        (container(image), "w: apptainer is not on the PATH of .*`program: singularity`"),
        (Software(venv=str(tmp_path)), r"w: .* is not a virtual environment .*python -m venv"),
        (Software(modules=("gcc",)), r"w: the modules 'gcc' cannot be used"),
    ):
        with pytest.raises(LaunchError, match=message):
            describe_environment(wanted, tmp_path, "w")
    install("conda", CONDA)
    install("apptainer", APPTAINER)
    for wanted, message in (
        (conda("other"), "w: the conda environment 'other' cannot be used .*Not a conda environment: other.*create it"),
        (container(image), "w: the image .*a.sif' does not exist .*build or copy it"),
        (
            Software(apptainer=Container(image="docker://a/b")),
            "whose image may change; fetch it once with `apptainer pull",
        ),
    ):
        with pytest.raises(LaunchError, match=message):
            describe_environment(wanted, tmp_path, "w")


def workload(**keys: Any) -> CommandWorkload:
    document = {"name": "p", "kind": "command", "precisions": ["fp32"], "command": ["x"], **keys}
    return CommandWorkload.model_validate(document)


def test_a_document_says_which_launcher_it_was(install: Install, tmp_path: Path) -> None:
    install("mpirun", "echo; echo 'mpirun (Open MPI) 4.1.1'; echo; echo 'Report bugs to'")
    found = workload(launch="mpirun").software_document({}, tmp_path)
    assert found == {"schema_version": "software/1", "launcher": "mpirun (Open MPI) 4.1.1"}
    with pytest.raises(LaunchError, match=r"workload 'p': horovodrun cannot be used on .*choose another `launch`"):
        workload(launch="horovodrun").software_document({}, tmp_path)


def test_options_choose_the_software(install: Install, tmp_path: Path) -> None:
    install("conda", CONDA)
    file = workload(software={"conda": "{env}"}, options={"env": "ml"})
    assert (file.software_document({}, tmp_path) or {})["environment"] == "ml"
    with pytest.raises(LaunchError, match="'newer'"):
        file.software_document({"env": "newer"}, tmp_path)


def test_what_the_host_has_anyway_is_no_environment_of_its_own(tmp_path: Path) -> None:
    train = TrainWorkload(name="t", kind="train", model="bert-nano", precisions=("fp32",))
    assert workload().software_document({}, tmp_path) is None
    assert train.software_document({}, tmp_path) is None


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[DriverResult, RecordStore]]:
    """Measures a campaign with one cell of the workload `program`, with these keys, in this process."""
    monkeypatch.setattr("campaign.run.driver._detach_from_terminal", lambda: None)

    def drive(**keys: Any) -> tuple[DriverResult, RecordStore]:
        changes = {f"workloads.program.{name}": value for name, value in keys.items()}
        axes = {"workload": ["program"], "batch": [5], "precision": ["fp32"]}
        changes |= {f"campaign.axes.{name}": value for name, value in axes.items()}
        shape = {
            "configurations": [{"name": "one"}],
            "protocol": {"repetitions": 2, "compositions": 1, "telemetry_s": None},
        }
        changes |= {f"campaign.{name}": value for name, value in shape.items()}
        campaign = load(tmp_path / "files", changes)
        results = Results(tmp_path / "results", campaign.name)
        results.directory.mkdir(parents=True, exist_ok=True)
        store = RecordStore(results.directory)
        hosts = Composition((ComposedHost("host1", 4, 8.0, ()),))
        plan = str(written_plan(campaign, results, "one.c1"))
        request = DriverRequest(plan, str(results.root), campaign.name, "one.c1", "l.1", hosts.document(), (), "a1")
        return DriverResult.from_document(Driver(request)()), store

    return drive


def test_a_record_says_what_software_its_run_had(
    install: Install, driven: Callable[..., tuple[DriverResult, RecordStore]], tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    install("conda", f'case "$1" in run) shift 4; exec "$@" ;; esac\necho asked >>{asked}\n{CONDA}')
    ended, store = driven(software={"conda": "ml"})
    assert ended.error is None
    first, second = store
    assert (first.status, first.throughput_per_s, first.software) == ("ok", 5.0, second.software)
    assert store.read_shared_document(first.software)["packages"]["pytorch"] == "1.8.1 py3.8_cuda11.1"
    assert asked.read_text() == "asked\n"  # once for all runs


def test_software_that_is_not_there_is_no_failure_of_the_program(
    driven: Callable[..., tuple[DriverResult, RecordStore]],
) -> None:
    ended, store = driven(software={"venv": "/no/such/place"})
    assert isinstance(ended.error, LaunchError)
    assert "workload 'program': '/no/such/place' is not a virtual environment" in str(ended.error)
    assert list(store) == []
    assert list((store.results / "logs").rglob("*.log")) == []  # nothing was started


def test_a_program_of_the_host_says_nothing_of_software(
    driven: Callable[..., tuple[DriverResult, RecordStore]],
) -> None:
    ended, store = driven()
    assert (ended.error, [record.software for record in store]) == (None, ["", ""])
