"""Server of a run, which is started on one or all hosts, probed until it is ready, and ended with all that it started."""

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
_HOST_RANK = "CAMPAIGN_SERVER_RANK"  # if empty, the rank is derived from Slurm's task number
_IN_USE = re.compile(r"address already in use|EADDRINUSE|errno[ :=]*98\b", re.IGNORECASE)


class Failed(Exception):
    """Error that ends a service run.

    Args:
        problem: kind of failure.
        message: description of the failure.
        evidence: output that shows it.
        exit_code: exit code of the program that failed, if any.
    """

    def __init__(self, problem: Problem, words: str, evidence: str = "", code: int | None = None) -> None:
        super().__init__(words)
        self.problem, self.words, self.evidence, self.code = problem, words, evidence, code


class ServerProcesses:
    """Part of the server that this process runs, and on rank 0 the processes that run the parts of the other hosts.

    Args:
        specification: specification of the run.
        rank: number of this process among those of the server.
    """

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
        """URL of the server."""
        return f"http://{ADDRESS}:{self.port}"

    def process(self, command: Sequence[str], environment: Variables, **more: Any) -> Process:
        """Start a program of the workload file, with its words and variables filled in.

        Args:
            command: program and arguments.
            environment: environment variables.
            **process_options: options of `ServiceProcess`.

        Raises:
            ServiceRunError: the program cannot be started.
        """
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
        """Raise ServiceRunError if the wrapper of a program ended without starting the program."""
        marks, code, output = self._marks.get(id(process)), process.code, process.output.tail()
        if marks is not None and code is not None and not has_started(marks, output):
            words = f"{self.specification.words[0]} did not start the program, and {how(code)}"
            raise Failed("no_program", words, output, code)

    def _values(self) -> dict[str, Scalar]:
        """Return the values that can be filled in once the run has begun, by name."""
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
        """Start the server, with `launch: per_host` also on the other hosts.

        Raises ServiceRunError if the program cannot be started or its port is taken.
        """
        if self.settings.port and not self.rank and not _is_free(self.settings.port):
            raise Failed(
                "port_taken",
                f"port {self.settings.port} (server.port) is used by another process of {os.uname().nodename}; end that one, or "
                "remove the key: each run then takes a free port",
            )
        self._processes = [
            self.process(self.settings.command, self.settings.environment, pattern=self.settings.ready.log)
        ]
        self._beside = [
            Process(argv, {**self._group, **own}, self.specification.directory)
            for argv, own in (_others(self.specification) if self._group and not self.rank else ())
        ]

    def start_until_ready(self) -> float:
        """Start the server and wait until it is ready. Return the seconds that this took.

        If another process takes the free port first, the server is started again on another port.
        """
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
        """Wait until the server is ready.

        Raises ServiceRunError if it ends or is not ready at the deadline (in seconds of the monotonic clock).
        """
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
        """Raise ServiceRunError if the server has ended.

        Args:
            problem: kind of failure.
            period: end of the message, such as "before it was ready".
        """
        if (ended := self._ended()) is not None:
            self.require_start(ended)
            code = ended.code or 0
            raise Failed(problem, f"the server {how(code)} {when}", ended.output.tail(), code)

    def _ended(self) -> Process | None:
        """Return a process of the server, here or on another host, that has ended; None if all are running.

        A process with exit code 0 that left processes in the background has not ended.
        """
        for process in (*self._processes, *self._beside):
            code = process.code
            if code is not None and (code or process in self._beside or not background()):
                return process
        return None

    def stop(self) -> bool:
        """End the server and everything that it started, and return True if some of it had to be killed.

        On rank 0 this also signals the end of the run to the other processes of the server.
        """
        if not self.rank:
            self.specification.over.write_text("over\n", encoding="utf-8")
        return end(self._processes, self.settings.stop_within_s, self._beside)

    def _is_ready(self) -> bool:
        """Return True if the server passes its readiness probe."""
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
    """Fetch a page of the server, and return its HTTP status and text.

    Raises OSError or HTTPException if the server does not answer, or not in HTTP.

    Args:
        port: port of the server on 127.0.0.1.
        path: path of the page.
        timeout_s: time to wait for the answer.
    """
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=within_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def how(code: int) -> str:
    """Describe how a process ended, by its exit code or by the signal that ended it."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _is_free(port: int) -> bool:
    """Return True if no process listens on the port.

    Connections of an earlier server that are still being closed do not count.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _group(specification: Specification, rank: int) -> dict[str, str]:
    """Return the environment variables by which the processes of several hosts find each other.

    MASTER_ADDR and MASTER_PORT are set on rank 0 only. The other ranks get them from rank 0.
    """
    own = {"RANK": str(rank), "WORLD_SIZE": str(len(specification.hosts)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if rank:
        return own
    first = specification.hosts[0] if specification.slurm else ADDRESS
    return {**own, "MASTER_ADDR": first, "MASTER_PORT": str(free_port())}


def _others(specification: Specification) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command and the variables that start this program on the other hosts.

    With Slurm this is one job step for all hosts, otherwise one process per host on this machine.
    """
    argv = [sys.executable, "-m", "campaign.workloads.service_run", str(specification.path)]
    others = specification.hosts[1:]
    if not specification.slurm:
        yield from ((argv, {_HOST_RANK: str(rank)}) for rank, _ in enumerate(others, 1))
    elif others:
        nodes = [f"--nodes={len(others)}", f"--ntasks={len(others)}", f"--nodelist={','.join(others)}"]
        # The job step that runs this program holds the devices, too. The tasks derive their rank (`determine_server_rank`).
        yield ["srun", *nodes, "--ntasks-per-node=1", "--overlap", "--mem=0", "--export=ALL", *argv], {_HOST_RANK: ""}


def rank_here(specification: Specification) -> int:
    """Return the number of this process among those of the server."""
    match specification.server.launch:
        case "per_rank":
            return int(os.environ["RANK"])
        case "per_host" if (number := os.environ.get(_HOST_RANK)) is not None:
            return int(number or int(os.environ["SLURM_PROCID"]) + 1)
    return 0


_GROWING = frozenset({"counter", "histogram", "summary"})


def metrics_of(wanted: ServerMetrics, before: str, after: str) -> tuple[dict[str, float], list[str]]:
    """Compute the metrics `server_NAME` from the pages before and after the client ran.

    Returns the metrics, and a flag for each series that the page does not have. Raises ValueError if a page is not
    in the text format of Prometheus.

    Args:
        settings: page and names of the metrics.
        page_before: text of the page before the client ran.
        page_after: text of the page after it.
    """
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
    """Parse the values of the wanted series from a page in the text format of Prometheus.

    Returns, by series, True if it only grows (counters, histograms and summaries), and its values for all labels.

    Args:
        page: text of the page.
        series_by_metric: name of the series for each metric.
    """
    from prometheus_client.parser import text_string_to_metric_families

    names, found = set(wanted.values()), dict[str, tuple[bool, list[float]]]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in names:
                found.setdefault(sample.name, (family.type in _GROWING, []))[1].append(float(sample.value))
    return found
