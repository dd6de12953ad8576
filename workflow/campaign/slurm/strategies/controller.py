"""Client of Slurm's controller: queries of hosts, jobs and reservations, and changes to hosts and reservations.

Every method reads the state first and changes only what differs, so that it can be repeated at any time. It waits for a
controller that does not answer. LaunchError is raised if the controller refuses; the message names who has to do what.
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
from campaign.slurm.commands import Slurm
from campaign.slurm.parse import NOTHING, expand_hosts, rows
from campaign.slurm.refusal import parse_refusal

_WIDTHS = {"NodeList": 64, "StateComplete": 128, "Gres": 256, "Reason": 256}

NODES = ("sinfo", "--Node", "--noheader", f"--Format={','.join(f'{name}:{width}' for name, width in _WIDTHS.items())}")
_STATES = "RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT"
JOBS = ("squeue", "--noheader", f"--states={_STATES}", "--format=%A|%u|%v|%T")
RESERVATIONS = ("scontrol", "show", "reservation", "--oneliner")

_USABLE = frozenset({"idle", "mixed", "allocated"})
_SILENT = "not_responding"
_UNKNOWN = "unknown"  # to a controller that has just started, until it hears from them
_BROKEN = frozenset({"down", _SILENT, "invalid_reg", "fail", "error", "future"})
_ASLEEP = frozenset({"powered_down", "powering_down", "powering_up", "power_down", "power_up"})


@dataclass(frozen=True, slots=True)
class Node:
    """A host as Slurm reports it.

    Args:
        name: name of the host.
        state: words of Slurm for its state.
        gres: generic resources with which it is registered.
        reason: reason why it is drained or down; empty if there is none.
    """

    name: str
    state: frozenset[str]
    gres: str
    reason: str

    @property
    def drained(self) -> bool:
        """True if the host is drained."""
        return "drain" in self.state

    @property
    def silent(self) -> bool:
        """True if the slurmd of the host has not answered yet, as after a resume or a restart of the controller."""
        return bool(self.state & {_SILENT, _UNKNOWN})

    @property
    def broken(self) -> bool:
        """True if no job will ever start on the host without intervention.

        A host that is powered down, or that the controller has not heard of yet, is not broken.
        """
        # One that powers up does not respond yet.
        signs = _BROKEN - {_SILENT} if self.state & _ASLEEP else _BROKEN
        return self.drained or (_UNKNOWN not in self.state and bool(self.state & signs))

    @property
    def serves(self) -> bool:
        """True if the slurmd of the host is registered and answers, also on a host that is only drained."""
        return bool(self.state & _USABLE) and not self.state & (_BROKEN | _ASLEEP)

    @property
    def words(self) -> str:
        """Description of the state, the generic resources and the reason, for messages."""
        said = f"{'+'.join(sorted(self.state))}, Gres {self.gres or 'none'}"
        return f"{said}, {self.reason}" if self.reason else said

    def devices(self, gres: str) -> int:
        """Return the number of a generic resource with which the host is registered.

        With a type (`gpu:a100`), only that type is counted.
        """
        return count_gres(self.gres, gres)


@dataclass(frozen=True, slots=True)
class HostJob:
    """A job that holds hosts, with the name of its reservation (empty for none)."""

    id: str
    user: str
    reservation: str
    state: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation of hosts, with its start as Slurm writes times and a flag that is True once it has begun."""

    name: str
    hosts: frozenset[str]
    start: str
    active: bool


def parse_nodes(text: str) -> dict[str, Node]:
    """Parse the output of NODES into hosts by name. A host of several partitions has several lines."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        if len(line) < sum(_WIDTHS.values()):
            continue  # a warning
        cells = (line[start:end].strip() for start, end in pairwise(accumulate(_WIDTHS.values(), initial=0)))
        name, state, gres, reason = ("" if cell in NOTHING else cell for cell in cells)
        found[name] = Node(name, frozenset(state.lower().split("+")), gres, reason)
    return found


def parse_jobs(text: str) -> tuple[HostJob, ...]:
    """Parse the output of JOBS into jobs."""
    return tuple(HostJob(*row) for row in rows(text, 4))


def parse_reservations(text: str) -> dict[str, Reservation]:
    """Parse the output of RESERVATIONS into reservations by name."""
    found: dict[str, Reservation] = {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if name := words.get("ReservationName"):
            hosts = frozenset(expand_hosts(words.get("Nodes", "")))
            found[name] = Reservation(name, hosts, words.get("StartTime", ""), words.get("State") == "ACTIVE")
    return found


def count_gres(text: str, gres: str) -> int:
    """Count one generic resource in Slurm's notation; 2 for `gpu` in `gpu:a100:2(S:0-1),nvme:1`."""
    name, _, kind = gres.partition(":")
    count = 0
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = entry.strip().split(":")
        if parts[0] != name or (kind and (len(parts) < 3 or parts[1] != kind)):
            continue
        count += int(parts[-1]) if parts[-1].isdigit() else 1
    return count


_FORBIDDEN = re.compile(r"invalid user id|permission denied|access.*denied|not (?:authorized|permitted)", re.I)
_TAKEN = re.compile(r"overlaps|nodes are busy|nodes busy", re.I)
_IN_USE = re.compile(r"reservation is in use|reservation.*busy", re.I)
_GONE = re.compile(r"reservation is invalid|reservation.*not found", re.I)


class Controller:
    """Client of the Slurm controller for one system.

    Args:
        slurm: runner of Slurm commands.
        say: callback for messages.
        poll_s: longest poll interval in seconds while waiting.

    Attributes: `patience_s` is the longest wait for a controller that does not answer. `grace_s` is the time that jobs of the
    lease get to end before they are cancelled. `answer_s` is the time that a resumed host gets to answer. All are in seconds.
    """

    def __init__(self, slurm: Slurm, say: Callable[[str], None], poll_s: float) -> None:
        self.slurm = slurm
        self.say = say
        self.poll_s = poll_s
        self.patience_s = 120.0
        self.grace_s = 15.0
        self.answer_s = 15.0
        self._told = ""

    # Questions

    def nodes(self, hosts: Collection[str]) -> dict[str, Node]:
        """Return the current state of hosts by name; hosts that are unknown to Slurm are left out."""
        if not hosts:
            return {}
        found = parse_nodes(self._must(*NODES, f"--nodes={','.join(hosts)}").out)
        return {host: found[host] for host in hosts if host in found}

    def nodes_heard(self, hosts: Collection[str]) -> dict[str, Node]:
        """Return the state of hosts by name after each host has had time to answer the controller."""
        for waited_s in self._looks():
            found = self.nodes(hosts)
            if waited_s > self.answer_s or not any(node.silent for node in found.values()):
                return found
        raise AssertionError  # looks have no end

    def jobs(self, hosts: Collection[str]) -> tuple[HostJob, ...]:
        """Return the jobs on these hosts."""
        return parse_jobs(self._must(*JOBS, f"--nodelist={','.join(hosts)}").out) if hosts else ()

    def reservations(self) -> dict[str, Reservation]:
        """Return all reservations by name."""
        return parse_reservations(self._must(*RESERVATIONS).out)

    # Reservations

    def reserve(self, lease_id: str, hosts: Collection[str]) -> bool:
        """Reserve hosts for the jobs of this lease from now on, even if jobs run there; return False if they were reserved
        already.

        A foreign reservation that begins later limits the end of this one; a foreign one that has begun is waited for.
        """
        name = reservation_name(lease_id)
        for _ in self._looks():
            known = self.reservations()
            if name in known and known[name].hosts == frozenset(hosts):
                return False
            others = [other for other in known.values() if other.name != name and other.hosts & frozenset(hosts)]
            answer = self._reserve(name, hosts, name in known, others)
            if answer.is_success:
                return True
            if not (_TAKEN.search(answer.last_error_line) and others):
                raise self._refused(f"{', '.join(hosts)} could not be reserved", answer)
            self._tell_once(f"waiting for {', '.join(hosts)}: reserved as {', '.join(other.name for other in others)}")
        raise AssertionError  # looks have no end

    def _reserve(
        self, name: str, hosts: Collection[str], exists: bool, others: Collection[Reservation]
    ) -> CompletedCommand:
        what = (f"ReservationName={name}", f"Nodes={','.join(hosts)}")
        if exists:
            return self._ask("scontrol", "update", *what)
        create = ("scontrol", "create", *what, f"Users={_user()}", "StartTime=now", "Flags=IGNORE_JOBS")
        answer = self._ask(*create, "Duration=infinite")
        if (
            answer.is_success
            or not _TAKEN.search(answer.last_error_line)
            or not others
            or any(other.active for other in others)
        ):
            return answer
        return self._ask(*create, f"EndTime={min(other.start for other in others)}")

    def unreserve(self, lease_id: str) -> None:
        """End the reservation of the lease, and cancel the jobs that still use it after a moment."""
        name = reservation_name(lease_id)
        for waited_s in self._looks():
            answer = self._ask("scontrol", "delete", f"ReservationName={name}")
            if answer.is_success or _GONE.search(answer.last_error_line):
                return
            if not _IN_USE.search(answer.last_error_line) or waited_s > self.grace_s + self.patience_s:
                # Where there is none it does not matter that one may not delete it.
                if name not in self.reservations():
                    return
                raise self._refused(f"the reservation {name} could not be ended", answer)
            if waited_s > self.grace_s:
                self._cancel(name)

    # Jobs

    def emptied(self, hosts: Collection[str], lease_id: str, own: bool = True) -> None:
        """Wait until no job is on the hosts. Foreign jobs are waited for.

        Args:
            hosts: names of the hosts.
            lease_id: id of the lease.
            own: True to cancel jobs of the lease after a moment; False to ignore them.
        """
        name = reservation_name(lease_id)
        for waited_s in self._looks():
            jobs = self.jobs(hosts)
            others = [job for job in jobs if job.reservation != name]
            mine = [job for job in jobs if job.reservation == name] if own else []
            if not others and not mine:
                return
            if others:
                self._tell_once(f"waiting for jobs of others on {', '.join(hosts)}: {_named(others)}")
            if mine and waited_s > self.grace_s:
                self._tell_once(f"cancelling jobs on devices that are being detached: {_named(mine)}")
                self._cancel(name)

    def _cancel(self, name: str) -> None:
        self._ask("scancel", f"--reservation={name}")

    # Hosts

    def drain(self, hosts: Collection[str], reason: str) -> None:
        """Drain hosts, so that no further jobs start there. Hosts that are drained already keep their reason."""
        if hosts:
            self._must("scontrol", "update", f"NodeName={','.join(hosts)}", "State=DRAIN", f"Reason={reason}")

    def resume(self, hosts: Collection[str]) -> None:
        """Resume drained hosts and wait until jobs can start there."""
        if hosts:
            self._must("scontrol", "update", f"NodeName={','.join(hosts)}", "State=RESUME")
            self.nodes_heard(hosts)

    def forget(self, hosts: Collection[str]) -> None:
        """Delete hosts and wait until Slurm no longer lists them."""
        for waited_s in self._looks():
            known = self.nodes(hosts)
            if not known:
                return
            # Refused for as long as a job completes there.
            answer = self._ask("scontrol", "delete", f"NodeName={','.join(known)}")
            if not answer.is_success and (waited_s > self.patience_s or _FORBIDDEN.search(answer.last_error_line)):
                raise self._refused(f"{', '.join(known)} could not be registered again", answer)

    # Words

    def _must(self, *argv: str) -> CompletedCommand:
        answer = self._ask(*argv)
        if not answer.is_success:
            raise self._refused(f"'{' '.join(argv[:3])}' failed", answer)
        return answer

    def _ask(self, *argv: str) -> CompletedCommand:
        """Run one command, and repeat it while the controller is unreachable, as during a restart."""
        for waited_s in self._looks():
            answer = self.slurm(*argv)
            away = answer.code == TIMEOUT_EXIT_CODE or (
                not answer.is_success and parse_refusal(answer.err).kind == "transient"
            )
            if not away or waited_s > self.patience_s:
                return answer
        raise AssertionError  # looks have no end

    def _refused(self, what: str, answer: CompletedCommand) -> LaunchError:
        if _FORBIDDEN.search(f"{answer.err} {answer.out}"):
            return LaunchError(
                f"{what}: {answer.last_error_line}. Slurm lets only an operator "
                "or administrator do this: have your administrator run "
                f"'sacctmgr modify user {_user()} set adminlevel=operator', or choose 'strategy: static' in the system file"
            )
        return LaunchError(f"{what}: {answer.last_error_line}")

    def _tell_once(self, message: str) -> None:
        if message != self._told:
            self._told = message
            self.say(message)

    def _looks(self) -> Iterator[float]:
        """Yield the seconds since the first poll, and wait between polls.

        The first waits are short, because most operations end at once.
        """
        started_s, pause_s = time.monotonic(), 0.1
        while True:
            yield time.monotonic() - started_s
            time.sleep(min(pause_s, self.poll_s))
            pause_s *= 1.5


def reservation_name(lease_id: str) -> str:
    """Return the reservation name of a lease, which is its id in characters that every Slurm accepts."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", lease_id)
    return plain if plain == lease_id else f"{plain}-{hash_document(lease_id, 6)}"


def _named(jobs: Collection[HostJob]) -> str:
    return ", ".join(f"{job.id} of {job.user}" for job in jobs)


def _user() -> str:
    """Return the name of the user who will own the jobs."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user need not have a name; Slurm takes the number
        return str(os.geteuid())
