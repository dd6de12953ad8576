"""Documents of the files of the campaign to which imported records belong. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from campaign.importing.log_facts import PRECISIONS, CellPoint
from campaign.plan.campaign.import_file import ImportFile
from campaign.spec.cell import Scalar
from campaign.workloads.protocol import Workload

MISSING_LOG_REASON = "no log of it was found"
_CELL_AXES = ("configuration", "workload", "batch", "precision")
_MAX_VALUES_PER_CONDITION = 12  # The length of an expression is limited.


def make_system_document(
    import_file: ImportFile, workloads: Mapping[str, Workload], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the system file as a document.

    If the system has a pool, a simulated fabric replaces the real fabric, which logs do not mention. Likewise, Slurm replaces
    the actual launcher if a workload needs it.

    Args:
        import_file: content of the map.
        workloads: workloads by name.
        notes: notes that are added to those of the map.
    """
    system = import_file.system
    needs_slurm = any(file.needs_slurm for file in workloads.values())
    fields = system.model_dump(mode="json", exclude_defaults=True, exclude={"notes"})
    for entry in fields.get("pool", ()):
        entry.pop("drawer", None)  # The simulated fabric does not have the drawers of the real chassis.
    return {
        "schema_version": "system/1",
        **fields,
        "launcher": "slurm" if needs_slurm else "local",
        "fabric": {"kind": "simulated" if system.pool else "static"},
        "notes": [*system.notes, *notes],
    }


def make_workload_document(name: str, import_file: ImportFile) -> dict[str, Any]:
    """Return the workload file of an entry with its own parser as a document.

    The document lists all precisions, because the matrix defines which were run.
    """
    file = import_file.workloads[name]
    fields = file.model_dump(mode="json", exclude_defaults=True)
    program: dict[str, Any] = {"command": list(file.command)}
    if file.is_service:
        program |= {key: fields.pop(key) for key in ("parser", "parsers", "test") if key in fields}
        program = {"client": program, "server": {"command": ["unknown"]}}
    kind = "service" if file.is_service else "command"
    return {"name": name, "kind": kind, "precisions": list(PRECISIONS), **fields, **program}


def make_campaign_document(
    import_file: ImportFile,
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
    cells = [_get_axis_values(point, axes, workloads) for point in sorted(points)]
    max_repetitions = max(repetitions.values())
    is_full_matrix = import_file.matrix == "full"
    values = {
        name: _sort_values(cell[index] for cell in cells) for index, name in enumerate((*_CELL_AXES, *sorted(axes)))
    }
    overrides, exclude = ([], []) if is_full_matrix else _restrict_to_cells(values, cells)
    repetitions_by_cell = [(_get_axis_values(point, axes, workloads), count) for point, count in repetitions.items()]
    return {
        "schema_version": "campaign/1",
        "name": import_file.name,
        "title": import_file.title,
        "question": import_file.question,
        "system": import_file.system.name,
        **({"baseline": import_file.baseline} if import_file.baseline else {}),
        **({"metric": import_file.metric.model_dump(mode="json", exclude_defaults=True)} if import_file.metric else {}),
        **({"references": list(import_file.references)} if import_file.references else {}),
        "configurations": [
            shape.model_dump(mode="json", exclude_defaults=True) for shape in import_file.configurations
        ],
        "axes": {
            **({} if is_full_matrix else {"configuration": values["configuration"]}),
            "workload": [name for name in import_file.workloads if is_full_matrix or name in values["workload"]],
            "batch": values["batch"],
            "precision": values["precision"],
            "options": {name: values[name] for name in sorted(axes)},
        },
        "exclude": [{"when": rule, "why": MISSING_LOG_REASON} for rule in exclude],
        "overrides": [*overrides, *_override_fewer_repetitions(values, repetitions_by_cell)],
        "protocol": {
            **import_file.protocol.model_dump(mode="json"),
            "repetitions": max_repetitions,
            "compositions": compositions,
            "telemetry_s": None,
            "links": {"when": []},
        },
        "imported": True,
    }


def _restrict_to_cells(
    values: Mapping[str, Sequence[Scalar]], cells: Sequence[tuple[Scalar, ...]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the overrides and exclusions that reduce the product of all axis values to the cells with a log.

    Overrides give workloads their own batches and precisions.
    """
    cells_by_workload = ((workload, (configuration, *rest)) for configuration, workload, *rest in cells)
    workloads_by_cells = _group_values_by_rest(cells_by_workload, values["workload"])
    names = [name for name in values if name != "workload"]
    overrides: list[dict[str, Any]] = []
    exclude: list[str] = []
    for workload_cells, workloads in workloads_by_cells.items():
        workload_values = {
            **values,
            "batch": _sort_values(c[1] for c in workload_cells),
            "precision": _sort_values(c[2] for c in workload_cells),
        }
        for condition in _make_conditions("workload", workloads):
            if changed_axes := {
                name: workload_values[name] for name in ("batch", "precision") if workload_values[name] != values[name]
            }:
                overrides.append({"when": condition, "axes": changed_axes})
            workload_condition = condition if len(values["workload"]) > 1 else ""
            exclude += find_absent_combinations(
                names, [workload_values[name] for name in names], workload_cells, workload_condition
            )
    return overrides, exclude


def _override_fewer_repetitions(
    values: Mapping[str, Sequence[Scalar]], repetitions: Iterable[tuple[tuple[Scalar, ...], int]]
) -> Iterator[dict[str, Any]]:
    """Yield overrides for the cells that have fewer repetitions than others.

    They may match cells without a log, where they have no effect.
    """
    max_count_by_cell: dict[tuple[Scalar, ...], int] = {}
    for cell, count in repetitions:
        max_count_by_cell[cell] = max(count, max_count_by_cell.get(cell, 0))
    for count in sorted({*max_count_by_cell.values()})[:-1]:
        other_cells = {cell for cell, max_count in max_count_by_cell.items() if max_count != count}
        for rule in find_absent_combinations(list(values), list(values.values()), other_cells):
            yield {"when": rule, "repetitions": count}


def _sort_values(values: Iterable[Scalar]) -> list[Scalar]:
    """Sort distinct values, with precisions from wide to narrow and other values by size."""
    return sorted(
        set(values),
        key=lambda v: (str(type(v)), PRECISIONS.index(v) if isinstance(v, str) and v in PRECISIONS else 0, v),
    )


def _get_axis_values(point: CellPoint, axes: Collection[str], workloads: Mapping[str, Workload]) -> tuple[Scalar, ...]:
    configuration, workload, batch, precision, options = point
    option_values = {**workloads[workload].options, **dict(options)}
    return configuration, workload, batch, precision, *(option_values[name] for name in sorted(axes))


def find_absent_combinations(
    names: Sequence[str], values: Sequence[Sequence[Scalar]], cells: Iterable[Sequence[Scalar]], condition: str = ""
) -> Iterator[str]:
    """Yield a few short expressions that together match exactly the combinations of values without a cell.

    Each such combination matches one expression.

    Args:
        names: names of the axes, in the order of a cell's values.
        values: values of each axis.
        cells: values of each cell.
        condition: expression that holds for all of these cells.
    """
    if not names:
        return
    name, axis_values = names[0], values[0]
    values_by_rest = _group_values_by_rest(((first, tuple(rest)) for first, *rest in cells), axis_values)
    values_with_cells = {value for equivalent_values in values_by_rest.values() for value in equivalent_values}
    if values_without_cells := [value for value in axis_values if value not in values_with_cells]:
        yield from (_join_conditions(condition, rule) for rule in _make_conditions(name, values_without_cells))
    for remaining_cells, equivalent_values in values_by_rest.items():
        for value_condition in (
            _make_conditions(name, equivalent_values) if len(equivalent_values) < len(axis_values) else [""]
        ):
            yield from find_absent_combinations(
                names[1:], values[1:], remaining_cells, _join_conditions(condition, value_condition)
            )


def _group_values_by_rest(
    cells: Iterable[tuple[Scalar, tuple[Scalar, ...]]], order: Iterable[Scalar]
) -> dict[frozenset[tuple[Scalar, ...]], list[Scalar]]:
    """Group the values of an axis by the set of remaining values of their cells.

    Args:
        cells: pairs of a value of the axis and the remaining values of the cell.
        order: values of the axis. Those without cells are left out.
    """
    rests_by_value: dict[Scalar, set[tuple[Scalar, ...]]] = {}
    for value, rest in cells:
        rests_by_value.setdefault(value, set()).add(rest)
    values_by_rests: dict[frozenset[tuple[Scalar, ...]], list[Scalar]] = {}
    for value in order:
        if value in rests_by_value:
            values_by_rests.setdefault(frozenset(rests_by_value[value]), []).append(value)
    return values_by_rests


def _make_conditions(name: str, values: Sequence[Scalar]) -> list[str]:
    """Return expressions that together match the given values of an axis."""
    parts = [
        list(values[start : start + _MAX_VALUES_PER_CONDITION])
        for start in range(0, len(values), _MAX_VALUES_PER_CONDITION)
    ]
    return [f"{name} == {part[0]!r}" if len(part) == 1 else f"{name} in {part!r}" for part in parts]


def _join_conditions(condition: str, rule: str) -> str:
    """Join two expressions by `and`. Either may be empty."""
    return f"{condition} and {rule}" if condition and rule else condition or rule
