"""A real Slurm for tests, and people to be. What cannot be had here is skipped with its reason, never passed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.common import files
from campaign.emulators.hosts.cluster_spec import Cluster, ClusterHost, ClusterSpec
from campaign.emulators.hosts.network import check_availability
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.daemons import DEBIAN_PACKAGES, list_missing_programs
from tests.cluster.cluster_project import equal_hosts
from tests.cluster.clusters_end_with_tests import clusters_end_with_this_process
from tests.cluster.fault_site import FaultSite, impatient_cluster

_REPOSITORY = Path(__file__).resolve().parents[2]
_NOBODY = 65534
_AUTOSTARTED = frozenset({"munged", "slurmd", "slurmctld", "slurmdbd", "mariadbd"})


@pytest.fixture(scope="session", autouse=True)
def clusters_end_with_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with clusters_end_with_this_process(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session")
def hosts_can_be_emulated() -> None:
    if reason := check_availability().reason:
        pytest.skip(reason)


@pytest.fixture(scope="session", params=["root", "nobody"])
def person(request: pytest.FixtureRequest) -> tuple[list[str], str]:
    """The argv that makes a command a person's, and a python that the person may start."""
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("not root")
        return [], sys.executable
    if os.geteuid() != 0:
        return [], sys.executable
    become = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    places = os.pathsep.join([str(_REPOSITORY), str(_REPOSITORY / "workflow"), *filter(None, sys.path)])
    become += ["env", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPATH={places}"]
    for python in (sys.executable, "/usr/bin/python3"):
        asked = subprocess.run(
            [*become, python, "-c", "import campaign.emulators.hosts.network, torch"], capture_output=True, check=False
        )
        if asked.returncode == 0:
            return become, python
    pytest.skip("nobody may not start a python that has the package: it is in a directory of root's")


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Installs what is missing where a machine is made for tests (CI is set, root); skips elsewhere."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own needs root")
    if missing := list_missing_programs():
        if not (os.environ.get("CI") and shutil.which("apt-get")):
            pytest.skip(
                f"not installed: {', '.join(missing)} (apt-get install {' '.join(DEBIAN_PACKAGES)}; done here when CI is set)"
            )
        # Each worker of pytest asks.
        with files.hold_lock(Path(tempfile.gettempdir()) / "campaign-tests-install.lock"):
            if list_missing_programs():
                _install()
    if reason := check_availability().reason:
        pytest.skip(reason)


def _install() -> None:
    before = _daemons()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment, stdout=subprocess.DEVNULL)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *DEBIAN_PACKAGES]
    subprocess.run(install, check=True, env=environment, stdout=subprocess.DEVNULL)
    # Packages start their daemons where init is allowed to.
    for pid in _daemons() - before:
        os.kill(pid, signal.SIGTERM)


def _daemons() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() in _AUTOSTARTED:
                found.add(int(entry.name))
        except OSError:
            continue  # ended meanwhile
    return found


@pytest.fixture(scope="session")
def cluster(slurm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four static hosts of four devices, and a dynamic one of two that can have eight; accounting is on."""
    directory = tmp_path_factory.mktemp("slurm")
    dynamic = ClusterHost(name="dynamic1", devices=2, devices_max=8, registration="dynamic", fabric_ports=2)
    try:
        yield start_cluster(directory, ClusterSpec(hosts=(*equal_hosts(4, 4), dynamic)), print)
    finally:
        stop_cluster(directory)


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of a module's own, whose daemons may be killed."""
    with impatient_cluster(tmp_path_factory.mktemp("frail"), accounting=True) as running:
        yield running


@pytest.fixture
def site(frail: Cluster, tmp_path: Path) -> Iterator[FaultSite]:
    made = FaultSite(tmp_path / "site", frail)
    try:
        yield made
    finally:
        made.repair()
