"""Workload of services: a server is started, a benchmark client sends requests to it, and the client's results are recorded."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import LaunchError, collect_problems, find_missing_package
from campaign.common.files import read_bytes
from campaign.spec.cell import Scalar
from campaign.spec.fields import Precision
from campaign.spec.record import Failure, Status
from campaign.workloads import software as environments
from campaign.workloads.command_template import (
    RESERVED_NAMES,
    WORKLOAD_DIR_PREFIX,
    check_template,
    collect_template_values,
    resolve_variables,
    walk_texts,
)
from campaign.workloads.failures import classify_failure
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import LogReading, RunContext, read_log, read_tests, select_tests
from campaign.workloads.parsers.expressions import Parser, collect_hints, find_misnamed_metrics, read_expressions
from campaign.workloads.protocol import Outcome, ReferenceTable, Run, Step, StepEnd, ValidationContext, Workload
from campaign.workloads.service_run.specification import (
    CLIENT_OUTPUT_FILE,
    RESULT_FILE,
    SERVICE_VALUES,
    BenchmarkClient,
    Server,
    ServiceProblem,
    ServiceRunResult,
    ServiceRunSpecification,
)
from campaign.workloads.software import Software, build_search_path, build_software_words, fill_software

_INTRODUCTION = """\
A server that answers requests, such as an inference server for language models, and a benchmark client that sends the requests. A
run starts the server on the devices of its lease, waits until it is ready, runs the client, and ends the server with everything
that it started. The client is any program, such as `vllm bench serve`, `sglang.bench_serving` or `aiperf`. A parser reads its
results: time to first token (TTFT), time per output token (TPOT), end-to-end latency (E2E), requests and tokens per second, errors.

Options are filled into both commands, so the request rate, lengths and concurrency can be axes of a campaign. If the option for
the request rate is named `rate_per_s`, the report shows latencies against it. A cell has no batch: its `batch` is 1, whatever
`axes.batch` is. `throughput_per_s` counts completed requests.

If the server ends early or is not ready in time, the run fails, with the end of the server's output as evidence. A run in which no
request succeeded, or too many failed, is `invalid`.
"""
_EXAMPLE = """\
name: file-server
kind: service
precisions: [fp32]
options: {requests: 20}
server:
  command: [python3, -m, http.server, "{port}", --bind, 127.0.0.1]
  ready: {http: /}
client:
  command:
    - python3
    - -c
    - |
      import sys, time, urllib.request
      began = time.monotonic()
      for _ in range(int(sys.argv[2])):
          urllib.request.urlopen(sys.argv[1]).read()
      print("rate:", int(sys.argv[2]) / (time.monotonic() - began))
    - "{url}"
    - "{requests}"
  parsers:
    - {metric: throughput_per_s, regex: 'rate: (\\S+)'}
"""
_LATENCIES = tuple(f"{latency}_ms_p{percent}" for latency in ("ttft", "tpot", "e2e") for percent in (50, 90, 95, 99))
_RATES = ("output_tokens_per_s", "prompt_tokens_per_s", "requests_per_s", "errors_pct")


class ServiceWorkload(Workload):
    """Workload of a server and a client that sends requests to it."""

    introduction: ClassVar[str] = _INTRODUCTION
    example: ClassVar[str] = _EXAMPLE
    serves_requests: ClassVar[bool] = True
    rate_unit: ClassVar[str] = "requests/s"

    kind: Literal["service"]
    """A server and a client that sends requests to it."""
    server: Server
    """Server of the service."""
    client: BenchmarkClient
    """Program that sends requests to the server and reports its measurements."""
    errors_at_most_pct: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Maximum share of failed requests, in percent. A run with a larger share is `invalid`."""
    software: Software | None = None
    """Software environment of server and client. Default: programs on the PATH."""

    @model_validator(mode="after")
    def _check_consistency(self) -> ServiceWorkload:
        if undeclared_precisions := [
            precision for precision in self.server.precision_arguments if precision not in self.precisions
        ]:
            raise ValueError(
                "'server.precision_arguments' has the precision "
                f"{undeclared_precisions[0]}, which is not in 'precisions'; add it there or "
                "remove it here"
            )
        if reserved_names := sorted(SERVICE_VALUES.keys() & self.options.keys()):
            raise ValueError(f"the option '{reserved_names[0]}' has a reserved name; choose another name")
        return self

    @classmethod
    def reference_tables(cls) -> Iterator[ReferenceTable]:
        """Yield the table of placeholder names (names in braces) for the reference page."""
        names = [(f"`{{{name}}}`", meaning) for name, meaning in SERVICE_VALUES.items()]
        introduction = "The options, the [names in braces of commands](#names-in-braces), and these names:"
        yield ReferenceTable("Names in braces of services", introduction, ("Name", "Meaning"), names)

    @property
    def starts_single_process(self) -> bool:
        """True unless one server process is started per rank."""
        return self.server.launch != "per_rank"

    @property
    def runs_in_container(self) -> bool:
        """True if server and client run in an Apptainer image."""
        return self.software is not None and self.software.apptainer is not None

    @property
    def reads_log(self) -> bool:
        """True, because the results are read from the output of the client."""
        return True

    @property
    def custom_parsers(self) -> Sequence[Parser]:
        """Expression parsers defined in the workload file, which read the output of the client."""
        return self.client.parsers

    def parse_tests(self, log: Log) -> Sequence[LogReading]:
        """Parse all tests in the client's output, or only the test that the workload file selects."""
        test = None if self.client.test == "only" else self.client.test
        return (
            [] if self.client.parser is None else select_tests(read_tests(self.client.parser, log, RunContext()), test)
        )

    def with_test(self, test_number: int) -> Self:
        """Return a copy of the workload that reads only the test with this number (from 1) from the client's output."""
        return self.model_copy(update={"client": self.client.model_copy(update={"test": test_number})})

    def input_names(self) -> Sequence[str]:
        """Return the file names in `inputs` or, by default, all words of the commands of server and client."""
        words = (*self.server.command, *self.client.command) if self.inputs is None else self.inputs
        return tuple(word.removeprefix(WORKLOAD_DIR_PREFIX) for word in words)

    def script_names(self) -> Sequence[str]:
        """Return the words of the commands that count as scripts only if a file of that name exists before the run starts."""
        words = (*self.server.command, *self.client.command)
        script_candidates = (
            word
            for word in words
            if word.startswith(WORKLOAD_DIR_PREFIX) or not (self.runs_in_container or word.startswith("-"))
        )
        return (
            ()
            if self.inputs is not None
            else tuple(word.removeprefix(WORKLOAD_DIR_PREFIX) for word in script_candidates)
        )

    @property
    def reported_metrics(self) -> Sequence[str] | None:
        """Names of the metrics that the client's parser reports, the primary metric first, or None if they are not known.

        If there is an option `rate_per_s`, the primary metric is a latency, because requests are then answered at the rate at
        which they are sent.
        """
        if self.client.parsers or "rate_per_s" not in self.options:
            return [parser.metric for parser in self.client.parsers] or None
        return [*_LATENCIES, *_RATES]

    def list_columns(self) -> Mapping[str, Any]:
        """Return the server's program, the launch method and the parser as columns of `campaign workload list`."""
        *_, program = (self.server.command[0], *_find_interpreter_targets(self.server.command))
        return {
            "model or program": program.rpartition("/")[2],
            "launch": self.server.launch,
            "parser": self.client.parser or "its own",
        }

    def identity_document(self) -> dict[str, Any]:
        """Return the identity document without the time limits for starting and stopping the server."""
        document = super().identity_document()
        for timeout in ("ready_within_s", "stop_within_s"):
            document["server"].pop(timeout, None)
        return document

    def problems(self, context: ValidationContext) -> Iterator[str]:
        """Yield an error message for each key of the server or client that is inconsistent with the campaign or the system."""
        names = RESERVED_NAMES | SERVICE_VALUES.keys() | self.options.keys()
        yield from find_misnamed_metrics(
            self.client.parsers, lambda index, key: context.format_location("client", "parsers", index, key)
        )
        keys = {"command", "environment", "precision_arguments"}
        for part in ("server", "client"):
            document = self.model_dump(include={part: keys})[part]
            for position, text in walk_texts(document):
                yield from collect_problems(check_template, text, names, context.format_location(part, *position))
            program = document["command"][0]
            if "/" in program and not program.startswith(("/", "{")):
                yield (
                    f"{context.format_location(part, 'command', 0)}: '{program}' is a relative path, but every run starts in its "
                    "own directory; give the full path, or a program on the PATH"
                )

    def missing_requirements(self, kinds: Collection[AcceleratorKind] = ()) -> str | None:
        """Return an error message if the server, the client or a required package is not installed, else None."""
        if (absent := find_missing_package("prometheus_client")) is not None:
            return f"services need the package {absent}; install it"
        for part, command in (("server", self.server.command), ("client", self.client.command)):
            if self.software is None and "{" not in command[0] and not shutil.which(command[0]):
                return f"{part}: '{command[0]}' was not found on this machine; install it, or give its full path"
        return None

    def software_document(self, options: Mapping[str, Scalar], cache: Path) -> dict[str, Any] | None:
        """Describe the software environment of server and client. Returns None if they use the host's software."""
        software = self._resolve_software(options)
        return environments.build_software_document(software, None, cache, f"workload '{self.name}'")

    def _resolve_software(self, options: Mapping[str, Scalar]) -> Software | None:
        """Return the software environment of the service, with a cell's options filled in, or None if it has none."""
        if self.software is None:
            return None
        return fill_software(self.software, {**self.options, **options}, f"workload {self.name}")

    def explain_missing_values(self, log: Log) -> list[str]:
        """Return possible reasons why the parsers found no results in the client's output."""
        return collect_hints(log, self.client.parser, self.client.parsers)

    def result_file(self, run: Run) -> str | None:
        """Return the name of the client's result file in the run's directory, or None if it does not exist."""
        return self.client.result if self.client.find_result(run.directory) else None

    def step(self, run: Run) -> Step:
        """Write the specification of a service run, and build the step that starts the server and the client."""
        cell, location = run.cell, f"workload {self.name}"
        software = self._resolve_software(cell.options)
        path = build_search_path(software, os.environ.get("PATH", os.defpath))
        for environment in (self.server.environment, self.client.environment):
            resolve_variables(
                environment, f"{location}: environment"
            )  # a missing variable is reported before the server starts
        arguments = self.server.precision_arguments.get(cast(Precision, cell.precision), ())
        specification = ServiceRunSpecification(
            where=location,
            directory=run.directory,
            server=self.server.model_copy(update={"command": (*self.server.command, *arguments)}),
            client=self.client,
            values=collect_template_values(self.options, cell, run.repetition, run.workload_dir),
            files=dict(run.files),
            words=tuple(build_software_words(software, runs_on=run.runs_on)),
            variables={"PATH": path, "VIRTUAL_ENV": path.split("/bin:", 1)[0]} if path else {},
            hosts=tuple(run.ranks_by_host),
            slurm=run.launcher == "slurm",
        )
        specification.path.write_text(specification.model_dump_json(), encoding="utf-8")
        specification.run_end_file.write_text("", encoding="utf-8")
        argv = (sys.executable, "-m", "campaign.workloads.service_run", str(specification.path))
        return Step(argv, {}, run.ranks_by_host, per_rank=not self.starts_single_process)

    def read(self, run: Run, step_end: StepEnd, log: Log) -> Outcome:
        """Determine the outcome of a service run from the results of its client and of the program that ran it."""
        if run.is_saved_log:
            return step_end.failure_outcome(log) or self._check_error_rate(
                self._read_client_outcome(run, log, step_end.has_exit_codes)
            )
        result = read_result(run)
        if result is not None and result.problem is not None:
            return build_failed_outcome(result, result.problem, step_end, log)
        if failure_outcome := step_end.failure_outcome(log):
            return failure_outcome
        if result is None:
            return Outcome("incomplete", Failure(reason="the run wrote no result", evidence=log.read_tail()))
        result_path = self.client.find_result(run.directory)
        outcome = self._read_client_outcome(
            run, Log(result_path or run.directory / CLIENT_OUTPUT_FILE), has_ended_well=True
        )
        return self._check_error_rate(
            replace(
                outcome,
                window_s=(result.client_ended - result.client_started,),
                metrics={**outcome.metrics, **result.metrics},
                phases_s=result.phases_s,
                steady=(result.client_started, result.client_ended),
                flags=(*outcome.flags, *result.flags),
            )
        )

    def _read_client_outcome(self, run: Run, log: Log, has_ended_well: bool) -> Outcome:
        """Parse the results that the client wrote or printed, and return them as the outcome of the run.

        Args:
            run: the run.
            log: result file or output of the client.
            has_ended_well: true if the client is known to have ended without an error.
        """
        client, configuration = self.client, run.cell.configuration
        test = None if client.test == "only" else client.test
        scope = RunContext(
            ranks=configuration.ranks, hosts=configuration.hosts, test=test, ended_normally=has_ended_well
        )
        reading = read_log(client.parser, log, scope) if client.parser else read_expressions(client.parsers, log, scope)
        reading = reading.without_cut_off_flag() if has_ended_well else reading
        rate = reading.throughput_per_s
        return Outcome(
            reading.status,
            None if reading.status == "ok" else Failure(reason=reading.problem, evidence=log.read_tail()),
            throughput_per_s=reading.metrics.get("requests_per_s") if rate is None else rate,
            metrics=reading.metrics,
            flags=reading.flags,
        )

    def _check_error_rate(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a run, changed to `invalid` if no request succeeded or too many failed."""
        failed_requests = outcome.metrics.get("errors", 0.0)
        requests = outcome.metrics.get("requests", failed_requests + 1)
        if outcome.status != "ok" or (
            failed_requests < requests and 100 * failed_requests <= self.errors_at_most_pct * requests
        ):
            return outcome
        if failed_requests >= requests:
            reason = f"none of {requests:g} requests succeeded"
        else:
            share = f"{100 * failed_requests / requests:.3g} %, errors_at_most_pct is {self.errors_at_most_pct:g}"
            reason = f"{failed_requests:g} of {requests:g} requests failed ({share})"
        return replace(outcome, status="invalid", failure=Failure(reason=reason))


def _find_interpreter_targets(command: Sequence[str]) -> Iterator[str]:
    """Yield each module or script that an interpreter in the command is told to run."""
    for before, word in pairwise(command):
        if before == "-m" or word.endswith((".py", ".sh")):
            yield word
            return


def build_failed_outcome(result: ServiceRunResult, problem: ServiceProblem, step_end: StepEnd, log: Log) -> Outcome:
    """Build the outcome of a service run that failed before it yielded a measurement.

    Raises LaunchError if the program or the port of the service was not available.
    """
    if problem in ("no_program", "port_taken"):
        raise LaunchError(result.words)
    status: Status = "time_limit" if problem == "not_ready" else "crashed"
    failure = Failure(reason=result.words, evidence=result.evidence[-400:] or result.words)
    if status == "crashed":
        # A server must not end by itself, so exit code 0 counts as 1.
        codes = (result.code or 1,)
        cause = classify_failure(
            log, codes, timed_out=False, killed_by_launcher=False, memory_kills=step_end.memory_kills
        )
        if cause and cause[0] != "crashed":
            status, cause_failure = cause
            failure = Failure(reason=f"{result.words}: {cause_failure.reason}", evidence=cause_failure.evidence)
    return Outcome(status, failure, phases_s=result.phases_s, flags=result.flags)


def read_result(run: Run) -> ServiceRunResult | None:
    """Read the result that the service program wrote for a run. Returns None if it was ended before it could write one."""
    try:
        return ServiceRunResult.model_validate_json(read_bytes(run.directory / RESULT_FILE))
    except (OSError, ValueError):
        return None
