"""The campaign that imported records belong to, as the documents of its files. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from campaign.importing.log_facts import PRECISIONS, CellPoint
from campaign.plan.campaign.import_file import ImportFile
from campaign.spec.cell import Scalar
from campaign.workloads.protocol import Workload

WHY = "no log of it was found"
_AXES = ("configuration", "workload", "batch", "precision")
_TOGETHER = 12  # names in one list: an expression has an end


def system_document(said: ImportFile, workloads: Mapping[str, Workload], notes: Sequence[str] = ()) -> dict[str, Any]:
    """The system file. With a pool, a fabric that can hold one stands for the real one, which logs do not tell.

    Likewise Slurm for whoever started the runs, where a workload's file says that it takes it.
    """
    system = said.system
    by_slurm = any(file.needs_slurm for file in workloads.values())
    kept = system.model_dump(mode="json", exclude_defaults=True, exclude={"notes"})
    for entry in kept.get("pool", ()):
        entry.pop("drawer", None)  # of the real chassis, which the one that stands for it does not have
    return {
        "schema_version": "system/1",
        **kept,
        "launcher": "slurm" if by_slurm else "local",
        "fabric": {"kind": "simulated" if system.pool else "static"},
        "notes": [*system.notes, *notes],
    }


def workload_document(name: str, said: ImportFile) -> dict[str, Any]:
    """The workload file of an entry with a parser of its own. It lists all precisions: the matrix says which were run."""
    file = said.workloads[name]
    kept = file.model_dump(mode="json", exclude_defaults=True)
    program: dict[str, Any] = {"command": list(file.command)}
    if file.is_service:
        program |= {key: kept.pop(key) for key in ("parser", "parsers", "test") if key in kept}
        program = {"client": program, "server": {"command": ["unknown"]}}
    kind = "service" if file.is_service else "command"
    return {"name": name, "kind": kind, "precisions": list(PRECISIONS), **kept, **program}


def campaign_document(
    said: ImportFile,
    points: Collection[CellPoint],
    axes: Collection[str],
    repetitions: Mapping[CellPoint, int],
    compositions: int,
    workloads: Mapping[str, Workload],
) -> dict[str, Any]:
    """The campaign file. axes: options that are axes; repetitions: planned, by cell; compositions: most of a configuration."""
    cells = [_values(point, axes, workloads) for point in sorted(points)]
    most = max(repetitions.values())
    full = said.matrix == "full"
    values = {name: _sorted(cell[place] for cell in cells) for place, name in enumerate((*_AXES, *sorted(axes)))}
    overrides, exclude = ([], []) if full else _sparse(values, cells)
    most_of = [(_values(point, axes, workloads), count) for point, count in repetitions.items()]
    return {
        "schema_version": "campaign/1",
        "name": said.name,
        "title": said.title,
        "question": said.question,
        "system": said.system.name,
        **({"baseline": said.baseline} if said.baseline else {}),
        **({"metric": said.metric.model_dump(mode="json", exclude_defaults=True)} if said.metric else {}),
        **({"references": list(said.references)} if said.references else {}),
        "configurations": [shape.model_dump(mode="json", exclude_defaults=True) for shape in said.configurations],
        "axes": {
            **({} if full else {"configuration": values["configuration"]}),
            "workload": [name for name in said.workloads if full or name in values["workload"]],
            "batch": values["batch"],
            "precision": values["precision"],
            "options": {name: values[name] for name in sorted(axes)},
        },
        "exclude": [{"when": rule, "why": WHY} for rule in exclude],
        "overrides": [*overrides, *_fewer(values, most_of)],
        "protocol": {
            **said.protocol.model_dump(mode="json"),
            "repetitions": most,
            "compositions": compositions,
            "telemetry_s": None,
            "links": {"when": []},
        },
        "imported": True,
    }


def _sparse(
    values: Mapping[str, Sequence[Scalar]], cells: Sequence[tuple[Scalar, ...]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What makes of the product the cells that were found: own batches and precisions of workloads, and exclusions."""
    rests = ((workload, (configuration, *rest)) for configuration, workload, *rest in cells)
    alike = _alike(rests, values["workload"])
    names = [name for name in values if name != "workload"]
    overrides: list[dict[str, Any]] = []
    exclude: list[str] = []
    for found, workloads in alike.items():
        own = {**values, "batch": _sorted(c[1] for c in found), "precision": _sorted(c[2] for c in found)}
        for of in _among("workload", workloads):
            if changed := {name: own[name] for name in ("batch", "precision") if own[name] != values[name]}:
                overrides.append({"when": of, "axes": changed})
            only = of if len(values["workload"]) > 1 else ""
            exclude += others(names, [own[name] for name in names], found, only)
    return overrides, exclude


def _fewer(
    values: Mapping[str, Sequence[Scalar]], repetitions: Iterable[tuple[tuple[Scalar, ...], int]]
) -> Iterator[dict[str, Any]]:
    """Overrides for the cells that have fewer repetitions than others; of cells without a log they say anything."""
    most: dict[tuple[Scalar, ...], int] = {}
    for cell, count in repetitions:
        most[cell] = max(count, most.get(cell, 0))
    for count in sorted({*most.values()})[:-1]:
        others_have = {cell for cell, often in most.items() if often != count}
        for rule in others(list(values), list(values.values()), others_have):
            yield {"when": rule, "repetitions": count}


def _sorted(values: Iterable[Scalar]) -> list[Scalar]:
    """Each once; precisions from wide to narrow, others by size."""
    return sorted(
        set(values),
        key=lambda v: (str(type(v)), PRECISIONS.index(v) if isinstance(v, str) and v in PRECISIONS else 0, v),
    )


def _values(point: CellPoint, axes: Collection[str], workloads: Mapping[str, Workload]) -> tuple[Scalar, ...]:
    configuration, workload, batch, precision, options = point
    given = {**workloads[workload].options, **dict(options)}
    return configuration, workload, batch, precision, *(given[name] for name in sorted(axes))


def others(
    names: Sequence[str], values: Sequence[Sequence[Scalar]], cells: Iterable[Sequence[Scalar]], given: str = ""
) -> Iterator[str]:
    """Expressions that together hold for exactly those combinations of values that are no cell, once each: few, each short.

    names: of the axes, in the order of a cell's values; values: of each axis; given: what holds for all of these cells.
    """
    if not names:
        return
    name, every = names[0], values[0]
    alike = _alike(((first, tuple(rest)) for first, *rest in cells), every)
    present = {value for same in alike.values() for value in same}
    if absent := [value for value in every if value not in present]:
        yield from (_and(given, rule) for rule in _among(name, absent))
    for rest_of, same in alike.items():
        for chosen in _among(name, same) if len(same) < len(every) else [""]:
            yield from others(names[1:], values[1:], rest_of, _and(given, chosen))


def _alike(
    cells: Iterable[tuple[Scalar, tuple[Scalar, ...]]], order: Iterable[Scalar]
) -> dict[frozenset[tuple[Scalar, ...]], list[Scalar]]:
    """Values of an axis that have cells, by the rest of these; in the order of values."""
    below: dict[Scalar, set[tuple[Scalar, ...]]] = {}
    for value, rest in cells:
        below.setdefault(value, set()).add(rest)
    alike: dict[frozenset[tuple[Scalar, ...]], list[Scalar]] = {}
    for value in order:
        if value in below:
            alike.setdefault(frozenset(below[value]), []).append(value)
    return alike


def _among(name: str, values: Sequence[Scalar]) -> list[str]:
    """Expressions for any of the values."""
    parts = [list(values[at : at + _TOGETHER]) for at in range(0, len(values), _TOGETHER)]
    return [f"{name} == {part[0]!r}" if len(part) == 1 else f"{name} in {part!r}" for part in parts]


def _and(given: str, rule: str) -> str:
    return f"{given} and {rule}" if given and rule else given or rule
