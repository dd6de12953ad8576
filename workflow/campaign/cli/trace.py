"""`campaign workload trace`: a replay workload from real runs, from public numbers or from a Chakra execution trace."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource
from pydantic import TypeAdapter, ValidationError

from campaign.cli.cluster import read_system_file
from campaign.cli.options import PATH, STEPS, WARMUP, Number, options_option
from campaign.cli.terminal import following, warn
from campaign.config.load import LoadedFile
from campaign.documents.cell import Scalar
from campaign.documents.fields import NAME_PATTERN, PATTERN_WORDS, Name, Precision
from campaign.errors import ConfigError
from campaign.files import write_atomic
from campaign.run.try_workload import Wish, find_workload
from campaign.workloads.protocol import Workload

if TYPE_CHECKING:
    from campaign.workloads.traces.trace_file import Trace

_CHAKRA = (".et", ".et.gz", ".json")
_RATES = ("samples_per_s", "step_s", "tflops", "mfu_pct")
_OF_PUBLIC = frozenset((*_RATES, "source", "optimizer_pct", "options"))
_OF_RUNS = frozenset(("system", "warmup_steps", "measured_steps", "options"))


_ABOVE_0 = Number(0, min_open=True)


class _Listed(click.ParamType[tuple[Any, ...]]):
    """Values with commas between them."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.name, self._kind = f"{kind.name}[,...]", kind

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        return tuple(self._kind.convert(part.strip(), param, context) for part in value.split(","))


@dataclass(frozen=True)
class _Asked:
    """The steps that a trace is of."""

    batches: tuple[int, ...] | None
    precisions: tuple[Precision, ...] | None
    device: str | None

    def one(self, what: str, **also: object) -> tuple[str, Precision, int]:
        """Device, precision and batch, each of them given and one."""
        needed = {"device-model": self.device, "precision": self.precisions, "batch": self.batches, **also}
        if absent := [f"--{option}" for option, value in needed.items() if value is None]:
            raise ConfigError(f"{what} is of one device, precision and batch; also give {', '.join(absent)}")
        precisions, batches = self.precisions or (), self.batches or ()
        if len(precisions) > 1 or len(batches) > 1:
            raise ConfigError(f"{what} is of one --precision and one --batch; add the others with --add-to, one by one")
        return _named(self.device or "", "--device-model"), precisions[0], batches[0]


@click.command()
@click.argument("name", metavar="NAME|FILE")
@click.option(
    "--batch",
    "batches",
    type=_Listed(click.IntRange(1)),
    metavar="N[,N...]",
    help="Samples of a step. Default of a run: 8.",
)
@click.option(
    "--precision",
    "precisions",
    type=_Listed(click.Choice(get_args(Precision))),
    metavar="FORMAT[,...]",
    help="Number format. Default of a run: the first precision of the workload.",
)
@options_option
@click.option("--device-model", "device", metavar="MODEL", help="Name of the device in system files.")
@click.option(
    "--system", help="System file of the device, or its name under config/systems. Default: a core of this machine."
)
@click.option("--warmup", "warmup_steps", type=WARMUP, default=5, help="Steps before the measurement.")
@click.option("--steps", "measured_steps", type=STEPS, default=20, help="Steps that are timed.")
@click.option("--samples-per-s", type=_ABOVE_0, metavar="RATE", help="Public throughput of one device.")
@click.option("--step-s", type=_ABOVE_0, metavar="SECONDS", help="Public time of a step on one device.")
@click.option("--tflops", type=_ABOVE_0, metavar="RATE", help="Operations of the model that one device does, 10^12/s.")
@click.option("--mfu-pct", type=_ABOVE_0, metavar="PERCENT", help="The same, in percent of the device's peak.")
@click.option(
    "--optimizer-pct",
    type=Number(0, 99),
    default=0.0,
    metavar="PERCENT",
    help="Part of the optimizer in the public number.",
)
@click.option("--source", metavar="TEXT", help="Where the public number stands.")
@click.option("--output", "-o", type=PATH, help="A new workload file. Default: standard output.")
@click.option("--add-to", metavar="TRACE", help="A trace of the same model, which gets the compute times.")
def trace(name: str, options: dict[str, Scalar], output: Path | None, add_to: str | None, **given: Any) -> None:
    """Write a replay workload: the layers of a model, and how long a device takes for a step.

    NAME is a workload with a built-in model. It is run here on one device, once for each batch and precision; the
    first run gives the shares of the layers. On GPUs this is not verified yet.

    \b
      campaign workload trace bert-nano --batch 4,8 --precision fp32,bf16 -o config/workloads/bert-nano-here.yaml

    With a public number (--samples-per-s, --step-s, --tflops or --mfu-pct), nothing is run: layers have shares by
    their operations, and the number says how long a step takes.

    \b
      campaign workload trace bert-large --device-model v100-16gb --batch 6 --precision fp16-o2 \\
        --samples-per-s 32.5 --source "where it stands" -o config/workloads/bert-large-v100.yaml

    --add-to adds a further device, precision or batch to such a file.

    FILE is an MLCommons Chakra execution trace (.et, or .json of chakra_jsonizer) of one rank of a data-parallel
    step. It needs --device-model, --precision and --batch, which such traces do not hold.
    """
    if output and add_to:
        raise ConfigError("--output writes a new file and --add-to changes one; give one of them")
    if output and output.exists():
        raise ConfigError(f"{output} exists; name a new file, or add compute times to this one with --add-to {output}")
    there = find_workload(add_to) if add_to else None
    asked = _Asked(given.pop("batches"), given.pop("precisions"), given.pop("device"))
    stated = {rate: value for rate in _RATES if (value := given.pop(rate)) is not None}
    public = {key: given.pop(key) for key in ("source", "optimizer_pct")}
    if name.endswith(_CHAKRA):
        _refuse(_OF_PUBLIC | _OF_RUNS, "a Chakra execution trace; leave it out")
        traced = _from_chakra(Path(name), output, asked)
    else:
        found = _with_options(find_workload(name), options)
        called = _name_of(output, f"{found.model.name}-trace")
        if stated:
            _refuse(
                _OF_RUNS - _OF_PUBLIC, f"a public number ({_options(stated)}), with which nothing is run; leave it out"
            )
            traced = _published(found.model, called, asked, stated, **public)
        else:
            _refuse(_OF_PUBLIC - _OF_RUNS, f"a run; leave it out, or give a public number ({_options(_RATES)})")
            traced = _measured(found, called, asked, options, **given)
    _write(traced, output, there)


def _refuse(names: Iterable[str], of: str) -> None:
    """ConfigError where one of these options was given."""
    context = click.get_current_context()
    for name in sorted(names):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(each for each in context.command.params if each.name == name)
            raise ConfigError(f"{option.opts[0]} is not for {of}")


def _with_options(found: LoadedFile[Workload], options: Mapping[str, Scalar]) -> LoadedFile[Workload]:
    return replace(found, model=found.model.model_copy(update={"options": {**found.model.options, **options}}))


def _measured(
    found: LoadedFile[Workload],
    name: str,
    asked: _Asked,
    options: Mapping[str, Scalar],
    system: str | None,
    **steps: Any,
) -> Trace:
    from campaign.run.try_workload import trace_workload

    if asked.device:
        _named(asked.device, "--device-model")
    batches, precisions = asked.batches or (8,), asked.precisions or found.model.precisions[:1]
    wishes = [Wish(batch, precision, **steps) for precision in precisions for batch in batches]
    words = ["campaign", "workload", "trace", found.model.name, "--batch", ",".join(map(str, batches))]
    words += ["--precision", ",".join(precisions), *(f"--option {key}={value}" for key, value in options.items())]
    words += ["--system", system] if system else []
    log = Path(tempfile.mkdtemp(prefix="campaign-trace-")) / f"{found.model.name}.log"
    log.touch()
    with following(found.model.name, log):
        here = read_system_file(system) if system else None
        return trace_workload(found, name, wishes, here, log, " ".join(words), asked.device)


def _name_of(output: Path | None, name: str) -> str:
    """The name of the new workload, which is that of its file."""
    if output is None:
        return name[:48]
    if output.suffix != ".yaml":
        raise ConfigError(f"{output}: a workload file ends with .yaml; name it {output.with_suffix('.yaml')}")
    return _named(output.stem, "--output")


def _named(text: str, option: str) -> str:
    try:
        return TypeAdapter(Name).validate_python(text)
    except ValidationError as error:
        words = f"{PATTERN_WORDS[NAME_PATTERN]}, at most 48"
        raise ConfigError(f"{option}: '{text}' is not a name; names have {words}") from error


def _from_chakra(path: Path, output: Path | None, asked: _Asked) -> Trace:
    from campaign.workloads.traces.chakra import chakra_trace

    found = chakra_trace(path, _name_of(output, "chakra-trace"), *asked.one("a Chakra execution trace"))
    warn(f"{path}: not in the trace: {words}" for words in found.left_out)
    return found.workload


def _options(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _published(
    found: Workload, name: str, asked: _Asked, stated: dict[str, float], source: str | None, optimizer_pct: float
) -> Trace:
    from campaign.workloads.traces.published import Published, published_trace

    if len(stated) > 1:
        raise ConfigError(f"{_options(stated)} are several ways to say how long a step takes; give one of them")
    device, precision, batch = asked.one(_options(stated), source=source)
    number = Published(device, precision, batch, source or "", optimizer_pct=optimizer_pct, **stated)
    return published_trace(found, name, number)


def _write(traced: Trace, output: Path | None, there: LoadedFile[Workload] | None) -> None:
    from campaign.workloads.traces.trace_file import text_of, with_rows

    rows = ", ".join(
        f"{row.device} {row.precision} batch {row.batch}: {row.seconds:g} s a step" for row in traced.compute
    )
    if there:
        write_atomic(there.source.path, with_rows(there.model, there.source.path, traced))
        click.echo(f"{there.source.path}: added {rows}")
    elif output:
        write_atomic(output, text_of(traced))
        layers = sum(layer.repeat for layer in traced.layers)
        click.echo(f"{output}: {layers} layers with {traced.parameters:,} parameters; {rows}")
    else:
        click.echo(text_of(traced), nl=False)
