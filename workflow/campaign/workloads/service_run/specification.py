"""Specification and result of a service run, two JSON files in the run's directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from campaign.spec.cell import Scalar
from campaign.spec.fields import Argument, AxisName, FileModel, Precision, Variables
from campaign.workloads.parsers import ParserName
from campaign.workloads.parsers.expressions import Parser

SERVICE_VALUES: Mapping[str, str] = {
    "port": "port of 127.0.0.1 on which the server must answer: a free port, or `server.port`",
    "url": "`http://127.0.0.1:{port}`",
    "result": "path of the file `client.result` in the run's directory",
    "rank": "number of the server process, from 0, with `launch: per_host` or `per_rank`",
    "first_host": "address of process 0, to which the other processes connect",
    "first_port": "free port at that address",
}
"""Meanings of the names in braces whose values are only known once a run has begun."""

RESULT_FILE, CLIENT_OUTPUT_FILE = "service-result.json", "service-client-output"
"""Names of files in the run's directory: the result of the run, and the output of the client."""

ServiceProblem = Literal[
    "no_program",
    "port_taken",
    "ended_before_ready",
    "not_ready",
    "ended_under_load",
    "client_failed",
]


class ReadinessProbe(FileModel):
    """Probe that shows that the server is ready. Exactly one of these keys is allowed."""

    http: Argument | None = None
    """Path that answers with a status from 200 to 299 once the server is ready, such as `/health`."""
    tcp: bool = False
    """If true, the server is ready once its port accepts connections."""
    log: Argument | None = None
    """Regular expression that a line of the server's output matches once it is ready."""

    @model_validator(mode="after")
    def _require_one_probe(self) -> ReadinessProbe:
        """Check that exactly one probe is given and that it is valid."""
        if sum((self.http is not None, self.tcp, self.log is not None)) != 1:
            raise ValueError("give exactly one of 'http', 'tcp: true' and 'log'")
        if self.http is not None and not self.http.startswith("/"):
            raise ValueError(f"'http: {self.http}' is not a path; it must begin with '/'")
        try:
            re.compile(self.log or "")
        except re.error as error:
            raise ValueError(f"'log: {self.log}' is not a valid regular expression: {error}") from error
        return self


class ServerMetrics(FileModel):
    """Metrics that the server itself publishes on a page in Prometheus text format."""

    path: Argument = "/metrics"
    """Path of the page."""
    read: dict[AxisName, Argument] = Field(min_length=1)
    """Series of the page by name, such as `{preemptions: "vllm:num_preemptions_total"}`, which becomes the metric
    `server_preemptions`. For a counter, the metric is its increase while the client ran, summed over its labels. For a gauge, it is
    the largest value of its labels after the client has ended."""


class Server(FileModel):
    """Server of a service."""

    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments, started without a shell."""
    launch: Literal["once", "per_host", "per_rank"] = "once"
    """Processes of the server. `once`: one process on the first host, with the run's devices there. `per_host`: one process on
    every host, with the devices there. `per_rank`: one process per device. The latter two get RANK, WORLD_SIZE, LOCAL_RANK,
    MASTER_ADDR and MASTER_PORT; process 0 answers."""
    precision_arguments: dict[Precision, tuple[Argument, ...]] = Field(default_factory=dict)
    """Arguments appended to the command, by precision."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables, with names in braces as in the command. `HF_TOKEN: {from: environment}` takes a secret from the
    environment in which the campaign is started."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port that the server always uses. Default: a free port, `{port}`."""
    ready: ReadinessProbe = ReadinessProbe(http="/health")
    """Probe that shows that the server is ready."""
    ready_within_s: Annotated[float, Field(gt=0)] = 600.0
    """Maximum time in seconds until the server is ready. A run whose server takes longer is recorded as `time_limit`."""
    stop_within_s: Annotated[float, Field(gt=0)] = 30.0
    """Maximum time in seconds from SIGTERM to the end of the server. A slower server is killed, and the run gets a flag."""
    metrics: ServerMetrics | None = None
    """Metrics that the server itself publishes."""


class BenchmarkClient(FileModel):
    """Benchmark client of a service."""

    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments, such as `[vllm, bench, serve, --base-url, "{url}", --request-rate, "{rate_per_s}"]`. It is started
    without a shell, in the run's directory, once the server is ready."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables, with names in braces as in the command. `HF_TOKEN: {from: environment}` takes a secret from the
    environment in which the campaign is started."""
    result: Argument = "client-result"
    """File in the run's directory to which the client writes its results, such as `result.json` or
    `artifacts/**/profile_export_aiperf.json`. `{result}` in the command is its path. The parser reads this file if it exists, and
    the client's output otherwise. The file is appended to the log."""
    parser: ParserName | None = None
    """Built-in parser for the client's results."""
    test: Literal["only", "last"] | Annotated[int, Field(ge=1)] = "only"
    """Result that counts if `parser` finds several: a number from 1, or `last`."""
    parsers: tuple[Parser, ...] = ()
    """Instead of `parser`: expressions that read the client's results."""

    @model_validator(mode="after")
    def _require_one_parser(self) -> BenchmarkClient:
        """Check that exactly one kind of parser is given, and that the result file is inside the run's directory."""
        if (self.parser is None) == (not self.parsers):
            raise ValueError("give either 'parser' or 'parsers'")
        if Path(self.result).is_absolute() or ".." in Path(self.result).parts:
            raise ValueError(
                f"'result: {self.result}' is not inside the run's directory; remove the leading '/' or '..'"
            )
        return self

    def find_result(self, directory: Path) -> Path | None:
        """Find the client's result file in a run's directory. Returns the last by name of several, or None."""
        return max((path for path in directory.glob(self.result) if path.is_file()), default=None)


class _ServiceModel(BaseModel):
    """Base class of immutable documents in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ServiceRunSpecification(_ServiceModel):
    """Specification of one service run. Names in braces have not been filled in yet.

    Attributes:
        where: name of the workload, for messages.
        directory: directory of the run.
        server: server of the service.
        client: client of the service.
        values: values of names in braces, in addition to those in SERVICE_VALUES.
        files: paths of the input files by name.
        words: words to put before a program to start it in its software environment.
        variables: environment variables of the software environment.
        hosts: hosts of the run.
        slurm: True if the other hosts are reached through Slurm.
    """

    where: str
    directory: Path
    server: Server
    client: BenchmarkClient
    values: dict[str, Scalar]
    files: dict[str, str] = {}
    words: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    hosts: tuple[str, ...]
    slurm: bool = False

    @property
    def path(self) -> Path:
        """Path of the file from which the service program reads this specification."""
        return self.directory / "service-specification.json"

    @property
    def run_end_file(self) -> Path:
        """Path of a file that is empty until the other processes of the server have to end."""
        return self.directory / "service-over"


class ServiceRunResult(_ServiceModel):
    """Result of a service run.

    Attributes:
        problem: kind of failure, or None.
        words: description of the failure.
        evidence: output that shows the failure.
        code: exit code of the program that failed, or None.
        phases_s: duration of each phase in seconds.
        client_started: start of the client (Unix seconds).
        client_ended: end of the client (Unix seconds).
        metrics: metrics that the server itself publishes.
        flags: remarks that readers of the numbers should know.
    """

    problem: ServiceProblem | None = None
    words: str = ""
    evidence: str = ""
    code: int | None = None
    phases_s: dict[str, float] = {}
    client_started: float = 0.0
    client_ended: float = 0.0
    metrics: dict[str, float] = {}
    flags: tuple[str, ...] = ()
