"""Hosts that are excluded from allocations because they failed, and hosts whose registration in Slurm a lease has changed.

Both are stored as small JSON files in the directory that the processes of the campaign share (`results/<campaign>/slurm`). A
host is excluded if it failed while other hosts did not. The exclusion ends when the host is healthy again, or after one hour.
A user may end it earlier by removing `excluded/<host>.json`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign.common import files
from campaign.common.errors import FabricError
from campaign.common.files import read_json, write_json
from campaign.spec.system_file import SystemFile

if TYPE_CHECKING:
    from campaign.slurm.strategies.controller import Controller

_EXCLUSION_S = 3600.0
_CHECK_INTERVAL_S = 30.0
_HEALTH_TIMEOUT_S = 60.0


def is_outage(system: SystemFile, failed_hosts: Collection[str]) -> bool:
    """Return whether all hosts of a system failed.

    The cause is then something that the hosts share, and not a fault of one host.
    """
    return set(failed_hosts) >= {name for group in system.hosts for name in group.list_names()}


@dataclass(frozen=True, slots=True)
class ExcludedHosts:
    """Excluded hosts, stored as one file per host.

    The file stays for the report when the host is used again (`used_again`).
    """

    directory: Path

    def exclude_hosts(self, hosts: Mapping[str, str], lease: str, system: SystemFile) -> dict[str, Path]:
        """Exclude hosts from further allocations, and return their files, to be removed when the hosts work again.

        If this would exclude all hosts of the system, none is excluded, and all are used again.

        Args:
            hosts: reason for the failure, by host.
            lease: id of the lease in which the hosts failed.
            system: system file with all hosts.
        """
        with files.hold_lock(self.directory / "excluded.lock"):
            before = self.read_current()
            if is_outage(system, {*before, *hosts}):
                for host in before:
                    self._readmit(host, "all hosts of the system failed, so no single host is at fault")
                return {}
            for host, reason in hosts.items():
                times = int(read_json(self.path(host)).get("times", 0)) + (host not in before)
                document = {"host": host, "why": reason, "lease": lease, "time_s": time.time(), "times": times}
                write_json(self.path(host), document)
            return {host: self.path(host) for host in hosts}

    def path(self, host: str) -> Path:
        """Return the path of an excluded host's file."""
        return self.directory / "excluded" / f"{host}.json"

    def read_all(self) -> dict[str, str]:
        """Return the reason for exclusion, by host, of all hosts that were ever excluded."""
        return {host: str(document.get("why", "unknown")) for host, document in self._read_documents().items()}

    def read_current(self) -> dict[str, str]:
        """Return the reason for exclusion, by host, of the hosts that are excluded now."""
        documents = {
            host: document for host, document in self._read_documents().items() if "used_again" not in document
        }
        return {host: str(document.get("why", "unknown")) for host, document in documents.items()}

    def readmit_hosts(self, controller: Controller, system: SystemFile, options: Sequence[str] = ()) -> dict[str, str]:
        """Readmit excluded hosts that pass a health check or have been excluded for an hour, and return the reasons by host.

        The check runs on idle hosts. It is a job with one task that runs the command which lists the devices, or `true`. A host
        that fails again after it has passed the check is excluded for the whole hour. Only one process checks at a time.

        Args:
            controller: controller that reports the state of the hosts.
            system: system file with all hosts.
            options: further options of srun, such as the partition.
        """
        now_s = time.time()
        due = {}
        for host in self.read_current():
            document = read_json(self.path(host))
            if now_s - document.get("time_s", 0.0) >= _EXCLUSION_S:
                due[host] = f"its exclusion ended after {_EXCLUSION_S / 60:g} minutes"
            elif (
                document.get("times", 1) < 2
                and now_s - document.get("checked_s", document["time_s"]) >= _CHECK_INTERVAL_S
            ):
                due[host] = ""
        readmissions = {}
        if due:
            with files.try_lock(self.directory / "excluded.lock") as has_lock:
                for host, reason in due.items() if has_lock else ():
                    if reason := reason or self._check_health(host, controller, system, options):
                        self._readmit(host, reason)
                        readmissions[host] = reason
        return readmissions

    def list_usable(self, system: SystemFile) -> tuple[str, ...]:
        """Return the hosts of the system that are not excluded, or an empty tuple if no host is excluded.

        Raises FabricError if all hosts are excluded.
        """
        reasons_by_host = self.read_current()
        if not reasons_by_host:
            return ()
        usable_hosts = tuple(
            name for group in system.hosts for name in group.list_names() if name not in reasons_by_host
        )
        if not usable_hosts:
            reasons = "; ".join(f"{host}: {reason}" for host, reason in reasons_by_host.items())
            raise FabricError(
                f"all hosts of system {system.name} are excluded ({reasons}); once they work again, remove the exclusions: "
                f"rm {self.directory}/excluded/*.json"
            )
        return usable_hosts

    def _read_documents(self) -> dict[str, dict[str, Any]]:
        return {path.stem: read_json(path) for path in sorted((self.directory / "excluded").glob("*.json"))}

    def _readmit(self, host: str, reason: str) -> None:
        write_json(
            self.path(host), {**read_json(self.path(host)), "used_again": {"time_s": time.time(), "why": reason}}
        )

    def _check_health(self, host: str, controller: Controller, system: SystemFile, options: Sequence[str]) -> str:
        """Check one host and return the evidence that it works, or an empty string if it is not idle or fails the check."""
        write_json(self.path(host), {**read_json(self.path(host)), "checked_s": time.time()})
        node = controller.query_nodes([host]).get(host)
        if node is None or node.is_broken or "idle" not in node.state:
            return ""
        srun_options = (f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--immediate=10", "--time=2", "--input=none")
        command = system.slurm.devices_command or ("true",)
        # The check must be a separate job, even if the campaign itself runs in a job.
        srun = ("env", "--unset=SLURM_JOB_ID", "--unset=SLURM_JOBID", "srun", "--job-name=campaign-health")
        answer = controller.slurm(*srun, *srun_options, *options, *command, timeout_s=_HEALTH_TIMEOUT_S)
        return "Slurm reports it as idle, and a test job ran on it" if answer.is_success else ""


@dataclass(frozen=True, slots=True)
class ChangedHosts:
    """Hosts whose registration in Slurm a lease has changed and that must still be restored, stored as one file per lease."""

    directory: Path

    def add(self, lease_id: str, hosts: Collection[str]) -> None:
        """Record hosts that a lease is about to change; call it before the first change."""
        write_json(self._path(lease_id), {"hosts": sorted({*self.read().get(lease_id, ()), *hosts})})

    def read(self) -> dict[str, tuple[str, ...]]:
        """Return the changed hosts by lease id."""
        documents = {path.stem: read_json(path) for path in sorted((self.directory / "changed").glob("*.json"))}
        # A document is empty if its hosts were restored in the meantime.
        return {lease_id: tuple(document["hosts"]) for lease_id, document in documents.items() if document}

    def remove(self, lease_id: str) -> None:
        """Remove the file of a lease; call it after its hosts are restored."""
        self._path(lease_id).unlink(missing_ok=True)

    def _path(self, lease_id: str) -> Path:
        return self.directory / "changed" / f"{lease_id}.json"
