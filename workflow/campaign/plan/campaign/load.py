"""Reading of files into validated models. Every problem results in one message with location and remedy."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ValidationError

from campaign.common.credentials import find_secrets_in_document, mask_secrets
from campaign.common.errors import ConfigError, suggest_name
from campaign.common.paths import CONFIG_DIRECTORY
from campaign.fabrics import FABRICS, list_fabric_modules, load_fabric_kind
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.fields import PATTERN_WORDS
from campaign.spec.metric import get_unit_words
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import Location, YamlFile, read_yaml
from campaign.workloads import load_stored_class, load_workload_class, remove_obsolete_keys
from campaign.workloads.protocol import Workload

_NOUNS: dict[type[BaseModel], str] = {CampaignFile: "campaign", SystemFile: "system", Workload: "workload"}

_MAX_PROBLEMS = 20
"""Maximum number of problems of a file in one message. A range that is out of bounds would have thousands."""

_M = TypeVar("_M", bound=BaseModel)
_R = TypeVar("_R")

_PATTERN_STARTS = {
    "^https?://": "a whole address, such as https://falcon.example:443",
    "^/": "an absolute path, such as /scratch",
}


Noun = Literal["campaign", "system", "workload", "claims"]


def detect_noun(document: Mapping[str, Any]) -> Noun:
    """Detect the kind of a file by its keys. The default is a campaign."""
    if {"axes", "configurations"} & document.keys():
        return "campaign"
    if {"fabric", "hosts", "pool"} & document.keys():
        return "system"
    if "claims" in document:
        return "claims"
    return "workload" if {"kind", "precisions", "command"} & document.keys() else "campaign"


@dataclass(frozen=True)
class LoadedFile(Generic[_M]):
    """A valid model and the document from which it was read, for locations in later messages."""

    model: _M
    source: YamlFile


def load_campaign_file(path: Path) -> LoadedFile[CampaignFile]:
    """Read and validate a campaign file."""
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file; name a campaign file, or create a project with one by 'campaign init'"
        )
    source = read_yaml(path)
    if (noun := detect_noun(source.data)) != "campaign":
        names = {"system": "system", "workload": "axes.workload", "claims": "references"}[noun]
        raise ConfigError(f"{path}: this is a {noun} file; name a campaign file, which refers to it under `{names}`")
    return LoadedFile(validate(source, CampaignFile), source)


def load_named(kind: type[_M], name: str, campaign_path: Path, location: str = "") -> LoadedFile[_M]:
    """Find, read and validate a system or workload file for a campaign.

    Args:
        kind: model of the file.
        name: name of the file without its ending.
        campaign_path: path of the campaign file.
        location: location of the reference to the file, for messages.
    """
    source = read_yaml(_find_file(f"{_noun_for_model(kind)}s", name, campaign_path, location))
    return LoadedFile(validate(source, kind, name), source)


def read_system(name: str, campaign_path: Path) -> SystemFile:
    """Read the system file of this name for a campaign."""
    return load_named(SystemFile, name, campaign_path).model


def _noun_for_model(kind: type[BaseModel]) -> str:
    return _NOUNS.get(kind, "import")


def list_config_directories(campaign_path: Path) -> list[Path]:
    """Return the directories whose `systems/` and `workloads/` a campaign can name.

    These are the campaign's directory, its parent, its subdirectory `config`, and the configuration directory of the package.
    """
    campaign_directory = campaign_path.resolve().parent
    return list(
        dict.fromkeys(
            [
                campaign_directory,
                campaign_directory.parent,
                *filter(Path.is_dir, [campaign_directory / "config"]),
                CONFIG_DIRECTORY,
            ]
        )
    )


def _find_file(folder: str, name: str, campaign_path: Path, place: str = "") -> Path:
    directories = list_config_directories(campaign_path)
    for directory in directories:
        candidate = directory / folder / f"{name}.yaml"
        if candidate.is_file():
            return candidate
    available = sorted({path.stem for directory in directories for path in (directory / folder).glob("*.yaml")})
    searched = ", ".join(str(directory / folder) for directory in directories)
    raise ConfigError(
        f"{place or campaign_path}: no {folder[:-1]} '{name}' in {searched}; {suggest_name(name, available)}"
    )


def collect_results(calls: Iterable[Callable[[], _R]]) -> list[_R]:
    """Return the results of all calls.

    Raises one ConfigError with the distinct messages of all calls that raise one.
    """
    problems: list[str] = []
    results: list[_R] = []
    for call in calls:
        try:
            results.append(call())
        except ConfigError as error:
            problems += str(error).split("\n")
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return results


def validate(source: YamlFile, kind: type[_M], name: str | None = None, *, stored: bool = False) -> _M:
    """Validate a campaign, system, workload or import map.

    Raises ConfigError, which lists every problem with line, key and remedy.

    Args:
        source: the document.
        kind: model of the document.
        name: required `name` of a document that is found by the name of its file.
        stored: True if the document is part of stored results; its fabric is not checked and may no longer exist.
    """

    def check_name() -> None:
        if (declared_name := source.data.get("name", name)) != name:
            raise ConfigError(
                f"{source.format_location('name')}: '{declared_name}' differs "
                f"from the name of the file, '{name}'; rename one of them"
            )

    def check_systems() -> None:
        # A misspelt key `system` is already reported as an unknown key.
        if not difflib.get_close_matches("system", map(str, source.data), n=1, cutoff=0.75):
            raise ConfigError(
                f"{source.format_location('system')}: this key is missing; name a system file, or several in `systems`"
            )

    if kind is CampaignFile and source.data.get("imported") is True and isinstance(source.data.get("protocol"), dict):
        # Logs do not show the order of compositions, so the order is unknown unless the import map gives it.
        protocol = {"lease_order": "least-recomposition", **source.data["protocol"]}
        source = replace(source, data={**source.data, "protocol": protocol})
    if kind is Workload and not source.lines:
        source = replace(source, data=remove_obsolete_keys(source.data))
    calls: list[Callable[[], Any]] = [
        lambda: _validate_part(_select_model(kind, source), source, _noun_for_model(kind))
    ]
    if kind is SystemFile:
        calls.append(lambda: _check_fabric(source, stored))
    if kind is CampaignFile:
        calls.append(check_systems)
    if name is not None:
        calls.append(check_name)
    valid = collect_results(calls)[0]
    if source.lines:  # Only files are checked. Stored documents describe past measurements and cannot be corrected.
        _refuse_secrets(source)
    return cast(_M, valid)


def _refuse_secrets(source: YamlFile) -> None:
    """Raise ConfigError if a value looks like a secret."""
    problems = []
    for place, description in find_secrets_in_document(source.data):
        has_name = "environment" in place[:-1] or "precision_environment" in place
        name, suffix = (place[-1], "") if has_name else ("NAME", ", which the program reads")
        problems.append(
            f"{source.format_location(*place)}: {description} looks like a secret, which records, pages and archives would show; "
            "take it from the environment in which the campaign is started: "
            f"`environment: {{{name}: {{from: environment}}}}`{suffix}"
        )
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _select_model(kind: type[BaseModel], source: YamlFile) -> type[BaseModel]:
    if kind is not Workload:
        return kind
    if "kind" not in source.data:
        where = source.format_location(name="workload")
        raise ConfigError(f"{where}: the key 'kind' is missing; docs/reference/configuration.md lists the kinds")
    try:
        return load_workload_class(str(source.data["kind"])) if source.lines else load_stored_class(source.data)
    except ConfigError as error:
        raise ConfigError(f"{source.format_location('kind')}: {error}") from None


def _check_fabric(source: YamlFile, stored: bool) -> None:
    fabric = source.data.get("fabric")
    if stored or not isinstance(fabric, dict):
        return  # A stored fabric may not be installed here. A `fabric` that is no mapping is reported by the model.
    kind = fabric.get("kind")
    kinds = FABRICS if str(kind) in FABRICS else list_fabric_modules()
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(
            f"{source.format_location('fabric', 'kind')}: {kind!r} is not a fabric; {suggest_name(str(kind), kinds)}"
            if "kind" in fabric
            else f"{source.format_location('fabric', 'kind')}: this key is missing; choose one of: {', '.join(kinds)}"
        )
    _validate_part(
        load_fabric_kind(kind).options, source, "fabric", {k: v for k, v in fabric.items() if k != "kind"}, ("fabric",)
    )


def _validate_part(
    model: type[BaseModel], source: YamlFile, noun: str, data: Any = None, prefix: Location = ()
) -> BaseModel:
    """Validate a document or a part of it, and return the model.

    Validation is strict, so '3' is not accepted as a number and 1 is not accepted as true. The data are passed as JSON, so lists
    are valid tuples.
    """
    data = source.data if data is None else data
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        problems: list[dict[str, Any]] = [{**problem} for problem in error.errors(include_url=False)]
    locations = [problem["loc"] for problem in problems]
    misspelt = {
        (*location[:-1], _guess_key(location, model, data))
        for location in (p["loc"] for p in problems if p["type"] == "extra_forbidden")
    }
    by_place: dict[Location, list[dict[str, Any]]] = {}
    for problem in problems:
        location = problem["loc"]
        # Consequences of other problems are skipped: a list that is too short only without its invalid values, and a missing key
        # that is present but misspelt.
        if problem["type"] == "too_short" and any(
            longer[: len(location)] == location != longer for longer in locations
        ):
            continue
        if problem["type"] != "missing" or location not in misspelt:
            by_place.setdefault(_locate_in_document(location, data), []).append(problem)
    shown = list(by_place.items())[:_MAX_PROBLEMS]
    lines = [
        _format_problem(source, model, noun, place_problems, data, prefix, place) for place, place_problems in shown
    ]
    if hidden_count := len(by_place) - len(shown):
        lines.append(f"{source.path}: there are {hidden_count} more problems; correct those above first")
    raise ConfigError("\n".join(lines))


def _format_problem(
    source: YamlFile,
    model: Any,
    noun: str,
    problems: list[dict[str, Any]],
    data: Any,
    prefix: Location,
    inner: Location,
) -> str:
    """Format pydantic's problems at one location as a single message.

    There are several problems if the model has alternatives.
    """
    problem = next((problem for problem in problems if problem["type"] == "finite_number"), problems[0])
    context, value = problem.get("ctx", {}), problem["input"]
    if problem["type"] == "value_error":
        inner = (*inner, *find_named_key(problem["msg"], value))
    where = source.format_location(*prefix, *inner, name=noun)
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key; {suggest_name(str(inner[-1]), _list_allowed_keys(model, inner[:-1], data))}"
        case "missing":
            return f"{where}: this key is missing; docs/reference/configuration.md explains it"
        case "too_short":
            return f"{where}: the list is empty; add at least one value"
        case "string_pattern_mismatch" if context["pattern"] in PATTERN_WORDS:
            return f"{where}: {_shorten(value)} is not valid here; use {PATTERN_WORDS[context['pattern']]}"
        case "string_pattern_mismatch":
            pattern_words = next(
                (words for start, words in _PATTERN_STARTS.items() if context["pattern"].startswith(start)), ""
            )
            return (
                f"{where}: {_shorten(value)} is not valid here; use "
                f"{pattern_words or 'a text of the form ' + context['pattern']}"
            )
        case "finite_number":
            problems = [problem]
    texts = dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in problems)
    first, *further = texts
    # An acronym such as YAML at the beginning stays in capitals.
    first = first if first[:2].isupper() else first[:1].lower() + first[1:]
    message = " or ".join([first, *(text.removeprefix("Input should be ") for text in further)])
    if problem["type"] == "value_error" and isinstance(value, dict | list):
        return f"{where}: {message}"
    return f"{where}: {message} (found {_shorten(value)}){suggest_remedy(problem['type'], value, _last_key(inner))}"


def _last_key(location: Location) -> str:
    return next((part for part in reversed(location) if isinstance(part, str)), "")


def _guess_key(location: tuple[str | int, ...], model: Any, data: Any) -> str | int:
    """Return the missing key that an unknown key probably stands for, or the unknown key itself."""
    place = _locate_in_document(location, data)
    matches = difflib.get_close_matches(str(place[-1]), _list_allowed_keys(model, place[:-1], data), n=1)
    return matches[0] if matches else location[-1]


def _shorten(value: object) -> str:
    text = mask_secrets(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def _locate_in_document(loc: tuple[str | int, ...], data: Any) -> Location:
    """Return pydantic's location without parts that are not in the document (union branches, positions of a single value)."""
    location: list[str | int] = []
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            location.append(part)
            data = cast(Any, data)[part]
        elif last and isinstance(data, dict) and isinstance(part, str):
            location.append(part)
    return tuple(location)


def _list_allowed_keys(model: Any, location: Location, data: Any) -> list[str]:
    """Return the keys that a model allows at a location, for suggestions."""
    for part in location:
        data = cast(Any, data)[part]
        candidates = [inner for inner in _list_models(model) if isinstance(part, int) or part in inner.model_fields]
        if isinstance(part, str) and candidates:
            model = candidates[0].model_fields[part].annotation
    return sorted({name for inner in _list_models(model) for name in inner.model_fields})


def _list_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) is None and not isinstance(annotation, types.UnionType):
        return []
    return [model for argument in typing.get_args(annotation) for model in _list_models(argument)]


_NUMBER = re.compile(r"[-+]?(?:0|[1-9]\d*)(?:\.\d*)?")
_QUANTITY = re.compile(r"([-+]?\d+(?:\.\d*)?)\s*([A-Za-zµ%][\w/%]*)")
_TIMES_S = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("ms",), 1e-3),
    **dict.fromkeys(("us", "µs"), 1e-6),
}
# K, M, G and T are powers of two, as in Slurm.
_SIZES_BYTES = {
    unit: 2.0 ** (10 * power)
    for power, units in enumerate((("b", "bytes"), ("k", "kib"), ("m", "mib"), ("g", "gib"), ("t", "tib")))
    for unit in units
}
_KEYS: Mapping[str, tuple[Mapping[str, float], float]] = {
    "_s": (_TIMES_S, 1.0),
    "_min": (_TIMES_S, 60.0),
    "_ms": (_TIMES_S, 1e-3),
    "_bytes": (_SIZES_BYTES, 1.0),
    "_mib": (_SIZES_BYTES, 2.0**20),
    "_gib": (_SIZES_BYTES, 2.0**30),
}
"""Suffix of a key -> factors of the units that can be converted to the unit of the key, and the factor of that unit."""


def suggest_remedy(problem_type: str, value: object, key: str) -> str:
    """Return '; ' and a suggestion for an invalid value, or an empty string if pydantic's message suffices.

    Args:
        problem_type: pydantic's type of the problem.
        value: the invalid value.
        key: key of the value.
    """
    if value is None:
        message = "the key has no value; add one, or remove the key"
    elif problem_type in ("int_type", "int_parsing", "int_from_float", "float_type", "float_parsing"):
        message = _suggest_number(value, key, is_integer_key=problem_type.startswith("int"))
    elif problem_type == "string_type":
        message = _suggest_text(value)
    elif problem_type == "bool_type":
        message = "write true or false, without quotes"
    elif problem_type in ("tuple_type", "list_type"):
        message = (
            f"write a list: [{', '.join(str(value).split())}]"
            if isinstance(value, str | int | float)
            else "write a list: [..]"
        )
    elif problem_type in ("dict_type", "model_type", "model_attributes_type"):
        message = "write keys with values: {key: value}"
    else:
        return ""
    return f"; {message}"


def _suggest_text(value: object) -> str:
    if isinstance(value, dict) and list(value.values()) == [None]:
        return f'put braces in quotes: "{{{next(iter(value))}}}"'
    if isinstance(value, list | dict):
        return "write one text"
    return 'put the word in quotes, such as "no"' if isinstance(value, bool) else f'put it in quotes: "{value}"'


def _suggest_number(text: object, key: str, *, is_integer_key: bool) -> str:
    if isinstance(text, bool) or not isinstance(text, str | float):
        return "write a whole number" if is_integer_key else "write a number"
    if isinstance(text, float):
        return f"write {text:.0f}" if text.is_integer() else "write a whole number"
    words = get_unit_words(f"_{key}")
    with suppress(ValueError):  # 1e3 is a text in YAML 1.1
        value = float(text)
        return (
            "remove the quotes"
            if _NUMBER.fullmatch(text)
            else f"write {value:.12g}"
            if math.isfinite(value)
            else "write a finite number"
        )
    if match := _QUANTITY.fullmatch(text.strip()):
        if quantity := _convert_quantity(float(match[1]), match[2].lower(), key):
            return f"this key is in {words}: write {quantity}"
        return f"this key is in {words}: write only the number" if words else f"write only the number: {match[1]}"
    return f"write a number in {words}" if words else "write a number"


def _convert_quantity(value: float, unit: str, key: str) -> str:
    """Convert a quantity to the unit of its key. Returns '' if one of the two units is unknown."""
    for ending, (units, unit_factor) in _KEYS.items():
        if key.endswith(ending) and unit in units:
            return f"{value * units[unit] / unit_factor:.12g}"
    return ""


def find_named_key(message: str, data: Any) -> tuple[str | int, ...]:
    """Return the location of the first key of `data` named in a message ('key' or 'key.3'), or an empty tuple."""
    for name in re.findall(r"['`]([\w.-]+)[:'`]", message):
        place: tuple[str | int, ...] = ()
        inner = data
        for part in name.split("."):
            if isinstance(inner, dict) and part in inner:
                inner, place = inner[part], (*place, part)
            elif isinstance(inner, list) and part.isdigit() and int(part) < len(inner):
                inner, place = inner[int(part)], (*place, int(part))
            else:
                break
        else:
            return place
    return ()
