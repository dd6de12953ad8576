"""The campaign that imported records belong to, as the documents of its files. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from campaign.config.import_file import ImportFile
from campaign.documents.cell import Scalar
from campaign.importing.exclusion_rules import either, others
from campaign.importing.log_identity import PRECISIONS, Point
from campaign.workloads.protocol import Workload

WHY = "no log of it was found"
_AXES = ("configuration", "workload", "batch", "precision")


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
    kept = said.workloads[name].model_dump(mode="json", exclude_defaults=True)
    command = list(said.workloads[name].command)
    return {"name": name, "kind": "command", "precisions": list(PRECISIONS), **kept, "command": command}


def campaign_document(
    said: ImportFile,
    points: Collection[Point],
    axes: Collection[str],
    repetitions: Mapping[str, int],
    workloads: Mapping[str, Workload],
) -> dict[str, Any]:
    """The campaign file. axes: options that are axes; repetitions: planned, by workload."""
    cells = [_values(point, axes, workloads) for point in sorted(points)]
    most = max(repetitions.values())
    full = said.matrix == "full"
    values = {name: _sorted(cell[place] for cell in cells) for place, name in enumerate((*_AXES, *sorted(axes)))}
    overrides, exclude = ([], []) if full else _sparse(values, cells)
    document: dict[str, Any] = {
        "schema_version": "campaign/1",
        "name": said.name,
        "title": said.title,
        "question": said.question,
        "system": said.system.name,
        **({"baseline": said.baseline} if said.baseline else {}),
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
        "overrides": [
            *overrides,
            *(
                {"when": f"workload == {name!r}", "repetitions": count}
                for name, count in sorted(repetitions.items())
                if count < most
            ),
        ],
        "protocol": {
            "warmup_steps": said.protocol.warmup_steps,
            "measured_steps": said.protocol.measured_steps,
            "seed": said.protocol.seed,
            "order": said.protocol.order,
            "repetitions": most,
            "telemetry_s": None,
            "links": {"when": []},
        },
        "imported": True,
    }
    return document


def _sparse(
    values: Mapping[str, Sequence[Scalar]], cells: Sequence[tuple[Scalar, ...]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What makes of the product the cells that were found: own batches and precisions of workloads, and exclusions."""
    by_workload: dict[Scalar, set[tuple[Scalar, ...]]] = {}
    for configuration, workload, *rest in cells:
        by_workload.setdefault(workload, set()).add((configuration, *rest))
    alike: dict[frozenset[tuple[Scalar, ...]], list[Scalar]] = {}
    for workload, its_own in by_workload.items():
        alike.setdefault(frozenset(its_own), []).append(workload)
    names = [name for name in values if name != "workload"]
    overrides, exclude = [], []
    for found, workloads in alike.items():
        own = {**values, "batch": _sorted(c[1] for c in found), "precision": _sorted(c[2] for c in found)}
        for at in range(0, len(workloads), 12):
            of = either("workload", workloads[at : at + 12])
            if changed := {name: own[name] for name in ("batch", "precision") if own[name] != values[name]}:
                overrides.append({"when": of, "axes": changed})
            exclude += others(names, [own[name] for name in names], found, of if len(by_workload) > 1 else "")
    return overrides, exclude


def _sorted(values: Iterable[Scalar]) -> list[Scalar]:
    """Each once; precisions from wide to narrow, others by size."""
    return sorted(
        set(values),
        key=lambda v: (str(type(v)), PRECISIONS.index(v) if isinstance(v, str) and v in PRECISIONS else 0, v),
    )


def _values(point: Point, axes: Collection[str], workloads: Mapping[str, Workload]) -> tuple[Scalar, ...]:
    configuration, workload, batch, precision, options = point
    given = {**workloads[workload].options, **dict(options)}
    return configuration, workload, batch, precision, *(given[name] for name in sorted(axes))
