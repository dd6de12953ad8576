"""Workload of any program, which is started with the values of the cell and measured by its output."""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, StringConstraints, model_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import collect_problems
from campaign.spec.cell import AXES, Scalar
from campaign.spec.fields import AXIS_PATTERN, Argument, Precision, Variables
from campaign.spec.record import Failure
from campaign.workloads import software as environments
from campaign.workloads.command_template import (
    RESERVED_NAMES,
    RUN_VALUES,
    WORKLOAD_DIR_PREFIX,
    check_template,
    collect_template_values,
    fill_template,
    resolve_variables,
    walk_texts,
)
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import (
    PARSERS_WITHOUT_RATE,
    LogReading,
    ParserName,
    RunContext,
    load_format,
    read_log,
    read_tests,
    select_tests,
)
from campaign.workloads.parsers.expressions import Parser, collect_hints, find_misnamed_metrics, read_expressions
from campaign.workloads.protocol import Outcome, ReferenceTable, Run, Step, StepEnd, ValidationContext, Workload
from campaign.workloads.rank_launchers import LaunchMethod, build_command_line
from campaign.workloads.software import Software, build_search_path, fill_software

_TEMPLATE_KEYS = {
    *("command", "launch_options", "environment", "precision_arguments", "precision_environment"),
    *("prepare", "cleanup", "result"),
}
_INTRODUCTION = """\
Any program that is started once per run or once per device. `{name}` in the command or in an environment variable is replaced by a
value of the run; write `{{` and `}}` for literal braces. `parser` selects a built-in parser for the output, and `parsers` defines
custom ones. `launch` selects the launcher of the ranks. `software` selects the software environment of the program, whose packages
are recorded. `campaign workload try NAME` runs the program once on this machine; `campaign workload parse NAME LOGFILE` reads a
saved log. A run without a required number is recorded as `incomplete`. A failed run is recorded with the cause that its output
shows, such as out of memory or a crash. The parsers of the shipped workload files are tested on saved outputs; of their programs,
only fio was run by the developers.
"""
_EXAMPLE = """\
name: echo
kind: command
precisions: [fp32]
options: {size_mib: 64}
command: [echo, "rate: {batch} samples/s on {ranks} ranks with {size_mib} MiB"]
parsers:
  - {metric: throughput_per_s, regex: 'rate: (\\S+)'}
"""


class CommandWorkload(Workload):
    """Workload that starts any program. Names in braces in the command and environment are replaced by values of the run."""

    introduction: ClassVar[str] = _INTRODUCTION
    example: ClassVar[str] = _EXAMPLE
    parsing_keys: ClassVar[frozenset[str]] = frozenset({"parser", "test", "parsers"})

    kind: Literal["command"]
    """Any program."""
    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments, started without a shell in an empty directory, which is removed after the run."""
    prepare: tuple[Annotated[tuple[Argument, ...], Field(min_length=1)], ...] = ()
    """Commands before every run, such as `[[cp, "{workload_dir}/input.dat", .]]`, with names in braces as in `command`. Each is
    started once, on the first host, in the run's directory. Their time is not measured. If one fails, the run has no record and is
    repeated."""
    cleanup: tuple[Annotated[tuple[Argument, ...], Field(min_length=1)], ...] = ()
    """Commands after every run, even if it failed or was stopped. They are started like those of `prepare`. If one fails, the run
    gets a flag."""
    result: Argument | None = None
    """File in the run's directory to which the program writes its results, such as `summary.json` or `HPCG-Benchmark*.txt`. It is
    appended to the log that the parsers read."""
    launch: LaunchMethod = "once"
    """Launcher of the ranks. `once`: the program starts its own ranks. `per_rank`: one process per device, with RANK, WORLD_SIZE,
    MASTER_ADDR etc. `srun`: one Slurm task per device, for programs that find each other through Slurm. `mpirun`, `horovodrun`,
    `torchrun`: this launcher starts the ranks (several hosts were tested with emulated hosts only; horovodrun is untested)."""
    launch_options: tuple[Argument, ...] = ()
    """Additional options of `srun`, `mpirun`, `horovodrun` or `torchrun`, with names in braces as in `command`."""
    mpi: Annotated[str, StringConstraints(pattern=AXIS_PATTERN)] | None = None
    """With `srun`: type of MPI, as in `srun --mpi=pmix`. With `mpirun`: MPI implementation, `openmpi` (default) or `mpich`."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables, with names in braces as in `command`. Do not write secrets here: `HF_TOKEN: {from: environment}` takes
    the value from the environment in which the campaign is started, and the value is not stored."""
    precision_arguments: dict[Precision, tuple[Argument, ...]] = Field(default_factory=dict)
    """Arguments appended to the command, by precision."""
    precision_environment: dict[Precision, Variables] = Field(default_factory=dict)
    """Additional environment variables, by precision."""
    software: Software | None = None
    """Software environment of the program. Default: programs on the PATH."""
    parser: ParserName | None = None
    """Built-in parser for the output. `campaign workload parse` applies it to a saved log."""
    test: Literal["only", "last"] | Annotated[int, Field(ge=1)] = "only"
    """Test that counts if `parser` finds several in the output, such as a run to reach equilibrium and the run after it: a number
    from 1, or `last`. With `only`, a run with several tests is `invalid`, and its record lists them."""
    parsers: tuple[Parser, ...] = ()
    """Instead of `parser`: expressions that read the output."""

    @model_validator(mode="after")
    def _check_consistency(self) -> CommandWorkload:
        if self.parser is not None and self.parsers:
            raise ValueError("give either 'parser' or 'parsers'")
        if self.test != "only" and self.parser is None:
            raise ValueError("'test' selects a test of a built-in 'parser'; with 'parsers', use 'take' instead")
        if self.launch_options and self.launch in ("once", "per_rank"):
            raise ValueError(
                f"'launch_options' needs a launcher, but 'launch: {self.launch}' has none; remove 'launch_options'"
            )
        if self.mpi is not None and self.launch not in ("srun", "mpirun"):
            raise ValueError("'mpi' is allowed only with 'launch: srun' or 'launch: mpirun'; remove it")
        if self.launch == "mpirun" and self.mpi not in (None, "openmpi", "mpich"):
            raise ValueError(f"'mpi: {self.mpi}' is not supported with 'launch: mpirun'; use openmpi or mpich")
        if self.launch == "horovodrun" and self.runs_in_container:
            raise ValueError(
                "'launch: horovodrun' cannot start containers on other hosts; use 'launch: mpirun' with an image"
            )
        for key in ("precision_arguments", "precision_environment"):
            if undeclared_precisions := [
                precision for precision in getattr(self, key) if precision not in self.precisions
            ]:
                raise ValueError(
                    f"'{key}' has the precision {undeclared_precisions[0]}, which is "
                    "not in 'precisions'; add it there or remove it here"
                )
        return self

    @classmethod
    def reference_tables(cls) -> Iterator[ReferenceTable]:
        """Yield the table of placeholder names (names in braces) for the reference page."""
        names = [(f"`{{{name}}}`", meaning) for name, meaning in {**AXES, **RUN_VALUES}.items()]
        introduction = "The options of the workload, and these names:"
        yield ReferenceTable("Names in braces", introduction, ("Name", "Meaning"), names)

    @property
    def starts_single_process(self) -> bool:
        """True if a single launcher or program is started for all devices of a run."""
        return self.launch not in ("per_rank", "srun")

    @property
    def needs_slurm(self) -> bool:
        """True if `launch` is `srun`, because only Slurm can start such programs."""
        return self.launch == "srun"

    @property
    def reads_log(self) -> bool:
        """True, because the results are read from the printed output."""
        return True

    @property
    def log_parser(self) -> str | None:
        return self.parser

    @property
    def custom_parsers(self) -> Sequence[Parser]:
        return self.parsers

    @property
    def log_test(self) -> int | Literal["last"] | None:
        return None if self.test == "only" else self.test

    def parse_tests(self, log: Log) -> Sequence[LogReading]:
        """Parse all tests in a log with the built-in parser, or only the test that the workload file selects."""
        return [] if self.parser is None else select_tests(read_tests(self.parser, log, RunContext()), self.log_test)

    def with_test(self, test_number: int) -> Self:
        """Return a copy of the workload that reads only the test with this number (from 1) from its logs."""
        return self.model_copy(update={"test": test_number})

    @property
    def runs_in_container(self) -> bool:
        """True if the program runs in an Apptainer image."""
        return self.software is not None and self.software.apptainer is not None

    def input_names(self) -> tuple[str, ...]:
        """Return the file names in `inputs` or, by default, the words of the commands that may be names of scripts."""
        scripts = (word for command in (self.command, *self.prepare) for word in _split_shell_command(command))
        return tuple(
            word.removeprefix(WORKLOAD_DIR_PREFIX) for word in (scripts if self.inputs is None else self.inputs)
        )

    def script_names(self) -> tuple[str, ...]:
        """Return the words of the commands that count as scripts only if a file of that name exists before the run starts."""
        if self.inputs is not None:
            return ()
        has_generated_files = self.prepare or self.runs_in_container
        program_words = (
            () if has_generated_files or _split_shell_command(self.command) is not self.command else self.command
        )
        commands = (self.command, *self.prepare)
        prefixed_names = [
            word.removeprefix(WORKLOAD_DIR_PREFIX)
            for words in commands
            for word in words
            if word.startswith(WORKLOAD_DIR_PREFIX)
        ]
        return (*prefixed_names, *(word for word in program_words if not word.startswith(("-", WORKLOAD_DIR_PREFIX))))

    @property
    def reported_metrics(self) -> list[str] | None:
        """Names of the metrics that the parsers report, or None if they are not known beforehand."""
        names = (
            list(self.metrics) if self.parser in PARSERS_WITHOUT_RATE else [parser.metric for parser in self.parsers]
        )
        return names or None

    def list_columns(self) -> Mapping[str, Any]:
        """Return the program, launch method and parser of the workload as columns of `campaign workload list`."""
        return {
            "model or program": self._get_program_name(),
            "launch": self.launch,
            "parser": self.parser or ("its own" if self.parsers else None),
        }

    def _get_program_name(self) -> str:
        """Extract the name of the program from the command, without its interpreter and directories."""
        values = dict.fromkeys(RESERVED_NAMES, "") | self.options
        words = self.command[4:] if self.command[:2] == ("sh", "-c") else self.command
        filled_words = [fill_template(word, values, self.name) for word in words if not word.startswith("-")]
        scripts = [word for word in filled_words if "/" in word or word.endswith((".py", ".sh"))]
        return (scripts or filled_words)[0].rpartition("/")[2]

    def problems(self, context: ValidationContext) -> Iterator[str]:
        """Yield an error message for each unknown placeholder name, relative program path or unsupported launcher."""
        names = RESERVED_NAMES | set(self.options)
        for position, text in walk_texts(self.model_dump(include=_TEMPLATE_KEYS)):
            yield from collect_problems(check_template, text, names, context.format_location(*position))
        if self.software is not None:
            for position, text in walk_texts(self.software.model_dump(include={"conda", "venv", "apptainer"})):
                # These depend on options only, not on the run, so only options are allowed in braces.
                yield from collect_problems(
                    check_template, text, self.options, context.format_location("software", *position)
                )
        for index, word in enumerate(self.inputs or ()):
            yield from collect_problems(check_template, word, self.options, context.format_location("inputs", index))
        yield from find_misnamed_metrics(
            self.parsers, lambda index, key: context.format_location("parsers", index, key)
        )
        commands: list[tuple[tuple[str | int, ...], tuple[str, ...]]] = [(("command",), self.command)]
        commands += [(("prepare", position), words) for position, words in enumerate(self.prepare)]
        commands += [(("cleanup", position), words) for position, words in enumerate(self.cleanup)]
        for key, (program, *_) in commands:
            if "/" in program and not program.startswith(("/", "{")):
                yield (
                    f"{context.format_location(*key, 0)}: '{program}' is a relative path, but every run starts in its own "
                    f"directory; give the full path, '{WORKLOAD_DIR_PREFIX}{program}' for a program next to the workload file, "
                    "or a program on the PATH"
                )
        if self.needs_slurm and context.launcher == "local":
            yield (
                f"{context.format_location('launch')}: srun needs a Slurm job, but system '{context.system}' has "
                "`launcher: local`; use a system (or a profile) with `launcher: slurm`, or set `launch` to per_rank, mpirun or "
                "torchrun"
            )

    def missing_requirements(self, kinds: Collection[AcceleratorKind] = ()) -> str | None:
        """Return an error message if the program cannot be found on this machine, else None."""
        program = self.command[0]
        if "{" in program or shutil.which(program):
            return None
        return f"command: '{program}' was not found on this machine; install it, or give its full path"

    def software_document(self, options: Mapping[str, Scalar], cache: Path) -> dict[str, Any] | None:
        """Describe the software environment of the program for records, including the version of its launcher."""
        software = self._resolve_software(options)
        launcher = self.launch if self.launch in ("mpirun", "horovodrun") else None
        return environments.build_software_document(software, launcher, cache, f"workload '{self.name}'")

    def _resolve_software(self, options: Mapping[str, Scalar]) -> Software | None:
        """Return the software environment of the program, with a cell's options filled in, or None if it has none."""
        if self.software is None:
            return None
        return fill_software(self.software, {**self.options, **options}, f"workload {self.name}")

    def explain_missing_values(self, log: Log) -> list[str]:
        """Return possible reasons why the parsers found no results in a log."""
        return collect_hints(log, self.parser, self.parsers)

    def step(self, run: Run) -> Step:
        """Build the step that starts the workload's command for a run."""
        location = f"workload {self.name}"
        words = (*self.command, *self.precision_arguments.get(cast(Precision, run.cell.precision), ()))
        options = [
            fill_template(part, self._collect_template_values(run), f"{location}: launch_options")
            for part in self.launch_options
        ]
        return self._build_step(run, words, self.launch, options)

    def preparation_steps(self, run: Run) -> Sequence[Step]:
        """Build the steps that start the commands in `prepare` before a run."""
        return [self._build_step(run, words, "once") for words in self.prepare]

    def cleanup_steps(self, run: Run) -> Sequence[Step]:
        """Build the steps that start the commands in `cleanup` after a run."""
        return [self._build_step(run, words, "once") for words in self.cleanup]

    def result_file(self, run: Run) -> str | None:
        """Return the name of the program's result file, with values of the run filled in, or None if it writes none."""
        return (
            None
            if self.result is None
            else fill_template(self.result, self._collect_template_values(run), f"workload {self.name}: result")
        )

    def _build_step(self, run: Run, words: Sequence[str], launch: LaunchMethod, options: Sequence[str] = ()) -> Step:
        """Build the step that starts one of the workload's commands in its software environment.

        Args:
            run: the run that the step belongs to.
            words: program and arguments, with names in braces.
            launch: method that starts the ranks.
            options: options of the launcher, with values already filled in.
        """
        values = self._collect_template_values(run)
        location = f"workload {self.name}"
        environment = self._build_environment(run, values, location)
        software = self._resolve_software(run.cell.options)
        if path := build_search_path(software, environment.get("PATH", os.environ.get("PATH", os.defpath))):
            environment |= {"PATH": path, "VIRTUAL_ENV": path.split("/bin:", 1)[0]}
        filled_words = [fill_template(part, values, f"{location}: command") for part in words]
        program = [run.files.get(word, word) for word in filled_words]
        command = build_command_line(run, launch, self.mpi, software, options, program, environment)
        return Step(
            argv=command.argv,
            environment=environment,
            ranks_by_host=run.ranks_by_host,
            per_rank=launch in ("per_rank", "srun"),
            srun=(*([f"--mpi={self.mpi}"] if self.mpi else []), *options) if launch == "srun" else (),
            program_at=command.program_at,
            wrapped_ranks=command.wrapped_ranks,
        )

    def _collect_template_values(self, run: Run) -> dict[str, Scalar]:
        """Collect the values of all names that may appear in braces, for one run."""
        return collect_template_values(self.options, run.cell, run.repetition, run.workload_dir)

    def _build_environment(self, run: Run, values: Mapping[str, Scalar], location: str) -> dict[str, str]:
        """Build the environment variables that the workload file defines for the ranks of a run."""
        definitions = {**self.environment, **self.precision_environment.get(cast(Precision, run.cell.precision), {})}
        # On a CPU a device is one core. Our own launchers set this for the ranks that they start themselves.
        is_single_threaded = run.runs_on == "cpu" and self.launch in ("mpirun", "horovodrun", "torchrun")
        threads = {"OMP_NUM_THREADS": "1"} if is_single_threaded else {}
        return threads | resolve_variables(definitions, f"{location}: environment", values)

    def read(self, run: Run, step_end: StepEnd, log: Log) -> Outcome:
        """Determine the outcome of a run from its end and from the numbers in its log."""
        if failure_outcome := step_end.failure_outcome(log):
            return failure_outcome
        cell = run.cell
        scope = RunContext(
            ranks=cell.configuration.ranks,
            hosts=cell.configuration.hosts,
            batch=cell.batch,
            batch_global=cell.batch_global,
            warmup_steps=cell.settings.warmup_steps,
            measured_steps=cell.settings.measured_steps,
            test=self.log_test,
            ended_normally=step_end.has_exit_codes,
        )
        reading = read_log(self.parser, log, scope) if self.parser else read_expressions(self.parsers, log, scope)
        if step_end.has_exit_codes:
            reading = reading.without_cut_off_flag()
        status, problem = reading.status, reading.problem
        if status == "ok" and (mismatch := self.find_program_mismatch(reading, {**self.options, **cell.options})):
            status, problem = "invalid", mismatch
        failure = None if status == "ok" else Failure(reason=problem, evidence=log.read_tail())
        return Outcome(
            status=status,
            failure=failure,
            throughput_per_s=reading.throughput_per_s,
            step_times_s=reading.step_times_s,
            window_s=tuple(map(math.fsum, reading.step_times_s)) if failure is None else (),
            metrics=dict(reading.metrics),
            steady=reading.steady,
            flags=reading.flags,
        )

    def find_program_mismatch(self, reading: LogReading, options: Mapping[str, Scalar]) -> str:
        """Explain why a reading seems to be from a program that the command does not start; an empty string if it does not."""
        program_pattern = load_format(self.parser).program_pattern if self.parser else None
        if program_pattern is not None and reading.program:
            values = {**dict.fromkeys(RESERVED_NAMES, ""), **options}
            names = {fill_template(word, values, self.name).rpartition("/")[2] for word in self.command}
            started_programs = sorted(name.removesuffix("_mpi") for name in names if program_pattern.fullmatch(name))
            if started_programs and reading.program not in started_programs:
                return f"the output is from {reading.program}, but the command starts {', '.join(started_programs)}"
        reported_names = [name for name in self.metrics if name in reading.metrics]
        if self.metrics and self.parser in PARSERS_WITHOUT_RATE and not reported_names:
            return (
                f"the output has none of the metrics {', '.join(self.metrics)}, only "
                f"{', '.join(reading.metrics) or 'no other number'}"
            )
        return ""


def _split_shell_command(command: Sequence[str]) -> Sequence[str]:
    """Split a command into words. If it is `sh -c` or `bash -c`, the script is split into its words, too."""
    if tuple(command[:2]) not in (("sh", "-c"), ("bash", "-c")) or len(command) < 3:
        return command
    try:
        return (*shlex.split(command[2]), *command[3:])
    except ValueError:
        return command
