"""From files to validated models: finds the three nouns, and turns every problem into one message with its place."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from campaign.config.campaign_file import CampaignFile, composed_once
from campaign.config.import_file import ImportFile
from campaign.config.remedies import named_key, remedy
from campaign.config.system_file import SystemFile
from campaign.config.yaml_file import Location, YamlFile, read_yaml
from campaign.documents.fields import PATTERN_WORDS
from campaign.errors import ConfigError, nearest
from campaign.fabrics import FABRICS, fabric_kind, fabric_modules
from campaign.paths import CONFIG
from campaign.workloads import workload_class
from campaign.workloads.protocol import Workload

NOUNS: dict[str, type[BaseModel]] = {
    "campaign": CampaignFile,
    "system": SystemFile,
    "workload": Workload,
    "import": ImportFile,
}

_M = TypeVar("_M", bound=BaseModel)
_R = TypeVar("_R")

_PATTERN_STARTS = {
    "^https?://": "a whole address, such as https://falcon.example:443",
    "^/": "an absolute path, such as /scratch",
}


@dataclass(frozen=True)
class Loaded(Generic[_M]):
    """A valid model and the document it came from, which later messages name places in."""

    model: _M
    source: YamlFile


def load_campaign_file(path: Path) -> Loaded[CampaignFile]:
    """Read and validate a campaign file."""
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file; name a campaign file, or run 'campaign init', which makes a project with one"
        )
    source = read_yaml(path)
    return Loaded(validate(source, CampaignFile), source)


def load_named(kind: type[_M], name: str, campaign_path: Path, place: str = "") -> Loaded[_M]:
    """Find, read and validate the system or workload file `name` for a campaign; place: where it is named, for messages."""
    source = read_yaml(_find(f"{_noun(kind)}s", name, campaign_path, place))
    return Loaded(validate(source, kind, name), source)


def read_system(name: str, campaign_path: Path) -> SystemFile:
    """The system file `name` for a campaign."""
    return load_named(SystemFile, name, campaign_path).model


def _noun(kind: type[BaseModel]) -> str:
    return next(noun for noun, model in NOUNS.items() if model is kind)


def config_directories(campaign_path: Path) -> list[Path]:
    """Directories whose `systems/` and `workloads/` a campaign can name: its own, the one above, the project's."""
    own = campaign_path.resolve().parent
    return list(dict.fromkeys([own, own.parent, CONFIG]))


def files_of(campaign: CampaignFile, campaign_path: Path) -> list[Path]:
    """The campaign's own file, those of its systems and workloads, and of the published claims that it names."""
    workloads = [_find("workloads", name, campaign_path) for name in dict.fromkeys(campaign.axes.workload)]
    systems = [_find("systems", name, campaign_path) for name in campaign.system_names]
    files = [campaign_path, *systems, *workloads]
    if campaign.references:
        from campaign.config.published_file import path_of

        files += [path_of(reference, campaign_path.parent) for reference in campaign.references]
    return files


def _find(folder: str, name: str, campaign_path: Path, place: str = "") -> Path:
    directories = config_directories(campaign_path)
    for directory in directories:
        candidate = directory / folder / f"{name}.yaml"
        if candidate.is_file():
            return candidate
    available = sorted({path.stem for directory in directories for path in (directory / folder).glob("*.yaml")})
    looked = ", ".join(str(directory / folder) for directory in directories)
    raise ConfigError(f"{place or campaign_path}: no {folder[:-1]} '{name}' in {looked}; {nearest(name, available)}")


def gathered(calls: Iterable[Callable[[], _R]]) -> list[_R]:
    """The results of all calls; one ConfigError with the messages of all that raise one, each once."""
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


def validate(source: YamlFile, kind: type[_M], name: str | None = None) -> _M:
    """Validate a document as one of `NOUNS`; ConfigError lists every problem with line, key and remedy.

    name: what the document has to call itself, for a file that is found by its name.
    """

    def check_name() -> None:
        if (inside := source.data.get("name", name)) != name:
            raise ConfigError(
                f"{source.place('name')}: '{inside}' differs from the name of the file, '{name}'; rename one of them"
            )

    def check_systems() -> None:
        # Beside a misspelt key, which is told as such.
        if not difflib.get_close_matches("system", map(str, source.data), n=1, cutoff=0.75):
            raise ConfigError(
                f"{source.place('system')}: this key is missing; name a system file, or several in `systems`"
            )

    if kind is CampaignFile and source.data.get("imported") is True and isinstance(source.data.get("protocol"), dict):
        # Imports of before do not say that their runs are of one composition.
        source = replace(source, data=composed_once(source.data))
    calls: list[Callable[[], Any]] = [lambda: _valid(_model_of(kind, source), source, _noun(kind))]
    if kind is SystemFile:
        calls.append(lambda: _check_fabric(source))
    if kind is CampaignFile:
        calls.append(check_systems)
    if name is not None:
        calls.append(check_name)
    return cast(_M, gathered(calls)[0])


def _model_of(kind: type[BaseModel], source: YamlFile) -> type[BaseModel]:
    if kind is not Workload:
        return kind
    if "kind" not in source.data:
        where = source.place(name="workload")
        raise ConfigError(f"{where}: the key 'kind' is missing; docs/reference/configuration.md lists the kinds")
    try:
        return workload_class(str(source.data["kind"]))
    except ConfigError as error:
        raise ConfigError(f"{source.place('kind')}: {error}") from None


def _check_fabric(source: YamlFile) -> None:
    fabric = source.data.get("fabric")
    if not isinstance(fabric, dict):
        return  # the model says so
    kind = fabric.get("kind")
    known = FABRICS if str(kind) in FABRICS else fabric_modules()
    if not isinstance(kind, str) or kind not in known:
        raise ConfigError(
            f"{source.place('fabric', 'kind')}: {kind!r} is not a fabric; {nearest(str(kind), known)}"
            if "kind" in fabric
            else f"{source.place('fabric', 'kind')}: this key is missing; choose one of: {', '.join(known)}"
        )
    _valid(fabric_kind(kind).options, source, "fabric", {k: v for k, v in fabric.items() if k != "kind"}, ("fabric",))


def _valid(model: type[BaseModel], source: YamlFile, noun: str, data: Any = None, prefix: Location = ()) -> BaseModel:
    """The model of (a part of) a document. Strict, so that '3' is no number and 1 is not true; JSON, so that lists are."""
    data = source.data if data is None else data
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        problems: list[dict[str, Any]] = [{**problem} for problem in error.errors(include_url=False)]
    locations = [problem["loc"] for problem in problems]
    misspelt = {
        (*at[:-1], _meant(at, model, data)) for at in (p["loc"] for p in problems if p["type"] == "extra_forbidden")
    }
    by_place: dict[Location, list[dict[str, Any]]] = {}
    for problem in problems:
        at = problem["loc"]
        # A list without its invalid values may then be too short, too; and a key that is misspelt is missing, too.
        if problem["type"] == "too_short" and any(other[: len(at)] == at != other for other in locations):
            continue
        if problem["type"] != "missing" or at not in misspelt:
            by_place.setdefault(_in_document(at, data), []).append(problem)
    raise ConfigError(
        "\n".join(_message(source, model, noun, found, data, prefix, place) for place, found in by_place.items())
    )


def _message(
    source: YamlFile,
    model: Any,
    noun: str,
    problems: list[dict[str, Any]],
    data: Any,
    prefix: Location,
    inner: Location,
) -> str:
    """One message for all that pydantic says of one place, which is more than one thing where there are alternatives."""
    problem = next((problem for problem in problems if problem["type"] == "finite_number"), problems[0])
    context, found = problem.get("ctx", {}), problem["input"]
    if problem["type"] == "value_error":
        inner = (*inner, *named_key(problem["msg"], found))
    where = source.place(*prefix, *inner, name=noun)
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key; {nearest(str(inner[-1]), _keys_at(model, inner[:-1], data))}"
        case "missing":
            return f"{where}: this key is missing; docs/reference/configuration.md explains it"
        case "too_short":
            return f"{where}: is empty; give it at least one value"
        case "string_pattern_mismatch" if context["pattern"] in PATTERN_WORDS:
            return f"{where}: {_short(found)} is not valid here; use {PATTERN_WORDS[context['pattern']]}"
        case "string_pattern_mismatch":
            meant = next(
                (words for start, words in _PATTERN_STARTS.items() if context["pattern"].startswith(start)), ""
            )
            return (
                f"{where}: {_short(found)} is not valid here; use {meant or 'a text of the form ' + context['pattern']}"
            )
        case "finite_number":
            problems = [problem]
    told = dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in problems)
    first, *others = told
    message = " or ".join(
        [first[:1].lower() + first[1:], *(other.removeprefix("Input should be ") for other in others)]
    )
    if problem["type"] == "value_error" and isinstance(found, dict | list):
        return f"{where}: {message}"
    return f"{where}: {message} (found {_short(found)}){remedy(problem['type'], found, _key(inner))}"


def _key(location: Location) -> str:
    return next((part for part in reversed(location) if isinstance(part, str)), "")


def _meant(location: tuple[str | int, ...], model: Any, data: Any) -> str | int:
    """The missing key that an unknown one probably is; itself where there is none."""
    place = _in_document(location, data)
    near = difflib.get_close_matches(str(place[-1]), _keys_at(model, place[:-1], data), n=1)
    return near[0] if near else location[-1]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _in_document(loc: tuple[str | int, ...], data: Any) -> Location:
    """Pydantic's location without the parts that are not in the document (union branches, positions of a lone value)."""
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


def _keys_at(model: Any, location: Location, data: Any) -> list[str]:
    """Keys that a model allows at a place, for 'did you mean'."""
    for part in location:
        data = cast(Any, data)[part]
        candidates = [inner for inner in _models_in(model) if isinstance(part, int) or part in inner.model_fields]
        if isinstance(part, str) and candidates:
            model = candidates[0].model_fields[part].annotation
    return sorted({name for inner in _models_in(model) for name in inner.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) is None and not isinstance(annotation, types.UnionType):
        return []
    return [model for argument in typing.get_args(annotation) for model in _models_in(argument)]
