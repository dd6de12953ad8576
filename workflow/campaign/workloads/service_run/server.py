"""The server of a run: started on its host or on each, ready by its probe, ended with everything that it started."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.spec.cell import Scalar
from campaign.spec.fields import Variables
from campaign.workloads.command_template import fill, variables
from campaign.workloads.rank_launchers import free_port
from campaign.workloads.rank_marks import has_started, marking_words
from campaign.workloads.service_run.processes import LOOK_S, Process, background, end, say
from campaign.workloads.service_run.specification import Problem, ServerMetrics, Specification

ADDRESS = "127.0.0.1"
_PROBE_S = 2.0
_STARTS = 3
_HOST_RANK = "CAMPAIGN_SERVER_RANK"  # empty: by Slurm's number of the task
_IN_USE = re.compile(r"address already in use|EADDRINUSE|errno[ :=]*98\b", re.IGNORECASE)


class Failed(Exception):
    """The run goes no further."""

    def __init__(self, problem: Problem, words: str, evidence: str = "", code: int | None = None) -> None:
        super().__init__(words)
        self.problem, self.words, self.evidence, self.code = problem, words, evidence, code


class ServerProcesses:
    """This process's part of the server. rank: its number; `_beside` keep the parts of other hosts running."""

    def __init__(self, specification: Specification, rank: int = 0) -> None:
        self.specification = specification
        self.settings = specification.server
        self.rank = rank
        self.port = self.settings.port if self.settings.port and not rank else free_port(ADDRESS)
        self._group = _group(specification, rank) if self.settings.launch == "per_host" else {}
        self._processes: list[Process] = []
        self._beside: list[Process] = []
        self._marks: dict[int, Path] = {}

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    def process(self, command: Sequence[str], environment: Variables, **more: Any) -> Process:
        """Start a program of the workload file. Failed: there is none."""
        values, where = {**self.specification.values, **self._values()}, self.specification.where
        words = [fill(word, values, f"{where}: command") for word in command]
        marks = self.specification.directory / f".marks{self.rank}.{len(self._marks)}"
        # A wrapper's exit code is no proof that the program behind it has started.
        wrapper = self.specification.words and (*self.specification.words, *marking_words(marks))
        argv = [*wrapper, *(self.specification.files.get(word, word) for word in words)]
        given = {
            **self._group,
            **self.specification.variables,
            **variables(environment, f"{where}: environment", values),
        }
        try:
            process = Process(argv, given, self.specification.directory, **more)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise Failed("no_program", f"{argv[0]}: could not be started: {error}") from error
        if wrapper:
            self._marks[id(process)] = marks
        return process

    def require_start(self, process: Process) -> None:
        """Raise Failed if the wrapper of a program has ended and never started it."""
        marks, code, output = self._marks.get(id(process)), process.code, process.output.tail()
        if marks is not None and code is not None and not has_started(marks, output):
            words = f"{self.specification.words[0]} did not start the program, and {how(code)}"
            raise Failed("no_program", words, output, code)

    def _values(self) -> dict[str, Scalar]:
        variables = {**os.environ, **self._group}
        return {
            "port": self.port,
            "url": self.url,
            "result": str(self.specification.directory / self.specification.client.result),
            "rank": self.rank,
            "first_host": variables.get("MASTER_ADDR", ADDRESS),
            "first_port": variables.get("MASTER_PORT", "0"),
        }

    def start(self) -> None:
        """Start it, on all hosts where that is asked for. Failed: there is no such program, or its port is taken."""
        if self.settings.port and not self.rank and not _is_free(self.settings.port):
            raise Failed(
                "port_taken",
                f"port {self.settings.port} (server.port) is used by another process of {os.uname().nodename}; end that one, or "
                "remove the key: each run then takes a free port",
            )
        self._processes = [
            self.process(self.settings.command, self.settings.environment, wanted=self.settings.ready.log)
        ]
        self._beside = [
            Process(argv, {**self._group, **own}, self.specification.directory)
            for argv, own in (_others(self.specification) if self._group and not self.rank else ())
        ]

    def start_until_ready(self) -> float:
        """Start it and wait until it answers: seconds that it took. Where its port was taken meanwhile, it gets another one."""
        for left in reversed(range(_STARTS)):
            began = time.monotonic()
            self.start()
            say(f"started the server on {self.url}")
            try:
                self._await_ready(began + self.settings.ready_within_s)
                return time.monotonic() - began
            except Failed as failed:
                taken = failed.problem == "ended_before_ready" and _IN_USE.search(failed.evidence)
                if not (taken and left) or self.settings.port or self.settings.launch != "once":
                    raise
                say(f"port {self.port} was taken meanwhile; another one is tried")
                end(self._processes, 0.0)
                self.port = free_port(ADDRESS)
        raise AssertionError

    def _await_ready(self, until: float) -> None:
        while not self._is_ready():
            self.require("ended_before_ready", "before it was ready")
            if time.monotonic() >= until:
                within_s = self.settings.ready_within_s
                raise Failed(
                    "not_ready",
                    f"the server was not ready within {within_s:g} s (ready_within_s)",
                    self._processes[0].output.tail(),
                )
            time.sleep(LOOK_S)
        self.require("ended_before_ready", "before it was ready")

    def require(self, problem: Problem, when: str) -> None:
        """Failed: it has ended."""
        if (ended := self._ended()) is not None:
            self.require_start(ended)
            code = ended.code or 0
            raise Failed(problem, f"the server {how(code)} {when}", ended.output.tail(), code)

    def _ended(self) -> Process | None:
        """Its process here or on another host that has ended; one that went on in the background has not."""
        for process in (*self._processes, *self._beside):
            code = process.code
            if code is not None and (code or process in self._beside or not background()):
                return process
        return None

    def stop(self) -> bool:
        """End it and everything that it started; whether some of it had to be killed."""
        if not self.rank:
            self.specification.over.write_text("over\n", encoding="utf-8")
        return end(self._processes, self.settings.stop_within_s, self._beside)

    def _is_ready(self) -> bool:
        ready = self.settings.ready
        if ready.log is not None:
            return self._processes[0].output.seen
        if ready.tcp:
            try:
                socket.create_connection((ADDRESS, self.port), _PROBE_S).close()
            except OSError:
                return False
            return True
        try:
            status, _ = get(self.port, ready.http or "/", _PROBE_S)
        except (OSError, http.client.HTTPException):
            return False
        return 200 <= status < 300


def get(port: int, path: str, within_s: float) -> tuple[int, str]:
    """Status and text of a page of the server. OSError, HTTPException: it does not answer, or not in HTTP."""
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=within_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def how(code: int) -> str:
    """How a process ended, in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _is_free(port: int) -> bool:
    """Whether nobody listens on the port; connections of an earlier server that are still being closed do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _group(specification: Specification, rank: int) -> dict[str, str]:
    """Variables by which the processes of several hosts find each other; others have those of the first from it."""
    own = {"RANK": str(rank), "WORLD_SIZE": str(len(specification.hosts)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if rank:
        return own
    first = specification.hosts[0] if specification.slurm else ADDRESS
    return {**own, "MASTER_ADDR": first, "MASTER_PORT": str(free_port())}


def _others(specification: Specification) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Command and variables of this program on the other hosts: a step of Slurm for all, or a process each on this machine."""
    argv = [sys.executable, "-m", "campaign.workloads.service_run", str(specification.path)]
    others = specification.hosts[1:]
    if not specification.slurm:
        yield from ((argv, {_HOST_RANK: str(rank)}) for rank, _ in enumerate(others, 1))
    elif others:
        nodes = [f"--nodes={len(others)}", f"--ntasks={len(others)}", f"--nodelist={','.join(others)}"]
        # The step that starts this holds the devices, too. The tasks number themselves (`rank_here`).
        yield ["srun", *nodes, "--ntasks-per-node=1", "--overlap", "--mem=0", "--export=ALL", *argv], {_HOST_RANK: ""}


def rank_here(specification: Specification) -> int:
    """The number of this process among those of the server."""
    match specification.server.launch:
        case "per_rank":
            return int(os.environ["RANK"])
        case "per_host" if (number := os.environ.get(_HOST_RANK)) is not None:
            return int(number or int(os.environ["SLURM_PROCID"]) + 1)
    return 0


_GROWING = frozenset({"counter", "histogram", "summary"})


def metrics_of(wanted: ServerMetrics, before: str, after: str) -> tuple[dict[str, float], list[str]]:
    """The metrics `server_NAME`, and a flag for each that the page does not have; ValueError: it is no such page."""
    earlier, later = _series(before, wanted.read), _series(after, wanted.read)
    found, missing = {}, []
    for name, series in wanted.read.items():
        if series not in later:
            missing.append(f"the server's {wanted.path} has no {series}")
            continue
        grows, values = later[series]
        # A series with labels appears with its first event.
        found[f"server_{name}"] = sum(values) - sum(earlier.get(series, (grows, []))[1]) if grows else max(values)
    return found, missing


def _series(page: str, wanted: Mapping[str, str]) -> dict[str, tuple[bool, list[float]]]:
    """Whether each series only grows, and its values by label."""
    from prometheus_client.parser import text_string_to_metric_families

    names, found = set(wanted.values()), dict[str, tuple[bool, list[float]]]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in names:
                found.setdefault(sample.name, (family.type in _GROWING, []))[1].append(float(sample.value))
    return found
