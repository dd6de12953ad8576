"""Files whose content is part of what a workload measures: those it names under `inputs`, or the scripts in its command."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.config.check import Sources
from campaign.config.load import config_directories
from campaign.documents.cell import Scalar
from campaign.errors import ConfigError, LaunchError
from campaign.paths import ROOT
from campaign.workloads.command_template import fill, names_in, texts
from campaign.workloads.protocol import Workload

_SCRIPTS = (".py", ".sh", ".bash", ".pl", ".R", ".jl", ".lua", ".rb", ".js", ".slurm", ".sbatch")
_SYSTEM = tuple(map(Path, ("/bin", "/sbin", "/lib", "/lib64", "/usr")))


@dataclass(frozen=True)
class InputFile:
    """A file, and the hash of what it held when the campaign was read."""

    path: str
    sha256: str


Inputs = Mapping[str, Mapping[str, InputFile]]
"""Workload -> name of the file as the workload's file has it, filled in -> the file."""


def read_inputs(
    campaign_path: Path, workloads: Mapping[str, Workload], axes: Mapping[str, Sequence[Scalar]], sources: Sources
) -> dict[str, dict[str, InputFile]]:
    """The input files of every workload that has any. axes: option -> its values; ConfigError names what is not there."""
    found: dict[str, dict[str, InputFile]] = {}
    problems: list[str] = []
    for name, workload in workloads.items():
        source = sources.workload(name)
        above = source.path.resolve().parent
        directories = list(dict.fromkeys([above, above.parent, *config_directories(campaign_path), ROOT]))
        files: dict[str, InputFile] = {}
        for place, text in _filled(workload, axes):
            path = _find(text, directories)
            if workload.inputs is None:
                if path is not None and _is_script(path):
                    files[text] = _hashed(path)
            elif path is None:
                problems.append(f"{source.place('inputs', place)}: {_missing(text, directories)}")
            else:
                files[text] = _hashed(path)
        if workload.inputs is None and not files:
            files = dict(_program(workload, axes, directories))
        if files:
            found[name] = files
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return found


def workload_dirs(workloads: Mapping[str, Workload], sources: Sources) -> dict[str, str]:
    """Directory of the file of every workload that mentions `{workload_dir}`."""
    return {
        name: str(sources.workload(name).path.resolve().parent)
        for name, workload in workloads.items()
        if any("workload_dir" in names_in(text) for _, text in texts(workload.model_dump(exclude_defaults=True)))
    }


def inputs_of(workload: Workload, options: Mapping[str, Scalar], inputs: Inputs) -> dict[str, InputFile]:
    """The input files of a cell with these options (the workload's, with the cell's own on top), by name."""
    known = inputs.get(workload.name, {})
    named = [_fill(word, options, workload) for word in workload.input_words()] if known else []
    return {text: known[text] for text in named if text in known}


def refuse_edited(files: Mapping[str, InputFile]) -> None:
    """LaunchError where a file no longer holds what it held when the campaign was planned: its runs would be mixed."""
    for file in files.values():
        try:
            same = _hashed(Path(file.path)).sha256 == file.sha256
        except ConfigError:
            continue  # of a container, or for the program itself to miss
        if not same:
            raise LaunchError(
                f"{file.path}: was edited after the campaign was planned, so that its runs would be of two programs; run the same "
                "command again to measure the edited one"
            )


def document(inputs: Inputs) -> dict[str, Any]:
    """JSON-able."""
    return {name: {text: vars(file) for text, file in files.items()} for name, files in sorted(inputs.items())}


def from_document(stored: Mapping[str, Mapping[str, Mapping[str, str]]]) -> dict[str, dict[str, InputFile]]:
    """What `document` gave."""
    return {name: {text: InputFile(**file) for text, file in files.items()} for name, files in stored.items()}


def _filled(workload: Workload, axes: Mapping[str, Sequence[Scalar]]) -> Iterator[tuple[int, str]]:
    """Place and text of every name of an input file, for every value of an option in it."""
    for place, word in enumerate(workload.input_words()):
        names = names_in(word)
        if not names <= set(workload.options):
            continue  # a value of the run
        varied = [(name, axes[name]) for name in sorted(names) if name in axes]
        for values in itertools.product(*(values for _, values in varied)):
            chosen = {**workload.options, **dict(zip((name for name, _ in varied), values, strict=True))}
            yield place, fill(word, chosen, workload.name)


def _fill(word: str, options: Mapping[str, Scalar], workload: Workload) -> str:
    return fill(word, options, workload.name) if names_in(word) <= set(options) else ""


def _program(
    workload: Workload, axes: Mapping[str, Sequence[Scalar]], directories: Sequence[Path]
) -> Iterator[tuple[str, InputFile]]:
    """The program itself, where it is none of the system's."""
    for place, text in _filled(workload, axes):
        path = _find(text, directories) if place == 0 and "/" in text else None
        if path is not None and not any(path.is_relative_to(each) for each in _SYSTEM):
            yield text, _hashed(path)


def _find(text: str, directories: Sequence[Path]) -> Path | None:
    candidates = [Path(text)] if text.startswith("/") else [directory / text for directory in directories]
    try:
        return next((path.resolve() for path in candidates if path.is_file()), None)
    except (OSError, ValueError):  # a long text is no name of a file
        return None


def _is_script(path: Path) -> bool:
    if path.suffix in _SCRIPTS:
        return True
    return _read(path, lambda file: file.read(2)) == b"#!" and not any(path.is_relative_to(each) for each in _SYSTEM)


def _hashed(path: Path) -> InputFile:
    return InputFile(str(path), _read(path, lambda file: hashlib.file_digest(file, "sha256")).hexdigest())


def _read(path: Path, read: Callable[[Any], Any]) -> Any:
    try:
        with path.open("rb") as file:
            return read(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); it is an input of a workload") from error


def _missing(text: str, directories: Sequence[Path]) -> str:
    looked = "" if text.startswith("/") else f" in {', '.join(map(str, directories))}"
    return f"no file '{text}'{looked}; name a file, or remove it from 'inputs'"
