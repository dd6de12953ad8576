"""Client of Slurm's controller: queries of hosts, jobs and reservations, and changes to hosts and reservations.

Every method reads the state first and changes only what differs, so it can be repeated at any time. It waits for a controller
that does not answer. If the controller refuses, LaunchError is raised with the remedy.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from campaign.common.errors import LaunchError
from campaign.common.files import hash_document
from campaign.common.processes.command import TIMEOUT_EXIT_CODE, CompletedCommand
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.parse import EMPTY_WORDS, expand_hosts, split_rows
from campaign.slurm.refusal import parse_refusal

_WIDTHS = {"NodeList": 64, "StateComplete": 128, "Gres": 256, "Reason": 256}

NODES_COMMAND = (
    "sinfo",
    "--Node",
    "--noheader",
    f"--Format={','.join(f'{name}:{width}' for name, width in _WIDTHS.items())}",
)
_STATES = "RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT"
JOBS_COMMAND = ("squeue", "--noheader", f"--states={_STATES}", "--format=%A|%u|%v|%T")
RESERVATIONS_COMMAND = ("scontrol", "show", "reservation", "--oneliner")

_USABLE_STATES = frozenset({"idle", "mixed", "allocated"})
_NOT_RESPONDING = "not_responding"
_UNKNOWN = "unknown"  # state of a host until it has responded to a restarted controller
_BROKEN_STATES = frozenset({"down", _NOT_RESPONDING, "invalid_reg", "fail", "error", "future"})
_POWER_STATES = frozenset({"powered_down", "powering_down", "powering_up", "power_down", "power_up"})


@dataclass(frozen=True, slots=True)
class Node:
    """A host as Slurm reports it.

    Args:
        name: name of the host.
        state: Slurm's words for its state.
        gres: generic resources with which it is registered.
        reason: reason why it is drained or down; empty if there is none.
    """

    name: str
    state: frozenset[str]
    gres: str
    reason: str

    @property
    def is_drained(self) -> bool:
        """True if the host is drained."""
        return "drain" in self.state

    @property
    def is_silent(self) -> bool:
        """True if the slurmd of the host has not answered yet, as after a resume or a restart of the controller."""
        return bool(self.state & {_NOT_RESPONDING, _UNKNOWN})

    @property
    def is_broken(self) -> bool:
        """True if no job will ever start on the host without intervention.

        A host that is powered down, or that has not yet responded to a restarted controller, is not broken.
        """
        # A host that powers up does not respond yet.
        signs = _BROKEN_STATES - {_NOT_RESPONDING} if self.state & _POWER_STATES else _BROKEN_STATES
        return self.is_drained or (_UNKNOWN not in self.state and bool(self.state & signs))

    @property
    def is_serving(self) -> bool:
        """True if the slurmd of the host is registered and answers, even if the host is drained."""
        return bool(self.state & _USABLE_STATES) and not self.state & (_BROKEN_STATES | _POWER_STATES)

    @property
    def description(self) -> str:
        """Description of the state, the generic resources and the reason, for messages."""
        state_text = f"{'+'.join(sorted(self.state))}, Gres {self.gres or 'none'}"
        return f"{state_text}, {self.reason}" if self.reason else state_text

    def count_devices(self, gres: str) -> int:
        """Return how many devices of a generic resource the host is registered with.

        With a type (`gpu:a100`), only that type is counted.
        """
        return count_gres(self.gres, gres)


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job that occupies hosts, with the name of its reservation (empty for none)."""

    id: str
    user: str
    reservation: str
    state: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation of hosts.

    Args:
        name: name of the reservation.
        hosts: reserved hosts.
        start: start time in Slurm's format.
        active: True if the reservation has begun.
    """

    name: str
    hosts: frozenset[str]
    start: str
    active: bool


def parse_nodes(text: str) -> dict[str, Node]:
    """Parse the output of NODES_COMMAND into hosts by name. A host in several partitions has several lines."""
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        if len(line) < sum(_WIDTHS.values()):
            continue  # a warning
        cells = (line[start:end].strip() for start, end in pairwise(accumulate(_WIDTHS.values(), initial=0)))
        name, state, gres, reason = ("" if cell in EMPTY_WORDS else cell for cell in cells)
        nodes[name] = Node(name, frozenset(state.lower().split("+")), gres, reason)
    return nodes


def parse_jobs(text: str) -> tuple[HostJob, ...]:
    """Parse the output of JOBS_COMMAND into jobs."""
    return tuple(HostJob(*row) for row in split_rows(text, 4))


def parse_reservations(text: str) -> dict[str, Reservation]:
    """Parse the output of RESERVATIONS_COMMAND into reservations by name."""
    reservations: dict[str, Reservation] = {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if name := words.get("ReservationName"):
            hosts = frozenset(expand_hosts(words.get("Nodes", "")))
            reservations[name] = Reservation(name, hosts, words.get("StartTime", ""), words.get("State") == "ACTIVE")
    return reservations


def count_gres(text: str, gres: str) -> int:
    """Count the devices of one generic resource in Slurm's notation, e.g. 2 for `gpu` in `gpu:a100:2(S:0-1),nvme:1`."""
    name, _, kind = gres.partition(":")
    count = 0
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = entry.strip().split(":")
        if parts[0] != name or (kind and (len(parts) < 3 or parts[1] != kind)):
            continue
        count += int(parts[-1]) if parts[-1].isdigit() else 1
    return count


_PERMISSION_DENIED = re.compile(r"invalid user id|permission denied|access.*denied|not (?:authorized|permitted)", re.I)
_HOSTS_BUSY = re.compile(r"overlaps|nodes are busy|nodes busy", re.I)
_RESERVATION_IN_USE = re.compile(r"reservation is in use|reservation.*busy", re.I)
_NO_RESERVATION = re.compile(r"reservation is invalid|reservation.*not found", re.I)


class Controller:
    """Client of the Slurm controller for one system.

    Args:
        slurm: runner of Slurm commands.
        report: callback for messages.
        poll_s: longest poll interval in seconds while waiting.

    Attributes:
        max_unreachable_s: longest wait in seconds for a controller that does not answer.
        grace_s: time in seconds that jobs of the lease get to end before they are cancelled.
        answer_s: time in seconds that a resumed host gets to answer.
    """

    def __init__(self, slurm: SlurmCommands, report: Callable[[str], None], poll_s: float) -> None:
        self.slurm = slurm
        self.report = report
        self.poll_s = poll_s
        self.max_unreachable_s = 120.0
        self.grace_s = 15.0
        self.answer_s = 15.0
        self._last_message = ""

    # Queries

    def query_nodes(self, hosts: Collection[str]) -> dict[str, Node]:
        """Return the current state of hosts by name. Hosts that are unknown to Slurm are left out."""
        if not hosts:
            return {}
        nodes = parse_nodes(self._run_or_raise(*NODES_COMMAND, f"--nodes={','.join(hosts)}").out)
        return {host: nodes[host] for host in hosts if host in nodes}

    def query_settled_nodes(self, hosts: Collection[str]) -> dict[str, Node]:
        """Return the state of hosts by name after each host has had time to answer the controller."""
        for waited_s in self._poll():
            nodes = self.query_nodes(hosts)
            if waited_s > self.answer_s or not any(node.is_silent for node in nodes.values()):
                return nodes
        raise AssertionError  # `_poll` never ends

    def query_jobs(self, hosts: Collection[str]) -> tuple[HostJob, ...]:
        """Return the jobs on these hosts."""
        return parse_jobs(self._run_or_raise(*JOBS_COMMAND, f"--nodelist={','.join(hosts)}").out) if hosts else ()

    def query_reservations(self) -> dict[str, Reservation]:
        """Return all reservations by name."""
        return parse_reservations(self._run_or_raise(*RESERVATIONS_COMMAND).out)

    # Reservations

    def reserve_hosts(self, lease_id: str, hosts: Collection[str]) -> bool:
        """Reserve hosts for the jobs of this lease from now on, and return False if they were reserved already.

        Hosts are reserved even if jobs run on them. If another reservation begins later, this one ends before it. If another
        reservation has begun, the call waits for its end.
        """
        name = make_reservation_name(lease_id)
        for _ in self._poll():
            reservations = self.query_reservations()
            if name in reservations and reservations[name].hosts == frozenset(hosts):
                return False
            overlaps = [
                reservation
                for reservation in reservations.values()
                if reservation.name != name and reservation.hosts & frozenset(hosts)
            ]
            answer = self._request_reservation(name, hosts, name in reservations, overlaps)
            if answer.is_success:
                return True
            if not (_HOSTS_BUSY.search(answer.last_error_line) and overlaps):
                raise self._refusal_error(f"{', '.join(hosts)} could not be reserved", answer)
            self._report_once(
                f"waiting for {', '.join(hosts)} until other reservations end: "
                f"{', '.join(reservation.name for reservation in overlaps)}"
            )
        raise AssertionError  # `_poll` never ends

    def _request_reservation(
        self, name: str, hosts: Collection[str], exists: bool, overlaps: Collection[Reservation]
    ) -> CompletedCommand:
        settings = (f"ReservationName={name}", f"Nodes={','.join(hosts)}")
        if exists:
            return self._run_command("scontrol", "update", *settings)
        create = ("scontrol", "create", *settings, f"Users={_current_user()}", "StartTime=now", "Flags=IGNORE_JOBS")
        answer = self._run_command(*create, "Duration=infinite")
        if (
            answer.is_success
            or not _HOSTS_BUSY.search(answer.last_error_line)
            or not overlaps
            or any(reservation.active for reservation in overlaps)
        ):
            return answer
        return self._run_command(*create, f"EndTime={min(reservation.start for reservation in overlaps)}")

    def unreserve(self, lease_id: str) -> None:
        """End the reservation of the lease, and cancel the jobs that still use it after `grace_s`."""
        name = make_reservation_name(lease_id)
        for waited_s in self._poll():
            answer = self._run_command("scontrol", "delete", f"ReservationName={name}")
            if answer.is_success or _NO_RESERVATION.search(answer.last_error_line):
                return
            if (
                not _RESERVATION_IN_USE.search(answer.last_error_line)
                or waited_s > self.grace_s + self.max_unreachable_s
            ):
                # Slurm may refuse the deletion of a reservation that does not exist, which is not an error.
                if name not in self.query_reservations():
                    return
                raise self._refusal_error(f"the reservation {name} could not be ended", answer)
            if waited_s > self.grace_s:
                self._cancel_jobs(name)

    # Jobs

    def wait_until_empty(self, hosts: Collection[str], lease_id: str, cancel_lease_jobs: bool = True) -> None:
        """Wait until no job is on the hosts, including the jobs of others.

        Args:
            hosts: names of the hosts.
            lease_id: id of the lease.
            cancel_lease_jobs: True to cancel jobs of the lease after `grace_s`; False to ignore them.
        """
        name = make_reservation_name(lease_id)
        for waited_s in self._poll():
            jobs = self.query_jobs(hosts)
            foreign_jobs = [job for job in jobs if job.reservation != name]
            lease_jobs = [job for job in jobs if job.reservation == name] if cancel_lease_jobs else []
            if not foreign_jobs and not lease_jobs:
                return
            if foreign_jobs:
                self._report_once(f"waiting for other jobs on {', '.join(hosts)}: {_format_jobs(foreign_jobs)}")
            if lease_jobs and waited_s > self.grace_s:
                self._report_once(f"cancelling jobs on devices that are being detached: {_format_jobs(lease_jobs)}")
                self._cancel_jobs(name)

    def _cancel_jobs(self, name: str) -> None:
        self._run_command("scancel", f"--reservation={name}")

    # Hosts

    def drain_hosts(self, hosts: Collection[str], reason: str) -> None:
        """Drain hosts, so that no further jobs start there. Hosts that are drained already keep their reason."""
        if hosts:
            self._run_or_raise("scontrol", "update", f"NodeName={','.join(hosts)}", "State=DRAIN", f"Reason={reason}")

    def resume_hosts(self, hosts: Collection[str]) -> None:
        """Resume drained hosts and wait until jobs can start there."""
        if hosts:
            self._run_or_raise("scontrol", "update", f"NodeName={','.join(hosts)}", "State=RESUME")
            self.query_settled_nodes(hosts)

    def delete_hosts(self, hosts: Collection[str]) -> None:
        """Delete hosts and wait until Slurm no longer lists them."""
        for waited_s in self._poll():
            nodes = self.query_nodes(hosts)
            if not nodes:
                return
            # Slurm refuses the deletion while a job completes on the host.
            answer = self._run_command("scontrol", "delete", f"NodeName={','.join(nodes)}")
            if not answer.is_success and (
                waited_s > self.max_unreachable_s or _PERMISSION_DENIED.search(answer.last_error_line)
            ):
                raise self._refusal_error(f"{', '.join(nodes)} could not be registered again", answer)

    # Commands and messages

    def _run_or_raise(self, *argv: str) -> CompletedCommand:
        answer = self._run_command(*argv)
        if not answer.is_success:
            raise self._refusal_error(f"'{' '.join(argv[:3])}' failed", answer)
        return answer

    def _run_command(self, *argv: str) -> CompletedCommand:
        """Run one command, and repeat it while the controller is unreachable, as during a restart."""
        for waited_s in self._poll():
            answer = self.slurm(*argv)
            is_unreachable = answer.code == TIMEOUT_EXIT_CODE or (
                not answer.is_success and parse_refusal(answer.err).kind == "transient"
            )
            if not is_unreachable or waited_s > self.max_unreachable_s:
                return answer
        raise AssertionError  # `_poll` never ends

    def _refusal_error(self, failure: str, answer: CompletedCommand) -> LaunchError:
        if _PERMISSION_DENIED.search(f"{answer.err} {answer.out}"):
            return LaunchError(
                f"{failure}: {answer.last_error_line}. Slurm allows this only to operators and administrators; ask your "
                f"administrator to run 'sacctmgr modify user {_current_user()} set adminlevel=operator', or set "
                "'strategy: static' in the system file"
            )
        return LaunchError(f"{failure}: {answer.last_error_line}")

    def _report_once(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            self.report(message)

    def _poll(self) -> Iterator[float]:
        """Yield the seconds since the first poll, and wait between polls.

        The first waits are short, because most operations end at once.
        """
        started_s, pause_s = time.monotonic(), 0.1
        while True:
            yield time.monotonic() - started_s
            time.sleep(min(pause_s, self.poll_s))
            pause_s *= 1.5


def make_reservation_name(lease_id: str) -> str:
    """Return the reservation name of a lease, which is its id in characters that every Slurm accepts."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", lease_id)
    return plain if plain == lease_id else f"{plain}-{hash_document(lease_id, 6)}"


def _format_jobs(jobs: Collection[HostJob]) -> str:
    return ", ".join(f"{job.id} of {job.user}" for job in jobs)


def _current_user() -> str:
    """Return the name of the user who will own the jobs."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # A user in a container may have no name. Slurm also accepts the number.
        return str(os.geteuid())
