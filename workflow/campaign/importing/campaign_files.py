"""Documents of the files of the campaign to which imported records belong. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from campaign.importing.log_facts import PRECISIONS, CellPoint
from campaign.plan.campaign.import_file import ImportFile
from campaign.spec.cell import Scalar
from campaign.workloads.protocol import Workload

WHY = "no log of it was found"
_AXES = ("configuration", "workload", "batch", "precision")
_TOGETHER = 12  # because the length of an expression is limited


def system_document(said: ImportFile, workloads: Mapping[str, Workload], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the system file as a document.

    If the system has a pool, a fabric that can hold one stands for the real fabric, which logs do not mention. Likewise, Slurm
    stands
    for the actual launcher if a workload's file needs it.

    Args:
        import_file: content of the map.
        workloads: workloads by name.
        notes: notes that are added to those of the map.
    """
    system = said.system
    by_slurm = any(file.needs_slurm for file in workloads.values())
    kept = system.model_dump(mode="json", exclude_defaults=True, exclude={"notes"})
    for entry in kept.get("pool", ()):
        entry.pop("drawer", None)  # drawer of the real chassis, which the stand-in fabric does not have
    return {
        "schema_version": "system/1",
        **kept,
        "launcher": "slurm" if by_slurm else "local",
        "fabric": {"kind": "simulated" if system.pool else "static"},
        "notes": [*system.notes, *notes],
    }


def workload_document(name: str, said: ImportFile) -> dict[str, Any]:
    """Return the workload file of an entry with its own parser as a document.

    The document lists all precisions, because the matrix defines which were run.
    """
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
    """Return the campaign file as a document.

    Args:
        import_file: content of the map.
        points: cells with a log.
        axes: options that are axes.
        repetitions: planned repetitions by cell.
        compositions: largest number of compositions of a configuration.
        workloads: workloads by name.
    """
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
    """Return the overrides and exclusions that reduce the product of all axis values to the cells with a log.

    Overrides give workloads their own batches and precisions.
    """
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
    """Yield overrides for the cells that have fewer repetitions than others.

    They may match cells without a log, where they have no effect.
    """
    most: dict[tuple[Scalar, ...], int] = {}
    for cell, count in repetitions:
        most[cell] = max(count, most.get(cell, 0))
    for count in sorted({*most.values()})[:-1]:
        others_have = {cell for cell, often in most.items() if often != count}
        for rule in others(list(values), list(values.values()), others_have):
            yield {"when": rule, "repetitions": count}


def _sorted(values: Iterable[Scalar]) -> list[Scalar]:
    """Sort distinct values, with precisions from wide to narrow and other values by size."""
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
    """Yield few and short expressions that together match exactly the combinations of values that are not cells.

    Each such combination matches one expression.

    Args:
        names: names of the axes, in the order of a cell's values.
        values: values of each axis.
        cells: values of each cell.
        condition: expression that holds for all of these cells.
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
    """Group the values of an axis by the set of remaining values of their cells.

    Args:
        cells: pairs of a value of the axis and the remaining values of the cell.
        order: values of the axis. Those without cells are left out.
    """
    below: dict[Scalar, set[tuple[Scalar, ...]]] = {}
    for value, rest in cells:
        below.setdefault(value, set()).add(rest)
    alike: dict[frozenset[tuple[Scalar, ...]], list[Scalar]] = {}
    for value in order:
        if value in below:
            alike.setdefault(frozenset(below[value]), []).append(value)
    return alike


def _among(name: str, values: Sequence[Scalar]) -> list[str]:
    """Return expressions that together match any of the values of an axis."""
    parts = [list(values[at : at + _TOGETHER]) for at in range(0, len(values), _TOGETHER)]
    return [f"{name} == {part[0]!r}" if len(part) == 1 else f"{name} in {part!r}" for part in parts]


def _and(given: str, rule: str) -> str:
    """Join two expressions by `and`. Either may be empty."""
    return f"{given} and {rule}" if given and rule else given or rule
