"""Input files of workloads, whose content is part of the measurement: those of the key `inputs` or scripts in the command."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.files import open_regular
from campaign.common.paths import ROOT
from campaign.plan.campaign.check import Sources
from campaign.plan.campaign.load import list_config_directories, validate
from campaign.spec.cell import Scalar
from campaign.spec.record import ARCHIVE_PATH, read_campaigns_as_used
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.command_template import fill_template, find_names_in_braces, walk_texts
from campaign.workloads.protocol import Workload

_SCRIPTS = (".py", ".sh", ".bash", ".pl", ".R", ".jl", ".lua", ".rb", ".js", ".slurm", ".sbatch")
_SHA256 = re.compile("[0-9a-f]{64}")
_SYSTEM_DIRECTORIES = tuple(map(Path, ("/bin", "/sbin", "/lib", "/lib64", "/usr")))


@dataclass(frozen=True)
class InputFile:
    """A file, and the hash of its content when the campaign was read."""

    path: str
    sha256: str


Inputs = Mapping[str, Mapping[str, InputFile]]
"""Input files by workload and by their name in the workload file, with placeholders filled in."""


def archive_path(text: str, sha256: str) -> str:
    """Return the path of an input file inside an archive.

    This is the path that the workload file in config/workloads/ refers to, or else a path with the file's hash.
    """
    relative_path = os.path.normpath(f"config/workloads/{text}")
    if not text.startswith("/") and relative_path.startswith("config/"):
        return relative_path
    return f"config/inputs/{sha256[:20]}/{Path(text).name}"


class MeasuredWorkloads:
    """Workloads and their input files as stored with the plan and the records of a campaign.

    They keep records valid after a file was removed, or after a parser has changed.
    """

    def __init__(self, campaign_path: Path, results: Path | None = None) -> None:
        """Find the stored campaigns.

        Args:
            campaign_path: path of the campaign file.
            results: directory of the campaign's results; None if unknown.
        """
        archive_root = campaign_path.absolute().parent.parent
        self._extracted = archive_root if (archive_root / ARCHIVE_PATH).is_file() else None
        self._directories = list(dict.fromkeys(filter(None, (results and results.absolute(), self._extracted))))

    @cached_property
    def _inputs(self) -> list[Inputs]:
        inputs_by_document: list[Inputs] = []
        for document in (document for directory in self._directories for document in read_campaigns_as_used(directory)):
            with suppress(ConfigError):
                inputs_by_document.append(inputs_from_document(document.get("inputs", {})))
        return inputs_by_document

    def find_first_reading(self, workload: Workload) -> dict[str, Any] | None:
        """Return the parser settings with which the logs of an equal workload were first read.

        The result is None if the workload was never measured, or if its parser settings are unchanged.
        """
        run_identity = workload.run_identity_document()
        for document in (
            stored_document
            for directory in self._directories
            for stored_document in read_campaigns_as_used(directory, include_all=True)
        ):
            stored = workload_from_campaign_document(document, workload.name)
            if type(stored) is type(workload) and stored.run_identity_document() == run_identity:
                with suppress(ConfigError):
                    first = read_first_readings(document, {workload.name: stored}).get(
                        workload.name, stored.parsing_document()
                    )
                    return None if first == workload.parsing_document() else dict(first)
        return None

    def find_measured_files(self, workload: str, text: str) -> Iterator[InputFile]:
        """Yield the recorded versions of a workload's input file, from the newest document on."""
        candidates = (inputs.get(workload, {}).get(text) for inputs in self._inputs)
        yield from (file for file in candidates if file is not None)

    def find_archived_file(self, workload: str, text: str) -> Path | None:
        """Return the path of a workload's input file in the extracted archive, or None."""
        if self._extracted is None:
            return None
        places = (
            self._extracted / archive_path(text, file.sha256) for file in self.find_measured_files(workload, text)
        )
        return next((place.resolve() for place in places if place.is_file()), None)


def workload_from_campaign_document(as_used: Mapping[str, Any], name: str) -> Workload | None:
    """Return a workload of a stored campaign, or None if it is absent or not readable by this version."""
    with suppress(ConfigError, TypeError, KeyError, AttributeError):
        return validate(YamlFile(Path(name), as_used["workloads"][name], {}), Workload)
    return None


def read_first_readings(as_used: Mapping[str, Any], workloads: Mapping[str, Workload]) -> dict[str, dict[str, Any]]:
    """Return the parser settings with which the logs of these workloads were first read, if a stored campaign has them.

    Raises ConfigError if the stored campaign is damaged.
    """
    try:
        readings = {name: reading for name, reading in as_used.get("readings", {}).items() if name in workloads}
        is_valid = all(
            type(reading) is dict and reading.keys() <= workloads[name].parsing_keys
            for name, reading in readings.items()
        )
    except AttributeError:
        is_valid = False
    if not is_valid:
        raise ConfigError("the stored campaign is damaged (readings); restore it from an archive")
    return readings


def read_inputs(
    campaign_path: Path,
    workloads: Mapping[str, Workload],
    axes: Mapping[str, Sequence[Scalar]],
    sources: Sources,
    measured_workloads: MeasuredWorkloads | None = None,
) -> dict[str, dict[str, InputFile]]:
    """Read the input files of every workload. The stored entry is used for a measured file that no longer exists.

    Raises ConfigError, which lists the missing files that were never measured.

    Args:
        campaign_path: path of the campaign file.
        workloads: workloads by name.
        axes: values of each option.
        sources: documents of the campaign, for locations in messages.
        measured_workloads: workloads as they were measured; None to look for them next to the campaign file.
    """
    measured_workloads = measured_workloads or MeasuredWorkloads(campaign_path)
    inputs: dict[str, dict[str, InputFile]] = {}
    problems: list[str] = []
    for name, workload in workloads.items():
        source = sources.workload(name)
        workload_directory = source.path.resolve().parent
        directories = list(
            dict.fromkeys(
                [workload_directory, workload_directory.parent, *list_config_directories(campaign_path), ROOT]
            )
        )
        files: dict[str, InputFile] = {}
        for place, text in _fill_input_names(workload, axes):
            path = measured_workloads.find_archived_file(name, text) or _find_file(text, directories)
            measured_file = (
                None
                if path is not None or text.startswith("-")
                else next(measured_workloads.find_measured_files(name, text), None)
            )
            if measured_file is not None:
                files[text] = measured_file
            elif workload.inputs is None:
                if path is not None and _is_script(path):
                    files[text] = _hash_file(path)
            elif path is None:
                problems.append(
                    f"{source.format_location('inputs', place)}: {_describe_missing_file(text, directories)}"
                )
            else:
                files[text] = _hash_file(path)
        if workload.inputs is None and not files:
            files = dict(_find_program(workload, axes, directories))
        if files:
            inputs[name] = files
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return inputs


def find_workload_directories(workloads: Mapping[str, Workload], sources: Sources) -> dict[str, str]:
    """Return the directory of each workload file that mentions `{workload_dir}`, by workload."""
    return {
        name: str(sources.workload(name).path.resolve().parent)
        for name, workload in workloads.items()
        if any(
            "workload_dir" in find_names_in_braces(text)
            for _, text in walk_texts(workload.model_dump(exclude_defaults=True))
        )
    }


def select_inputs(workload: Workload, options: Mapping[str, Scalar], inputs: Inputs) -> dict[str, InputFile]:
    """Return the input files of a cell by name.

    Args:
        workload: the workload.
        options: options of the workload, overridden by those of the cell.
        inputs: input files of all workloads.
    """
    files = inputs.get(workload.name, {})
    file_names = [_fill_or_empty(word, options, workload) for word in workload.input_names()] if files else []
    return {text: files[text] for text in file_names if text in files}


def identify_inputs(workload: Workload, options: Mapping[str, Scalar], inputs: Inputs) -> dict[str, str]:
    """Return the identity of a cell's input files, by name.

    It is the version in the workload's file, or the hash of the content.
    """
    files = select_inputs(workload, options, inputs)
    return {text: workload.find_input_version(text) or file.sha256 for text, file in files.items()}


def find_missing_files(
    workloads: Mapping[str, Workload], axes: Mapping[str, Sequence[Scalar]], inputs: Inputs, *, elsewhere: bool
) -> Iterator[tuple[str, str]]:
    """Yield workload and message per missing file that runs need, either a script in the command or an input file.

    Args:
        workloads: workloads by name.
        axes: values of each option.
        inputs: input files of all workloads.
        elsewhere: True if runs start on other hosts, where absolute paths may exist that this host lacks.
    """
    for name, workload in workloads.items():
        files = inputs.get(name, {})
        for text, file in files.items():
            if not Path(file.path).is_file():
                yield (
                    name,
                    (
                        f"input file '{text}' is missing: there is no file {file.path} (SHA-256 {file.sha256[:12]}..); restore it; "
                        "existing records remain valid"
                    ),
                )
        words = [(0, word) for word in workload.script_names()]
        for text in dict.fromkeys(text for _, text in _fill_words(words, workload, axes)):
            path = Path(text)
            is_present = text in files or (path.is_absolute() and (elsewhere or path.is_file()))
            if path.suffix in _SCRIPTS and not is_present:
                yield (
                    name,
                    (
                        f"command: there is no file '{text}' next to the workload file or the campaign file; put it there, or set "
                        "'inputs: []' if it need not exist"
                    ),
                )


def describe_edited_files(workloads: Mapping[str, Workload], current: Inputs, measured: Inputs) -> list[str]:
    """Return a message per file whose content differs from the measured one."""
    messages = []
    for name, files in current.items():
        measured_hashes = {text: file.sha256 for text, file in measured.get(name, {}).items()}
        changed_names = [text for text, file in files.items() if measured_hashes.get(text, file.sha256) != file.sha256]
        versions = {
            text: measured_hashes[text] if text in changed_names else workloads[name].find_input_version(text)
            for text in files
        }
        for text in changed_names:
            message = f"{files[text].path}: the file was edited after the measurement"
            if version := workloads[name].find_input_version(text):
                messages.append(f"{message}; its version is still '{version}', so nothing is measured again")
                continue
            keeps = yaml.safe_dump({"inputs": versions}, default_flow_style=True, width=float("inf")).strip()[1:-1]
            messages.append(
                f"{message}, so 'campaign run' measures with the edited file. If the edit does not affect the measurement, write "
                f"`{keeps}` into the file of workload '{name}', and the existing records remain valid"
            )
    return messages


def check_unedited(files: Mapping[str, InputFile], *, in_container: bool = False) -> None:
    """Raise LaunchError if a file is missing or was edited after the campaign was planned, because runs would mix two versions."""
    for file in files.values():
        if not Path(file.path).is_file():
            if in_container:
                continue  # the image may have it
            raise LaunchError(
                f"{file.path}: the file is missing on this host, so runs that need it cannot start; put it where every host can "
                "read it, then run the same command again"
            )
        try:
            is_unchanged = _hash_file(Path(file.path)).sha256 == file.sha256
        except ConfigError as error:
            raise LaunchError(str(error)) from error
        if not is_unchanged:
            raise LaunchError(
                f"{file.path}: the file was edited after the campaign was planned, so runs would mix two versions; run the same "
                "command again to measure the edited version"
            )


def dump_inputs(inputs: Inputs) -> dict[str, Any]:
    """Return the input files as a JSON-serialisable dict."""
    return {name: {text: vars(file) for text, file in files.items()} for name, files in sorted(inputs.items())}


def inputs_from_document(document: Any) -> dict[str, dict[str, InputFile]]:
    """Build the input files from the result of `dump_inputs`. Raises ConfigError if it is damaged."""
    try:
        inputs = {name: {text: InputFile(**file) for text, file in files.items()} for name, files in document.items()}
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"the stored campaign is damaged (inputs: {error}); restore it from an archive") from error
    for file in (file for files in inputs.values() for file in files.values()):
        if not (isinstance(file.path, str) and isinstance(file.sha256, str) and _SHA256.fullmatch(file.sha256)):
            raise ConfigError(f"the stored campaign is damaged (inputs: {file}); restore it from an archive")
    return inputs


def _fill_input_names(workload: Workload, axes: Mapping[str, Sequence[Scalar]]) -> Iterator[tuple[int, str]]:
    """Yield the position and text of every input file name, for all values of the options that it contains."""
    return _fill_words(enumerate(workload.input_names()), workload, axes)


def _fill_words(
    words: Iterable[tuple[int, str]], workload: Workload, axes: Mapping[str, Sequence[Scalar]]
) -> Iterator[tuple[int, str]]:
    for place, word in words:
        names = find_names_in_braces(word)
        if not names <= set(workload.options):
            continue  # the name has a placeholder that differs between runs
        varied_options = [(name, axes[name]) for name in sorted(names) if name in axes]
        for values in itertools.product(*(values for _, values in varied_options)):
            options = {**workload.options, **dict(zip((name for name, _ in varied_options), values, strict=True))}
            yield place, fill_template(word, options, workload.name)


def _fill_or_empty(word: str, options: Mapping[str, Scalar], workload: Workload) -> str:
    return fill_template(word, options, workload.name) if find_names_in_braces(word) <= set(options) else ""


def _find_program(
    workload: Workload, axes: Mapping[str, Sequence[Scalar]], directories: Sequence[Path]
) -> Iterator[tuple[str, InputFile]]:
    """Yield the program itself with its hash, unless it belongs to the operating system."""
    for place, text in _fill_input_names(workload, axes):
        path = _find_file(text, directories) if place == 0 and "/" in text else None
        if path is not None and not any(path.is_relative_to(directory) for directory in _SYSTEM_DIRECTORIES):
            yield text, _hash_file(path)


def _find_file(text: str, directories: Sequence[Path]) -> Path | None:
    candidates = [Path(text)] if text.startswith("/") else [directory / text for directory in directories]
    try:
        return next((path.resolve() for path in candidates if path.is_file()), None)
    except (OSError, ValueError):  # the text may be too long for a file name
        return None


def _is_script(path: Path) -> bool:
    if path.suffix in _SCRIPTS:
        return True
    return _read_file(path, lambda file: file.read(2)) == b"#!" and not any(
        path.is_relative_to(directory) for directory in _SYSTEM_DIRECTORIES
    )


def _hash_file(path: Path) -> InputFile:
    return InputFile(str(path), _read_file(path, lambda file: hashlib.file_digest(file, "sha256")).hexdigest())


def _read_file(path: Path, read: Callable[[Any], Any]) -> Any:
    try:
        with open_regular(path) as file:
            return read(file)
    except OSError as error:
        raise ConfigError(f"{path}: this input file of a workload cannot be read ({error.strerror})") from error


def _describe_missing_file(text: str, directories: Sequence[Path]) -> str:
    searched = "" if text.startswith("/") else f" in {', '.join(map(str, directories))}"
    return f"there is no file '{text}'{searched}; name an existing file, or remove it from 'inputs'"
