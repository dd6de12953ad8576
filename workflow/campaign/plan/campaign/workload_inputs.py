"""Files whose content is part of a workload's measurement, from its key `inputs` or the scripts in its command."""

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
from campaign.plan.campaign.load import config_directories, validate
from campaign.spec.cell import Scalar
from campaign.spec.record import IN_ARCHIVE, campaigns_as_used
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.command_template import fill, names_in, texts
from campaign.workloads.protocol import Workload

_SCRIPTS = (".py", ".sh", ".bash", ".pl", ".R", ".jl", ".lua", ".rb", ".js", ".slurm", ".sbatch")
_SHA256 = re.compile("[0-9a-f]{64}")
_SYSTEM = tuple(map(Path, ("/bin", "/sbin", "/lib", "/lib64", "/usr")))


@dataclass(frozen=True)
class InputFile:
    """A file, and the hash of what it held when the campaign was read."""

    path: str
    sha256: str


Inputs = Mapping[str, Mapping[str, InputFile]]
"""Workload -> name of the file as the workload's file has it, filled in -> the file."""


def carried_place(text: str, sha256: str) -> str:
    """Return the path of an input file inside an archive.

    This is the path that the workload file in config/workloads/ refers to, or else a path with the file's hash.
    """
    beside = os.path.normpath(f"config/workloads/{text}")
    if not text.startswith("/") and beside.startswith("config/"):
        return beside
    return f"config/inputs/{sha256[:20]}/{Path(text).name}"


class MeasuredWorkloads:
    """Workloads and their input files as the plan and the records of a campaign name them.

    They keep what was measured valid when a file is gone, or when its output is read in another way.
    """

    def __init__(self, campaign_path: Path, results: Path | None = None) -> None:
        """results: directory of the campaign's results, where that is known."""
        extracted = campaign_path.absolute().parent.parent
        self._extracted = extracted if (extracted / IN_ARCHIVE).is_file() else None
        self._directories = list(dict.fromkeys(filter(None, (results and results.absolute(), self._extracted))))

    @cached_property
    def _inputs(self) -> list[Inputs]:
        found: list[Inputs] = []
        for document in (document for directory in self._directories for document in campaigns_as_used(directory)):
            with suppress(ConfigError):
                found.append(from_document(document.get("inputs", {})))
        return found

    def reading(self, workload: Workload) -> dict[str, Any] | None:
        """Return how the logs of an equal workload were read when it was first measured.

        Returns None if it was never measured, or is still read in the same way.
        """
        own = workload.runs()
        for document in (each for directory in self._directories for each in campaigns_as_used(directory, every=True)):
            before = stored_workload(document, workload.name)
            if type(before) is type(workload) and before.runs() == own:
                with suppress(ConfigError):
                    first = first_readings(document, {workload.name: before}).get(workload.name, before.reading())
                    return None if first == workload.reading() else dict(first)
        return None

    def named(self, workload: str, text: str) -> Iterator[InputFile]:
        """Yield the recorded versions of a workload's input file, from the newest document on."""
        known = (inputs.get(workload, {}).get(text) for inputs in self._inputs)
        yield from (file for file in known if file is not None)

    def carried(self, workload: str, text: str) -> Path | None:
        """Return the path of a workload's input file in the extracted archive, or None."""
        if self._extracted is None:
            return None
        places = (self._extracted / carried_place(text, file.sha256) for file in self.named(workload, text))
        return next((place.resolve() for place in places if place.is_file()), None)


def stored_workload(as_used: Mapping[str, Any], name: str) -> Workload | None:
    """Return a workload of a stored campaign, or None if it is absent or not readable by this version."""
    with suppress(ConfigError, TypeError, KeyError, AttributeError):
        return validate(YamlFile(Path(name), as_used["workloads"][name], {}), Workload)
    return None


def first_readings(as_used: Mapping[str, Any], workloads: Mapping[str, Workload]) -> dict[str, dict[str, Any]]:
    """Return how the logs of these workloads were first read, as far as a stored campaign records it.

    Raises ConfigError if the stored campaign is damaged.
    """
    try:
        found = {name: each for name, each in as_used.get("readings", {}).items() if name in workloads}
        known = all(type(each) is dict and each.keys() <= workloads[name].reading_keys for name, each in found.items())
    except AttributeError:
        known = False
    if not known:
        raise ConfigError("the stored campaign is damaged (readings); restore it from an archive")
    return found


def read_inputs(
    campaign_path: Path,
    workloads: Mapping[str, Workload],
    axes: Mapping[str, Sequence[Scalar]],
    sources: Sources,
    measured: MeasuredWorkloads | None = None,
) -> dict[str, dict[str, InputFile]]:
    """Read the input files of every workload. A file that is gone is taken from what was measured.

    Raises ConfigError, which lists the missing files that were never measured.

    Args:
        campaign_path: path of the campaign file.
        workloads: workloads by name.
        axes: values of each option.
        sources: the documents behind the campaign, for places in messages.
        measured_workloads: workloads as they were measured; None to read them beside the campaign file.
    """
    measured = measured or MeasuredWorkloads(campaign_path)
    found: dict[str, dict[str, InputFile]] = {}
    problems: list[str] = []
    for name, workload in workloads.items():
        source = sources.workload(name)
        above = source.path.resolve().parent
        directories = list(dict.fromkeys([above, above.parent, *config_directories(campaign_path), ROOT]))
        files: dict[str, InputFile] = {}
        for place, text in _filled(workload, axes):
            path = measured.carried(name, text) or _find(text, directories)
            gone = None if path is not None or text.startswith("-") else next(measured.named(name, text), None)
            if gone is not None:
                files[text] = gone
            elif workload.inputs is None:
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
    """Return the directory of each workload file that mentions `{workload_dir}`, by workload."""
    return {
        name: str(sources.workload(name).path.resolve().parent)
        for name, workload in workloads.items()
        if any("workload_dir" in names_in(text) for _, text in texts(workload.model_dump(exclude_defaults=True)))
    }


def inputs_of(workload: Workload, options: Mapping[str, Scalar], inputs: Inputs) -> dict[str, InputFile]:
    """Return the input files of a cell by name.

    Args:
        workload: the workload.
        options: options of the workload, overridden by those of the cell.
        inputs: input files of all workloads.
    """
    known = inputs.get(workload.name, {})
    named = [_fill(word, options, workload) for word in workload.input_words()] if known else []
    return {text: known[text] for text in named if text in known}


def input_identity(workload: Workload, options: Mapping[str, Scalar], inputs: Inputs) -> dict[str, str]:
    """Return the identity of a cell's input files, by name.

    It is the version in the workload's file, or the hash of the content.
    """
    files = inputs_of(workload, options, inputs)
    return {text: workload.version_of(text) or file.sha256 for text, file in files.items()}


def missing_files(
    workloads: Mapping[str, Workload], axes: Mapping[str, Sequence[Scalar]], inputs: Inputs, *, elsewhere: bool
) -> Iterator[tuple[str, str]]:
    """Yield workload and message per missing file that runs need, either a script of its command or an input file.

    Args:
        workloads: workloads by name.
        axes: values of each option.
        inputs: input files of all workloads.
        elsewhere: whether runs start on other hosts, which may have files of an absolute path that this host lacks.
    """
    for name, workload in workloads.items():
        known = inputs.get(name, {})
        for text, file in known.items():
            if not Path(file.path).is_file():
                yield (
                    name,
                    (
                        f"input file '{text}' is missing: {file.path} is not there (SHA-256 {file.sha256[:12]}..); put it there "
                        "again; what was measured with it still counts"
                    ),
                )
        words = [(0, word) for word in workload.script_words()]
        for text in dict.fromkeys(text for _, text in _filled_words(words, workload, axes)):
            path = Path(text)
            there = text in known or (path.is_absolute() and (elsewhere or path.is_file()))
            if path.suffix in _SCRIPTS and not there:
                yield (
                    name,
                    (
                        f"command: no file '{text}' beside the workload's or the campaign's file; put it there, or give "
                        "'inputs: []' if it is none that has to be there"
                    ),
                )


def edited(workloads: Mapping[str, Workload], now: Inputs, measured: Inputs) -> list[str]:
    """Return a message per file whose content differs from the measured one."""
    messages = []
    for name, files in now.items():
        then = {text: file.sha256 for text, file in measured.get(name, {}).items()}
        changed = [text for text, file in files.items() if then.get(text, file.sha256) != file.sha256]
        kept = {text: then[text] if text in changed else workloads[name].version_of(text) for text in files}
        for text in changed:
            told = f"{files[text].path}: was edited after it was measured"
            if version := workloads[name].version_of(text):
                messages.append(f"{told}; its version '{version}' counts, so that nothing is measured again")
                continue
            keeps = yaml.safe_dump({"inputs": kept}, default_flow_style=True, width=float("inf")).strip()[1:-1]
            messages.append(
                f"{told}, and 'campaign run' measures the edited file. Where the edit changes nothing that is measured, write "
                f"`{keeps}` into the file of workload '{name}': what was measured then counts"
            )
    return messages


def refuse_edited(files: Mapping[str, InputFile], *, in_container: bool = False) -> None:
    """Raise LaunchError if a file is gone or was edited after the campaign was planned.

    Its runs would mix two programs.
    """
    for file in files.values():
        if not Path(file.path).is_file():
            if in_container:
                continue  # the image may have it
            raise LaunchError(
                f"{file.path}: is not there on this host, so that the runs that need it cannot be started; put it where every host "
                "sees it, then run the same command again"
            )
        try:
            same = _hashed(Path(file.path)).sha256 == file.sha256
        except ConfigError as error:
            raise LaunchError(str(error)) from error
        if not same:
            raise LaunchError(
                f"{file.path}: was edited after the campaign was planned, so that its runs would be of two programs; run the same "
                "command again to measure the edited one"
            )


def document(inputs: Inputs) -> dict[str, Any]:
    """Return the input files as a JSON-serialisable dict."""
    return {name: {text: vars(file) for text, file in files.items()} for name, files in sorted(inputs.items())}


def from_document(stored: Any) -> dict[str, dict[str, InputFile]]:
    """Build the input files from the result of `dump_inputs`. Raises ConfigError if it is damaged."""
    try:
        found = {name: {text: InputFile(**file) for text, file in files.items()} for name, files in stored.items()}
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"the stored campaign is damaged (inputs: {error}); restore it from an archive") from error
    for file in (file for files in found.values() for file in files.values()):
        if not (isinstance(file.path, str) and isinstance(file.sha256, str) and _SHA256.fullmatch(file.sha256)):
            raise ConfigError(f"the stored campaign is damaged (inputs: {file}); restore it from an archive")
    return found


def _filled(workload: Workload, axes: Mapping[str, Sequence[Scalar]]) -> Iterator[tuple[int, str]]:
    """Yield position and text of every input file name, for every value of the options in it."""
    return _filled_words(enumerate(workload.input_words()), workload, axes)


def _filled_words(
    words: Iterable[tuple[int, str]], workload: Workload, axes: Mapping[str, Sequence[Scalar]]
) -> Iterator[tuple[int, str]]:
    for place, word in words:
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
    """Yield the program itself with its hash, unless it belongs to the operating system."""
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
        with open_regular(path) as file:
            return read(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); it is an input of a workload") from error


def _missing(text: str, directories: Sequence[Path]) -> str:
    looked = "" if text.startswith("/") else f" in {', '.join(map(str, directories))}"
    return f"no file '{text}'{looked}; name a file, or remove it from 'inputs'"
