"""The matrix: every cell that a campaign asks for, and what was left out by which rule. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from campaign.accelerators import ACCELERATORS
from campaign.config.expand_shapes import MAX_COMBINATIONS, product
from campaign.config.launch_prefix_rules import launch_identity, objection
from campaign.config.resolve import Campaign
from campaign.config.workload_inputs import input_identity
from campaign.documents.cell import SHAPE_AXES, Cell, Configuration, Settings
from campaign.documents.expression import Expression, parse
from campaign.documents.lease_plan import HASHED_PARTS
from campaign.documents.run_numbers import runs_of
from campaign.errors import ConfigError
from campaign.files import content_hash
from campaign.plan.cell_settings import SettingsOf
from campaign.plan.selection import CellSelection, HostsOf, axis_names


@dataclass(frozen=True)
class Removed:
    """Cells that a rule removed."""

    rule: str
    why: str
    cells: int


@dataclass(frozen=True)
class Matrix:
    """All cells in the order of the axes, what was removed from the full product, and what the reader of a plan should know.

    where: the expression that selected them.
    """

    cells: tuple[Cell, ...]
    removed: tuple[Removed, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Rules that no cell fulfils."""
    where: str | None = None


def expand(
    campaign: Campaign,
    where: str | None = None,
    configurations: Collection[str] | None = None,
    hosts: HostsOf | None = None,
) -> Matrix:
    """The matrix of a campaign, of the subset `where` (an expression), or of some configurations only.

    hosts: where there are records. Then `where` may name `host`, and selects the cells with a run on a host for which it holds.
    ConfigError for expressions that name no axis, and when nothing is left to measure.
    """
    names = axis_names(campaign)
    exclusions = [
        (parse(e.when, names, campaign.place("exclude", index, "when")), e.why)
        for index, e in enumerate(campaign.file.exclude)
    ]
    chosen = CellSelection(campaign, where, hosts) if where else None
    settings = SettingsOf(campaign, names)
    unused = _Unused((*(e for e, _ in exclusions), *(when for when, _ in settings.overrides)))
    removed: Counter[tuple[str, str]] = Counter()
    cells: dict[str, Cell] = {}
    identity = Specifications(campaign)
    for number, values in enumerate(_combinations(campaign, names, configurations, unused), 1):
        if number > MAX_COMBINATIONS:
            raise ConfigError(f"{campaign.path}: axes: more than {MAX_COMBINATIONS} cells; split the campaign")
        workload = campaign.workloads[values["workload"]]
        cell = _cell(campaign, values)
        axes = cell.axes() if exclusions or chosen or settings.overrides else {}
        unused.try_on(axes)
        if values["precision"] not in workload.precisions:
            removed[f"{workload.name} with {values['precision']}", "the workload does not support this precision"] += 1
            continue
        rule = next(((e.text, why) for e, why in exclusions if e(axes)), None)
        if rule:
            removed[rule] += 1
            continue
        measured = settings(axes, workload, campaign.on(cell.configuration).device_of(cell.configuration).runs_on)
        if chosen is not None and not chosen(axes, partial(identity, cell, measured)):
            removed[f"--where {where}", "not selected"] += 1
            continue
        identity.refuse(cell)
        name = identity(cell, measured)
        cells.setdefault(
            name, Cell(name, cell.configuration, cell.workload, cell.batch, cell.precision, cell.options, measured)
        )
    if not cells and configurations is None:
        said = f"{_told(removed) or 'the axes are empty'}{chosen.known() if chosen else ''}"
        where = "--where" if chosen else campaign.place("exclude") if exclusions else campaign.place("axes")
        raise ConfigError(f"{where}: no cell is left to measure; {said}")
    left_out = tuple(Removed(*rule, count) for rule, count in removed.items())
    notes = [*settings.notes({cell.workload for cell in cells.values()}), *_unverified(campaign)]
    warnings = unused.warnings() if configurations is None else ()
    return Matrix(tuple(cells.values()), left_out, tuple(notes), tuple(warnings), where)


def _unverified(campaign: Campaign) -> Iterator[str]:
    """What nobody has tried of the kinds of devices that configurations have."""
    models = sorted({(c.device, part.device(c.device).runs_on) for part in campaign.parts for c in part.configurations})
    for kind, accelerator in ACCELERATORS.items():
        of_kind = [model for model, runs_on in models if runs_on == kind]
        if of_kind and accelerator.unverified:
            yield f"`runs_on: {kind}` ({', '.join(of_kind)}) is unverified: {accelerator.unverified}"


class _Unused:
    """Rules that no cell has fulfilled so far."""

    def __init__(self, rules: Sequence[Expression]) -> None:
        self.rules = list(rules)

    def try_on(self, axes: Mapping[str, Any]) -> None:
        """Forget the rules that hold for these axis values."""
        if self.rules:
            self.rules = [rule for rule in self.rules if not _holds(rule, axes)]

    def warnings(self) -> Iterator[str]:
        for rule in self.rules:
            yield f"{rule.where}: no cell fulfils '{rule.text}', so the rule does nothing; correct or remove it"


def _holds(rule: Expression, axes: Mapping[str, Any]) -> bool:
    try:
        return rule(axes)
    except ConfigError:
        return False  # of a cell that another rule takes away before this one is asked


def specification(campaign: Campaign, cell: Cell) -> dict[str, Any]:
    """Everything that makes a cell what it is; its id is the hash of this (see `Specifications`)."""
    identity = Specifications(campaign)
    hashed = identity.hashed(cell, cell.settings)
    return {**hashed, **{part: identity.parts[hashed[part]] for part in HASHED_PARTS}}


def cell_id(document: Mapping[str, Any]) -> str:
    """Hash of a specification. Parts are hashed apart, so that 100,000 cells need not serialise their workload each."""
    parts = dict(document)
    for part in HASHED_PARTS:
        parts[part] = content_hash(parts[part])
    return content_hash(parts)


def _system_identity(campaign: Campaign, configuration: Configuration, from_storage: bool) -> dict[str, Any]:
    campaign = campaign.on(configuration)
    model = configuration.device
    identity: dict[str, Any] = {
        "name": campaign.system.name,
        "device": campaign.device(model).model_dump(mode="json", include={"runs_on", "precisions"}),
    }
    if launch := launch_identity(campaign.system, configuration):
        identity["launch"] = launch
    limit = campaign.system.storage_limit_gb_per_s(configuration.storage) if from_storage else None
    if limit is not None:
        identity["storage"] = {"emulated_gb_per_s": limit}
    if campaign.system.emulation is not None:
        links, emulation = campaign.system.links, campaign.system.emulation
        identity["emulation"] = {
            "scale": emulation.scale,
            **({"pace": {model: emulation.pace[model]}} if model in emulation.pace else {}),
            **{
                f"{name}_gb_per_s": link and link.gb_per_s
                for name, link in (("fabric", links.fabric), ("network", links.network))
            },
            **({} if links.local is None else {"local_gb_per_s": links.local.gb_per_s}),
        }
    return identity


def _measured(settings: Settings) -> dict[str, Any]:
    """What the settings add to a cell's identity; what was added later is left out where nothing is asked for."""
    longest = settings.warmup_steps_max
    least_s = {"warmup_min_s": settings.warmup_min_s, "measured_min_s": settings.measured_min_s}
    return {
        "warmup_steps": settings.warmup_steps,
        **({} if longest is None else {"warmup_steps_max": longest}),
        "measured_steps": settings.measured_steps,
        **{name: seconds for name, seconds in least_s.items() if seconds},
        "seed": settings.seed,
    }


class Specifications:
    """Specifications and ids of cells; parts that many cells share are hashed once, and kept by their hash (`parts`)."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.parts: dict[str, dict[str, Any]] = {}
        self._hardware: dict[tuple[Configuration, bool], tuple[str, str]] = {}
        self._workloads = {name: self._part(campaign.workload_identity(name)) for name in campaign.workloads}
        self._objections: dict[tuple[str, str], str | None] = {}

    def refuse(self, cell: Cell) -> None:
        """ConfigError where the cell's workload cannot be started on its devices, or has nowhere to read from."""
        configuration, workload = cell.configuration, self._campaign.workloads[cell.workload]
        key, system = (configuration.name, cell.workload), self._campaign.on(configuration).system
        if key not in self._objections:
            self._objections[key] = objection(system, configuration, workload)
        if why := self._objections[key]:
            raise ConfigError(f"{self._campaign.path}: configuration '{configuration.name}': {why}")
        kind = configuration.storage
        if not workload.reads_storage({**workload.options, **cell.options}):
            return
        if kind not in system.storage:
            raise ConfigError(
                f"{self._campaign.path}: configuration '{configuration.name}': with option input: storage, workload "
                f"'{cell.workload}' reads its samples from storage '{kind}', and system '{system.name}' does not say where its "
                f"hosts have that; add `storage: {{{kind}: {{path: /a/directory/on/it}}}}` to the system's file, or exclude these "
                "cells"
            )

    def _part(self, document: dict[str, Any]) -> str:
        name = content_hash(document)
        self.parts[name] = document
        return name

    def __call__(self, cell: Cell, settings: Settings) -> str:
        return content_hash(self.hashed(cell, settings))

    def hashed(self, cell: Cell, settings: Settings) -> dict[str, Any]:
        """A cell's specification with hashes for `system`, `configuration` and `workload`; its own hash is the cell's id."""
        return {**self._without_batch(cell), "batch": cell.batch, **_measured(settings)}

    def memory_key(self, cell: Cell) -> str:
        """Hash of everything that its use of memory depends on but the batch.

        So not of how many steps are run, nor of the seed; but of the limit that the campaign itself sets.
        """
        return content_hash({**self._without_batch(cell), "memory_limit_mib": self._campaign.protocol.memory_limit_mib})

    def _without_batch(self, cell: Cell) -> dict[str, Any]:
        campaign, workload = self._campaign, self._campaign.workloads[cell.workload]
        chosen = {**workload.options, **cell.options}
        key = cell.configuration, workload.reads_storage(chosen)
        if key not in self._hardware:
            self._hardware[key] = self._part(_system_identity(campaign, *key)), self._part(cell.configuration.shape())
        system, configuration = self._hardware[key]
        # What a cell does not have is not named, so that it has the identity of before there were such.
        inputs = input_identity(workload, chosen, campaign.inputs)
        version, reference = campaign.file.version, cell.reference
        return {
            "system": system,
            "configuration": configuration,
            "workload": self._workloads[cell.workload],
            "precision": cell.precision,
            "options": workload.counted_options(chosen),
            **({"inputs": inputs} if inputs else {}),
            **({"version": version} if version else {}),
            # A reference cell is one of its own on every lease: runs are numbered by cell and composition.
            **({"reference": reference} if reference else {}),
        }


def _combinations(
    campaign: Campaign, names: Collection[str], configurations: Collection[str] | None, unused: _Unused
) -> Iterator[dict[str, Any]]:
    """Axis values of every cell; configuration and workload first, since overrides of axes depend on them."""
    axes = campaign.file.axes
    chosen = [c for c in campaign.configurations if configurations is None or c.name in configurations]
    everything: dict[str, Sequence[Any]] = {
        "configuration": chosen,
        "workload": axes.workload,
        "batch": axes.batch,
        "precision": axes.precision,
        **axes.options,
    }
    zips = campaign.file.zip
    where = campaign.place("zip") if zips else campaign.place("axes")
    if configurations is not None and any("configuration" in names for names in zips):
        # A zip refers to positions in the whole list.
        everything["configuration"] = campaign.configurations
    head = {"configuration", "workload"}
    for together in zips:
        head |= set(together) if head & set(together) else set()
    overrides = [
        (parse(o.when, _shape_only(names), campaign.place("overrides", index, "when")), o.axes)
        for index, o in enumerate(campaign.file.overrides)
        if o.axes is not None
    ]
    known = {rule.where for rule in unused.rules}
    unused.rules += [when for when, _ in overrides if when.where not in known]
    first = {name: values for name, values in everything.items() if name in head}
    rest_zips = [together for together in zips if not set(together) & head]
    for values in product(first, [together for together in zips if set(together) <= head], where):
        if configurations is not None and values["configuration"].name not in configurations:
            continue
        rest = {name: values_ for name, values_ in everything.items() if name not in head}
        for when, changed in overrides:
            replaced = changed.model_dump(exclude_none=True)
            if when({**_shape_axes(values["configuration"]), "workload": values["workload"]}):
                if clash := set(replaced) - set(rest):
                    raise ConfigError(
                        f"{when.where}: {', '.join(clash)} is zipped with the workload or configuration; remove one of the two"
                    )
                rest.update(replaced)
        for more in product(rest, rest_zips, where):
            yield {**values, **more}


def _shape_only(names: Collection[str]) -> frozenset[str]:
    return frozenset(names) & (set(SHAPE_AXES) | {"configuration", "workload"})


def _shape_axes(configuration: Configuration) -> dict[str, Any]:
    return Cell("", configuration, "", 1, "").axes()


def _cell(campaign: Campaign, values: Mapping[str, Any]) -> Cell:
    options = {name: values[name] for name in campaign.file.axes.options}
    batch = 1 if campaign.workloads[values["workload"]].serves_requests else values["batch"]
    return Cell("", values["configuration"], values["workload"], batch, values["precision"], options)


def _told(removed: Counter[tuple[str, str]]) -> str:
    return "; ".join(f"{count} removed by '{rule}' ({why})" for (rule, why), count in removed.items())


def run_set_digest(cells: Sequence[Cell]) -> str:
    """Hash of the runs that a lease is to hold: changes exactly when a cell, a repetition or what ends them is added or removed."""
    return content_hash(json.dumps(sorted((cell.id, _runs(cell.settings)) for cell in cells)), 12)


def _runs(settings: Settings) -> object:
    once = settings.compositions == 1
    runs: object = settings.repetitions if once else runs_of(settings)
    if settings.target_half_width_pct is None:
        return runs
    return settings.repetitions_min, runs, settings.target_half_width_pct
