"""Services: a server is started, a load is applied to it, and what its clients met is measured."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import Field, ValidationError, model_validator

from campaign.accelerators import Kind
from campaign.documents.cell import Cell, Scalar
from campaign.documents.fields import Argument, Precision
from campaign.documents.record import Failure, Status
from campaign.errors import LaunchError, absent_package, first_problem, problems_of
from campaign.files import hash_of, read_bytes
from campaign.workloads import software as environments
from campaign.workloads.command_template import BESIDE, RESERVED, check_template, fill, run_values, texts, variables
from campaign.workloads.failures import classify
from campaign.workloads.load import Load
from campaign.workloads.load.load_file import LatencyObjective, Percentile
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import LogReading, Scope, read_log, read_tests
from campaign.workloads.parsers.expressions import hints, read_expressions
from campaign.workloads.protocol import Ended, Outcome, ReferenceTable, Run, Step, Surroundings, Workload
from campaign.workloads.service_run.specification import (
    CLIENT_OUTPUT,
    CLIENT_RESULT,
    RESULT,
    SERVICE_VALUES,
    LoadClient,
    Problem,
    Result,
    Server,
    Specification,
)
from campaign.workloads.software import Software, filled, search_path, software_words

_INTRODUCTION = """\
A server that answers requests, such as one for the inference of language models. A run starts it on the devices of its lease,
waits until it is ready, applies a load, and ends it with everything that it started. Records hold what its clients met: time to
first token (TTFT), time per output token (TPOT), time to the end of an answer (E2E), requests and tokens per second, errors.

The built-in `load` sends requests to OpenAI-compatible servers at their times, whether earlier ones are answered or not. Latencies
count from these times. `client` names another program instead. An option named like a key of `load` replaces it, so that rates,
lengths and concurrencies are axes of a campaign. A cell has no batch: its `batch` is 1, whatever `axes.batch` is.
`throughput_per_s` counts completed requests.

A server that ends early, or is not ready in time, makes a failed run with the end of its output as evidence. A run in which no
request succeeded, or too many failed, is `invalid`. The table `requests` has every request.
"""
_EXAMPLE = """\
name: echo-service
kind: service
precisions: [fp32]
options: {rate_per_s: 40}
server:
  command: [python3, -m, campaign.emulators.queueing_server, --port, "{port}"]
  ready: {tcp: true}
load: {requests: 40, prompt_tokens: 8, output_tokens: 4}
objective: {ttft_ms: {p99: 500}}
"""


class ServiceWorkload(Workload):
    """A server under load."""

    introduction: ClassVar[str] = _INTRODUCTION
    example: ClassVar[str] = _EXAMPLE
    serves_requests: ClassVar[bool] = True
    rate_unit: ClassVar[str] = "requests/s"

    kind: Literal["service"]
    """A server under load."""
    server: Server
    """The server."""
    load: Load | None = None
    """Load that is applied to an OpenAI-compatible server."""
    client: LoadClient | None = None
    """Instead of `load`: a program that applies the load."""
    model: Argument | None = None
    """With `load`: name of the model that requests ask for. Default: the first that `/v1/models` lists."""
    objective: LatencyObjective = LatencyObjective()
    """What the service has to hold. It changes nothing of what is measured."""
    errors_at_most_pct: Annotated[float, Field(ge=0, le=100)] = 1.0
    """A run with a larger share of failed requests is `invalid`."""
    software: Software | None = None
    """Software environment of server and client. Default: what is on the PATH."""

    @model_validator(mode="after")
    def _fits_together(self) -> ServiceWorkload:
        if (self.load is None) == (self.client is None):
            raise ValueError("give either 'load', which is built in, or 'client', a program that applies one")
        if self.client is not None and self.model is not None:
            raise ValueError("'model' goes with 'load'; a client names the model in its command")
        if more := [precision for precision in self.server.precision_arguments if precision not in self.precisions]:
            raise ValueError(
                f"'server.precision_arguments' names {more[0]}, which is not in 'precisions'; add it there or remove it here"
            )
        if taken := sorted(SERVICE_VALUES.keys() & self.options.keys()):
            raise ValueError(f"'options' has '{taken[0]}', which is a name of the run; choose another one")
        return self

    @classmethod
    def tables(cls) -> Iterator[ReferenceTable]:
        names = [(f"`{{{name}}}`", meaning) for name, meaning in SERVICE_VALUES.items()]
        known = "The options, the [names of commands](#names-in-braces), and:"
        yield ReferenceTable("Names in braces of services", known, ("Name", "Meaning"), names)

    @property
    def one_process_for_all(self) -> bool:
        return self.server.launch != "per_rank"

    @property
    def in_container(self) -> bool:
        return self.software is not None and self.software.apptainer is not None

    @property
    def reads_log(self) -> bool:
        return self.client is not None

    def tests(self, log: Log) -> Sequence[LogReading]:
        client = self.client
        if client is None or client.parser is None or client.test != "only":
            return ()
        found = read_tests(client.parser, log, Scope())
        return found if len(found) > 1 else ()

    def of_test(self, number: int) -> Self:
        client = self.client and self.client.model_copy(update={"test": number})
        return self.model_copy(update={"client": client})

    def input_words(self) -> Sequence[str]:
        if self.inputs is not None:
            return tuple(self.inputs)
        words = (*self.server.command, *(self.client.command if self.client else ()))
        return tuple(word.removeprefix(BESIDE) for word in words)

    def script_words(self) -> Sequence[str]:
        words = (*self.server.command, *(self.client.command if self.client else ()))
        named = (word for word in words if word.startswith(BESIDE) or not (self.in_container or word.startswith("-")))
        return () if self.inputs is not None else tuple(word.removeprefix(BESIDE) for word in named)

    @property
    def printed_metrics(self) -> Sequence[str] | None:
        """The metrics of a load. Where it has a rate, a median leads: the first that is promised, or TTFT."""
        if self.client is not None and (self.client.parsers or "rate_per_s" not in self.options):
            return [parser.metric for parser in self.client.parsers] or None
        promised = [name for name in LatencyObjective.model_fields if getattr(self.objective, name)]
        first, *others = dict.fromkeys((*promised, *LatencyObjective.model_fields))
        medians = [
            f"{first}_p50",
            *(f"{name}_{percent}" for name in (first, *others) for percent in get_args(Percentile)),
        ]
        rates = ["output_tokens_per_s", "prompt_tokens_per_s", "requests_per_s", "errors_pct"]
        closed = self.options.get("concurrency", self.load and self.load.concurrency)
        return ["throughput_per_s", *rates, *medians] if closed else [*medians, *rates]

    def summary(self) -> Mapping[str, Any]:
        *_, program = (self.server.command[0], *_modules(self.server.command))
        parser = None if self.client is None else self.client.parser or "its own"
        return {
            "model or program": program.rpartition("/")[2],
            "launch": self.server.launch,
            "parser": parser,
        }

    def identity(self) -> dict[str, Any]:
        """The document without what is promised, and without how long the server may take to start and end."""
        document = super().identity()
        document.pop("objective", None)
        for patience in ("ready_within_s", "stop_within_s"):
            document["server"].pop(patience, None)
        return document

    def problems(self, around: Surroundings) -> Iterator[str]:
        known = RESERVED | SERVICE_VALUES.keys() | self.options.keys()
        for part in ("server", "client"):
            filled_in = (
                self.model_dump(include={part: {"command", "environment", "precision_arguments"}}).get(part) or {}
            )
            for place, text in texts(filled_in):
                yield from problems_of(check_template, text, known, around.place(part, *place))
            program = (filled_in.get("command") or [""])[0]
            if "/" in program and not program.startswith(("/", "{")):
                yield (
                    f"{around.place(part, 'command', 0)}: '{program}' is a relative path, but every run starts in its own "
                    "directory; give the full path, or a program on the PATH"
                )
        if self.model is not None:
            yield from problems_of(check_template, self.model, known, around.place("model"))
        if self.load is not None:
            yield from self._load_problems(self.load, around)

    def _load_problems(self, load: Load, around: Surroundings) -> Iterator[str]:
        if load.prompts is not None and load.prompts not in (self.inputs or ()):
            yield (
                f"{around.place('load', 'prompts')}: '{load.prompts}' decides what is measured; name it under 'inputs', too, so "
                "that its content counts"
            )
        varied = {option: values for option, values in around.axes.items() if option in Load.model_fields}
        if not varied:
            try:
                load.for_run(self.options)
            except ValueError as error:
                yield f"{around.place('load')}: {_words(error)}"
        for option, values in varied.items():
            for index, value in enumerate(values):
                try:
                    Load.model_validate({option: value})
                except ValueError as error:
                    yield f"{around.axis_place(option, index)}: {_words(error)}"

    def refusal(self, cell: Cell) -> str | None:
        if self.load is None:
            return None
        try:
            self.load.for_run({**self.options, **cell.options})
        except ValueError as error:
            return f"workload '{self.name}' with options {dict(cell.options)}: {_words(error)}"
        return None

    def missing(self, kinds: Collection[Kind] = ()) -> str | None:
        if (absent := absent_package("h11", "prometheus_client")) is not None:
            return f"services need the package {absent}"
        for part, command in (("server", self.server.command), ("client", self.client and self.client.command)):
            if command and self.software is None and "{" not in command[0] and not shutil.which(command[0]):
                return f"{part}: '{command[0]}' was not found on this machine; install it, or give its full path"
        return None

    def software_document(self, options: Mapping[str, Scalar], cache: Path) -> dict[str, Any] | None:
        software = self._software(options)
        return environments.software_document(software, None, cache, f"workload '{self.name}'")

    def _software(self, options: Mapping[str, Scalar]) -> Software | None:
        if self.software is None:
            return None
        return filled(self.software, {**self.options, **options}, f"workload {self.name}")

    def hints(self, log: Log) -> list[str]:
        return [] if self.client is None else hints(log, self.client.parser, self.client.parsers)

    def step(self, run: Run) -> Step:
        cell, where = run.cell, f"workload {self.name}"
        values, precision = (
            run_values(self.options, cell, run.repetition, run.workload_dir),
            cast(Precision, cell.precision),
        )
        software = self._software(cell.options)
        path = search_path(software, os.environ.get("PATH", os.defpath))
        load = None
        if self.load is not None:
            # The same arrivals for all cells of a repetition, so that these differ by what serves them alone.
            seed = int(hash_of(f"{self.load.seed}/{cell.settings.seed}/{run.repetition}"), 16)
            load = self.load.for_run({**self.options, **cell.options, "seed": seed})
            load = load.model_copy(update={"prompts": run.files.get(load.prompts or "", load.prompts)})
        for said in (self.server.environment, self.client.environment if self.client else {}):
            variables(said, f"{where}: environment")  # those that are not set are told before the server starts
        specification = Specification(
            where=where,
            directory=run.directory,
            server=self.server.model_copy(
                update={"command": (*self.server.command, *self.server.precision_arguments.get(precision, ()))}
            ),
            client=self.client,
            load=None if load is None else load.model_dump(mode="json", exclude_defaults=True),
            model=None if self.model is None else fill(self.model, values, f"{where}: model"),
            values=values,
            files=dict(run.files),
            words=tuple(software_words(software, runs_on=run.runs_on)),
            variables={**({"PATH": path, "VIRTUAL_ENV": path.split("/bin:", 1)[0]} if path else {}), **_pace(run)},
            hosts=tuple(run.ranks_by_host),
            slurm=run.launcher == "slurm",
        )
        specification.path.write_text(specification.model_dump_json())
        specification.over.write_text("")
        argv = (sys.executable, "-m", "campaign.workloads.service_run", str(specification.path))
        return Step(argv, {}, run.ranks_by_host, per_rank=not self.one_process_for_all)

    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        if run.saved and self.client is not None:
            return ended.failure(log) or self._judged(
                self._by_client(self.client, Outcome("ok"), run, log, ended.known)
            )
        result = result_of(run)
        if result is not None and result.problem is not None:
            return failed_outcome(result, result.problem, ended, log)
        if failed := ended.failure(log):
            return failed
        if result is None:
            return Outcome("incomplete", Failure(reason="the run left no result", evidence=log.tail()))
        return self._judged(self._measured(run, result))

    def _measured(self, run: Run, result: Result) -> Outcome:
        begun, window = result.load_started, result.window_s
        steady = (begun + window[0], begun + window[1]) if begun is not None and window is not None else None
        outcome = Outcome(
            "ok",
            throughput_per_s=result.metrics.get("requests_per_s"),
            window_s=() if window is None else (window[1] - window[0],),
            metrics=result.metrics,
            phases_s=result.phases_s,
            steady=steady,
            flags=result.flags,
            requests=result.requests,
        )
        if self.client is None:
            return outcome
        written = run.directory / CLIENT_RESULT
        log = Log(written) if self.client.writes_result and written.exists() else printed(run)
        return self._by_client(self.client, outcome, run, log, ended=True)

    def _by_client(self, client: LoadClient, outcome: Outcome, run: Run, log: Log, ended: bool) -> Outcome:
        """An outcome with what the client wrote or printed. ended: whether it is known to have ended well."""
        test = None if client.test == "only" else client.test
        scope = Scope(ranks=run.cell.configuration.ranks, hosts=run.cell.configuration.hosts, test=test)
        reading = read_log(client.parser, log, scope) if client.parser else read_expressions(client.parsers, log, scope)
        reading = reading.of_ended() if ended else reading
        rate = reading.throughput_per_s
        return replace(
            outcome,
            status=reading.status,
            failure=None if reading.status == "ok" else Failure(reason=reading.problem, evidence=log.tail()),
            throughput_per_s=reading.metrics.get("requests_per_s") if rate is None else rate,
            metrics={**reading.metrics, **outcome.metrics},
            flags=(*reading.flags, *outcome.flags),
            requests=reading.counted,
        )

    def _judged(self, outcome: Outcome) -> Outcome:
        """Invalid where no request succeeded, or too many failed."""
        if outcome.status != "ok":
            return outcome
        if outcome.requests is not None:
            errors = [error for error in outcome.requests.counted if error is not None]
            count, failed = len(outcome.requests.counted), len(errors)
        else:
            errors, failed = [], round(outcome.metrics.get("errors", 0))
            count = round(outcome.metrics.get("requests", failed + 1))
        commonest = "; ".join(f"{number} times: {error}" for error, number in Counter(errors).most_common(3))
        if count and failed < count and 100 * failed <= self.errors_at_most_pct * count:
            return outcome
        if not count:
            reason = "no request started after the warm-up and before the end of the load; let the load take longer"
        elif failed >= count:
            reason = f"none of {count} requests succeeded"
        else:
            share = f"{100 * failed / count:.3g} %; errors_at_most_pct is {self.errors_at_most_pct:g}"
            reason = f"{failed} of {count} requests failed ({share})"
        return replace(outcome, status="invalid", failure=Failure(reason=reason, evidence=commonest[:400]))


def _pace(run: Run) -> dict[str, str]:
    """For a server that can keep it: the pace of the run's emulated devices, by rank."""
    rates = [f"{run.pace[device.model]:g}" for device in run.devices if device.model in run.pace]
    return {"CAMPAIGN_PACE_GFLOPS": ",".join(rates)} if rates else {}


def _modules(command: Sequence[str]) -> Iterator[str]:
    """What an interpreter runs: a module, or a script."""
    for before, word in pairwise(command):
        if before == "-m" or word.endswith((".py", ".sh")):
            yield word
            return


def _words(error: ValueError) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else str(error)


_STATUS_OF: Mapping[Problem, Status] = {"not_ready": "time_limit", "load_failed": "invalid"}


def failed_outcome(result: Result, problem: Problem, ended: Ended, log: Log) -> Outcome:
    """A run without a measurement: of the apparatus where nothing of the workload file could be started (LaunchError)."""
    if problem in ("no_program", "port_taken"):
        raise LaunchError(result.words)
    status: Status = _STATUS_OF.get(problem, "crashed")
    failure = Failure(reason=result.words, evidence=result.evidence[-400:] or result.words)
    if status == "crashed":
        # An exit with 0 is none that a server may take by itself.
        codes = (result.code or 1,)
        found = classify(log, codes, timed_out=False, killed_by_us=False, memory_kills=ended.memory_kills)
        if found and found[0] != "crashed":
            status, why = found
            failure = Failure(reason=f"{result.words}: {why.reason}", evidence=why.evidence)
    return Outcome(status, failure, phases_s=result.phases_s, flags=result.flags)


def result_of(run: Run) -> Result | None:
    """What the program of the run left; None where it was ended before."""
    try:
        return Result.model_validate_json(read_bytes(run.directory / RESULT))
    except (OSError, ValueError):
        return None


def printed(run: Run) -> Log:
    """What a client printed."""
    output = run.directory / CLIENT_OUTPUT
    return Log(output) if output.exists() else Log(b"")
