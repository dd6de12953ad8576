"""What the program of a run is given, and what it leaves: two JSON files in the run's directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from campaign.documents.cell import Scalar
from campaign.documents.fields import Argument, AxisName, FileModel, Precision, Variables
from campaign.documents.requests import Requests
from campaign.workloads.parsers import ParserName
from campaign.workloads.parsers.expressions import Parser

SERVICE_VALUES: Mapping[str, str] = {
    "port": "port of 127.0.0.1 on which the server has to answer: a free one, or `server.port`",
    "url": "`http://127.0.0.1:{port}`",
    "result": "file that a client writes its numbers to; its parser then reads this file instead of the output",
    "rank": "number of the process of the server, from 0, with `launch: per_host` or `per_rank`",
    "first_host": "address at which process 0 meets the others",
    "first_port": "free port there",
}
"""What can be filled in once a run has begun."""

RESULT, CLIENT_RESULT, CLIENT_OUTPUT = "result.json", "client-result", "client-output"
"""In the run's directory: what the program leaves, the file of `{result}`, and what a client prints."""

Problem = Literal[
    "no_program",
    "port_taken",
    "ended_before_ready",
    "not_ready",
    "ended_under_load",
    "client_failed",
    "load_failed",
]


class Ready(FileModel):
    """What tells that the server is ready: one of these keys."""

    http: Argument | None = None
    """Path that answers with a status between 200 and 299, such as `/health`."""
    tcp: bool = False
    """Whether it is enough that its port accepts connections."""
    log: Argument | None = None
    """Regular expression that a line of its output matches."""

    @model_validator(mode="after")
    def _one(self) -> Ready:
        if sum((self.http is not None, self.tcp, self.log is not None)) != 1:
            raise ValueError("give exactly one of 'http', 'tcp: true' and 'log'")
        if self.http is not None and not self.http.startswith("/"):
            raise ValueError(f"'http: {self.http}' is no path; it begins with '/'")
        try:
            re.compile(self.log or "")
        except re.error as error:
            raise ValueError(f"'log: {self.log}' is no regular expression: {error}") from error
        return self


class ServerMetrics(FileModel):
    """Numbers of the server's own, from a page in the text format of Prometheus."""

    path: Argument = "/metrics"
    """Path of the page."""
    read: dict[AxisName, Argument] = Field(min_length=1)
    """Name -> series of the page, such as `{preemptions: "vllm:num_preemptions_total"}`, which becomes the metric
    `server_preemptions`: by how much a counter grew during the load, summed over its labels; of a gauge the value after the load,
    the largest of its labels."""


class Server(FileModel):
    """The server of a service."""

    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments; no shell is involved."""
    launch: Literal["once", "per_host", "per_rank"] = "once"
    """`once`: one process on the first host, with the run's devices there; `per_host`: one on every host, with the devices there;
    `per_rank`: one per device. The latter two get RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; process 0 answers."""
    precision_arguments: dict[Precision, tuple[Argument, ...]] = Field(default_factory=dict)
    """Arguments appended to the command, by precision."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables, filled in like the command; `HF_TOKEN: {from: environment}` takes a secret from the environment that
    the campaign is started in."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port that it always uses. Default: a free one, `{port}`."""
    ready: Ready = Ready(http="/health")
    """What tells that it is ready."""
    ready_within_s: Annotated[float, Field(gt=0)] = 600.0
    """How long it may take to be ready. A run whose server takes longer is recorded as `time_limit`."""
    stop_within_s: Annotated[float, Field(gt=0)] = 30.0
    """How long it may take to end after SIGTERM. One that takes longer is killed, and the run is flagged."""
    metrics: ServerMetrics | None = None
    """Its own numbers."""


class LoadClient(FileModel):
    """A program that applies the load, and prints or writes what it measured."""

    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments, such as `[vllm, bench, serve, --port, "{port}", --save-result, --result-filename, "{result}"]`."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables, filled in like the command; `HF_TOKEN: {from: environment}` takes a secret from the environment that
    the campaign is started in."""
    parser: ParserName | None = None
    """Built-in parser of its result file, where the command names `{result}`, or else of its output."""
    test: Literal["only", "last"] | Annotated[int, Field(ge=1)] = "only"
    """Which result counts where `parser` finds several: a number from 1, or `last`."""
    parsers: tuple[Parser, ...] = ()
    """Instead of `parser`: expressions that read the same."""

    @model_validator(mode="after")
    def _one_parser(self) -> LoadClient:
        if (self.parser is None) == (not self.parsers):
            raise ValueError("give either 'parser' or 'parsers'")
        return self

    @property
    def writes_result(self) -> bool:
        """Whether it writes its numbers to a file."""
        return any("{result}" in word for word in (*self.command, *map(str, self.environment.values())))


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Specification(_Document):
    """What one run does. The names in braces are still to be filled in.

    where: whose commands these are, for messages; load: keys of the built-in load; model: that requests name; values: what can be
    filled in beside SERVICE_VALUES; files: paths of input files by their name; words, variables: what starts a program in its
    software environment; hosts: of the run; slurm: whether others than the first are reached through Slurm.
    """

    where: str
    directory: Path
    server: Server
    client: LoadClient | None = None
    load: dict[str, Any] | None = None
    model: str | None = None
    values: dict[str, Scalar]
    files: dict[str, str] = {}
    words: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    hosts: tuple[str, ...]
    slurm: bool = False

    @property
    def path(self) -> Path:
        """The file in which the program finds it."""
        return self.directory / "spec.json"

    @property
    def over(self) -> Path:
        """Holds text as soon as the other processes of the server have to end."""
        return self.directory / "over"


class Result(_Document):
    """What a run gave. problem: why it is not whole, with its words, the output that shows it, and an exit code where there is one.

    load_started: Unix seconds; window_s: begin and end, from there, of what counts.
    """

    problem: Problem | None = None
    words: str = ""
    evidence: str = ""
    code: int | None = None
    phases_s: dict[str, float] = {}
    load_started: float | None = None
    window_s: tuple[float, float] | None = None
    requests: Requests | None = None
    metrics: dict[str, float] = {}
    flags: tuple[str, ...] = ()
