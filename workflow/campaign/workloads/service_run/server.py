"""Server of a service run: started on one or all hosts, probed until it is ready, and ended with everything it started."""

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
from campaign.workloads.command_template import fill_template, resolve_variables
from campaign.workloads.rank_launchers import find_free_port
from campaign.workloads.rank_marks import build_marking_words, has_program_started
from campaign.workloads.service_run.processes import (
    POLL_INTERVAL_S,
    ServiceProcess,
    end_processes,
    find_adopted_processes,
    log_message,
)
from campaign.workloads.service_run.specification import ServerMetrics, ServiceProblem, ServiceRunSpecification

ADDRESS = "127.0.0.1"
_PROBE_TIMEOUT_S = 2.0
_MAX_STARTS = 3
_HOST_RANK_VARIABLE = "CAMPAIGN_SERVER_RANK"  # if empty, the rank is derived from Slurm's task number
_ADDRESS_IN_USE = re.compile(r"address already in use|EADDRINUSE|errno[ :=]*98\b", re.IGNORECASE)


class ServiceRunError(Exception):
    """Error that makes a service run fail."""

    def __init__(self, problem: ServiceProblem, message: str, evidence: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.problem, self.message, self.evidence, self.exit_code = problem, message, evidence, exit_code


class ServerProcesses:
    """Part of the server that runs on this host and, on rank 0, the processes that run its parts on the other hosts.

    Args:
        specification: specification of the run.
        rank: number of this process among the processes of the server.
    """

    def __init__(self, specification: ServiceRunSpecification, rank: int = 0) -> None:
        self.specification = specification
        self.settings = specification.server
        self.rank = rank
        self.port = self.settings.port if self.settings.port and not rank else find_free_port(ADDRESS)
        self._group_variables = (
            _build_group_variables(specification, rank) if self.settings.launch == "per_host" else {}
        )
        self._processes: list[ServiceProcess] = []
        self._other_host_processes: list[ServiceProcess] = []
        self._mark_directories: dict[int, Path] = {}

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"http://{ADDRESS}:{self.port}"

    def start_program(self, command: Sequence[str], environment: Variables, **process_options: Any) -> ServiceProcess:
        """Start a program from the workload file, with names in braces filled in and its environment variables set.

        Args:
            command: program and arguments.
            environment: environment variables.
            **process_options: options of `ServiceProcess`.

        Raises:
            ServiceRunError: the program cannot be started.
        """
        values, location = {**self.specification.values, **self._collect_template_values()}, self.specification.where
        command_words = [fill_template(word, values, f"{location}: command") for word in command]
        mark_directory = self.specification.directory / f".marks{self.rank}.{len(self._mark_directories)}"
        # A wrapper's exit code is no proof that the program behind it has started.
        wrapper = self.specification.words and (*self.specification.words, *build_marking_words(mark_directory))
        argv = [*wrapper, *(self.specification.files.get(word, word) for word in command_words)]
        process_environment = {
            **self._group_variables,
            **self.specification.variables,
            **resolve_variables(environment, f"{location}: environment", values),
        }
        try:
            process = ServiceProcess(argv, process_environment, self.specification.directory, **process_options)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise ServiceRunError("no_program", f"{argv[0]} could not be started: {error}") from error
        if wrapper:
            self._mark_directories[id(process)] = mark_directory
        return process

    def require_program_start(self, process: ServiceProcess) -> None:
        """Raise ServiceRunError if the wrapper of a program ended without having started the program."""
        mark_directory, exit_code, output = (
            self._mark_directories.get(id(process)),
            process.exit_code,
            process.output.read_tail(),
        )
        if mark_directory is not None and exit_code is not None and not has_program_started(mark_directory, output):
            message = f"{self.specification.words[0]} did not start the program and {describe_exit(exit_code)}"
            raise ServiceRunError("no_program", message, output, exit_code)

    def _collect_template_values(self) -> dict[str, Scalar]:
        """Collect the values that are known once the run has begun, by their names in braces."""
        environment = {**os.environ, **self._group_variables}
        return {
            "port": self.port,
            "url": self.url,
            "result": str(self.specification.directory / self.specification.client.result),
            "rank": self.rank,
            "first_host": environment.get("MASTER_ADDR", ADDRESS),
            "first_port": environment.get("MASTER_PORT", "0"),
        }

    def start_server(self) -> None:
        """Start the server on this host and, with `launch: per_host`, on all other hosts.

        Raises ServiceRunError if the program cannot be started or its port is taken.
        """
        if self.settings.port and not self.rank and not _is_port_free(self.settings.port):
            raise ServiceRunError(
                "port_taken",
                f"port {self.settings.port} (server.port) is in use by another process on {os.uname().nodename}; end that process, "
                "or remove the key so that each run uses a free port",
            )
        self._processes = [
            self.start_program(self.settings.command, self.settings.environment, pattern=self.settings.ready.log)
        ]
        self._other_host_processes = [
            ServiceProcess(argv, {**self._group_variables, **host_variables}, self.specification.directory)
            for argv, host_variables in (
                _build_host_commands(self.specification) if self._group_variables and not self.rank else ()
            )
        ]

    def start_until_ready(self) -> float:
        """Start the server, wait until it is ready, and return how many seconds this took.

        If another process takes the chosen free port first, the server is started again on a different port.
        """
        for remaining_starts in reversed(range(_MAX_STARTS)):
            start_s = time.monotonic()
            self.start_server()
            log_message(f"started the server on {self.url}")
            try:
                self._await_ready(start_s + self.settings.ready_within_s)
                return time.monotonic() - start_s
            except ServiceRunError as error:
                is_port_taken = error.problem == "ended_before_ready" and _ADDRESS_IN_USE.search(error.evidence)
                if not (is_port_taken and remaining_starts) or self.settings.port or self.settings.launch != "once":
                    raise
                log_message(f"port {self.port} is now in use by another process; trying another port")
                end_processes(self._processes, 0.0)
                self.port = find_free_port(ADDRESS)
        raise AssertionError

    def _await_ready(self, deadline: float) -> None:
        """Wait until the server is ready.

        Raises ServiceRunError if the server ends, or is not ready at the deadline (in seconds of the monotonic clock).
        """
        while not self._is_ready():
            self.require_running("ended_before_ready", "before it was ready")
            if time.monotonic() >= deadline:
                within_s = self.settings.ready_within_s
                raise ServiceRunError(
                    "not_ready",
                    f"the server was not ready within {within_s:g} s (ready_within_s)",
                    self._processes[0].output.read_tail(),
                )
            time.sleep(POLL_INTERVAL_S)
        self.require_running("ended_before_ready", "before it was ready")

    def require_running(self, problem: ServiceProblem, period: str) -> None:
        """Raise ServiceRunError if the server has ended.

        Args:
            problem: kind of failure to report.
            period: period of the failure for the end of the message, such as "before it was ready".
        """
        if (ended_process := self._find_ended_process()) is not None:
            self.require_program_start(ended_process)
            exit_code = ended_process.exit_code or 0
            raise ServiceRunError(
                problem, f"the server {describe_exit(exit_code)} {period}", ended_process.output.read_tail(), exit_code
            )

    def _find_ended_process(self) -> ServiceProcess | None:
        """Return a process of the server, on this or another host, that has ended, or None if all are running.

        A process that ended with exit code 0 but left processes in the background counts as running.
        """
        for process in (*self._processes, *self._other_host_processes):
            exit_code = process.exit_code
            if exit_code is not None and (
                exit_code or process in self._other_host_processes or not find_adopted_processes()
            ):
                return process
        return None

    def stop_server(self) -> bool:
        """End the server and everything that it started. Returns True if some processes had to be killed.

        On rank 0, this also tells the other processes of the server that the run is over.
        """
        if not self.rank:
            self.specification.run_end_file.write_text("over\n", encoding="utf-8")
        return end_processes(self._processes, self.settings.stop_within_s, self._other_host_processes)

    def _is_ready(self) -> bool:
        """Return True if the configured readiness probe shows that the server is ready."""
        ready = self.settings.ready
        if ready.log is not None:
            return self._processes[0].output.has_matched
        if ready.tcp:
            try:
                socket.create_connection((ADDRESS, self.port), _PROBE_TIMEOUT_S).close()
            except OSError:
                return False
            return True
        try:
            status, _ = fetch_page(self.port, ready.http or "/", _PROBE_TIMEOUT_S)
        except (OSError, http.client.HTTPException):
            return False
        return 200 <= status < 300


def fetch_page(port: int, path: str, timeout_s: float) -> tuple[int, str]:
    """Fetch a page from the server over HTTP, and return the status code and the text.

    Raises OSError if the server does not answer, or HTTPException if its answer is not valid HTTP.
    """
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def describe_exit(exit_code: int) -> str:
    """Describe how a process ended, by its exit code or by the signal that ended it."""
    return f"was ended by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _is_port_free(port: int) -> bool:
    """Return True if no process is listening on the port.

    Connections of an earlier server that are still being closed do not count.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _build_group_variables(specification: ServiceRunSpecification, rank: int) -> dict[str, str]:
    """Build the environment variables by which the server's processes on several hosts find each other.

    MASTER_ADDR and MASTER_PORT are only set on rank 0. The other ranks get them from rank 0.
    """
    rank_variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(specification.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    if rank:
        return rank_variables
    first_address = specification.hosts[0] if specification.slurm else ADDRESS
    return {**rank_variables, "MASTER_ADDR": first_address, "MASTER_PORT": str(find_free_port())}


def _build_host_commands(specification: ServiceRunSpecification) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield commands, each with its environment variables, that start this program on the other hosts.

    With Slurm, one job step is started for all hosts; otherwise, one process per host is started on this machine.
    """
    argv = [sys.executable, "-m", "campaign.workloads.service_run", str(specification.path)]
    other_hosts = specification.hosts[1:]
    if not specification.slurm:
        yield from ((argv, {_HOST_RANK_VARIABLE: str(rank)}) for rank, _ in enumerate(other_hosts, 1))
    elif other_hosts:
        nodes = [f"--nodes={len(other_hosts)}", f"--ntasks={len(other_hosts)}", f"--nodelist={','.join(other_hosts)}"]
        # The job step that runs this program holds the devices, too. The tasks derive their rank (`determine_server_rank`).
        yield (
            ["srun", *nodes, "--ntasks-per-node=1", "--overlap", "--mem=0", "--export=ALL", *argv],
            {_HOST_RANK_VARIABLE: ""},
        )


def determine_server_rank(specification: ServiceRunSpecification) -> int:
    """Determine the number (rank) of this process among the processes of the server."""
    match specification.server.launch:
        case "per_rank":
            return int(os.environ["RANK"])
        case "per_host" if (rank_text := os.environ.get(_HOST_RANK_VARIABLE)) is not None:
            return int(rank_text or int(os.environ["SLURM_PROCID"]) + 1)
    return 0


_CUMULATIVE_TYPES = frozenset({"counter", "histogram", "summary"})


def compute_server_metrics(
    settings: ServerMetrics, page_before: str, page_after: str
) -> tuple[dict[str, float], list[str]]:
    """Compute the server's metrics (`server_NAME`) from its metrics pages before and after the client ran.

    Returns the metrics, and a flag for each configured series that the page does not contain. Raises ValueError if a page is not
    in Prometheus text format.

    Args:
        settings: page and names of the metrics.
        page_before: text of the page before the client ran.
        page_after: text of the page after the client ran.
    """
    series_before, series_after = _read_series(page_before, settings.read), _read_series(page_after, settings.read)
    metrics, missing_flags = {}, []
    for name, series in settings.read.items():
        if series not in series_after:
            missing_flags.append(f"the metrics page {settings.path} of the server has no series {series}")
            continue
        is_cumulative, values = series_after[series]
        # A series with labels appears with its first event.
        metrics[f"server_{name}"] = (
            sum(values) - sum(series_before.get(series, (is_cumulative, []))[1]) if is_cumulative else max(values)
        )
    return metrics, missing_flags


def _read_series(page: str, series_by_metric: Mapping[str, str]) -> dict[str, tuple[bool, list[float]]]:
    """Read the values of the requested series from a page in Prometheus text format.

    Returns, for each series, whether it is cumulative (a counter, histogram or summary), and its values for all labels.
    """
    from prometheus_client.parser import text_string_to_metric_families

    names, series = set(series_by_metric.values()), dict[str, tuple[bool, list[float]]]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in names:
                series.setdefault(sample.name, (family.type in _CUMULATIVE_TYPES, []))[1].append(float(sample.value))
    return series
