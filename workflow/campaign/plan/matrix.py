"""Matrix of a campaign: all requested cells, and the cells that rules removed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from campaign.common.accelerators import ACCELERATORS
from campaign.common.errors import ConfigError
from campaign.common.files import hash_document
from campaign.common.wording import pluralize
from campaign.plan.axis_combinations import UnusedRules, combine_axes
from campaign.plan.campaign.expand_shapes import MAX_COMBINATIONS
from campaign.plan.campaign.launch_prefix_rules import explain_unusable_devices, identify_launch
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.workload_inputs import identify_inputs
from campaign.plan.cell_settings import CellSettings
from campaign.plan.selection import CellSelection, HostsByCell, list_axis_names
from campaign.spec.cell import Cell, Configuration, Settings
from campaign.spec.expression import parse_expression
from campaign.spec.lease_plan import HASHED_PARTS
from campaign.spec.run_numbers import list_run_numbers


@dataclass(frozen=True)
class RemovedByRule:
    """Cells that a rule removed."""

    rule: str
    why: str
    cells: int


@dataclass(frozen=True)
class Matrix:
    """All cells in the order of the axes, the cells removed from the full product, and notes for readers of a plan."""

    cells: tuple[Cell, ...]
    removed: tuple[RemovedByRule, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Rules that no cell fulfils."""
    where: str | None = None
    """Expression that selected the cells."""
    compositions: Mapping[str, int] | None = None
    """Number of compositions that a race requests per configuration, 1 for others; None if all planned ones are measured."""

    def is_wanted(self, cell: Cell, composition: int) -> bool:
        """Return whether a cell is to be measured on a composition."""
        return self.compositions is None or composition <= self.compositions.get(cell.configuration.name, 1)


def expand_matrix(
    campaign: Campaign,
    where: str | None = None,
    configurations: Collection[str] | None = None,
    hosts: HostsByCell | None = None,
) -> Matrix:
    """Expand the matrix of a campaign. Raises ConfigError if an expression is invalid, or if nothing is left to measure.

    Args:
        campaign: the campaign.
        where: expression that selects cells; None for all cells.
        configurations: names of the configurations to expand; None for all.
        hosts: recorded hosts of each cell; `where` may then name `host`, which selects cells with a run on a matching host.
    """
    names = list_axis_names(campaign)
    filters = _CellFilters(campaign, names, where, hosts)
    settings = CellSettings(campaign, names)
    unused_rules = UnusedRules((*(rule for rule, _ in filters.exclusions), *(rule for rule, _ in settings.overrides)))
    needs_axes = filters.reads_axes or bool(settings.overrides)
    removal_counts: Counter[tuple[str, str]] = Counter()
    cells: dict[str, Cell] = {}
    identity = Specifications(campaign)
    for number, values in enumerate(combine_axes(campaign, names, configurations, unused_rules), 1):
        if number > MAX_COMBINATIONS:
            raise ConfigError(
                f"{campaign.path}: axes: there are more than {MAX_COMBINATIONS} cells; split the campaign"
            )
        cell = _build_cell(campaign, values)
        axes = cell.axes() if needs_axes else {}
        unused_rules.drop_fulfilled(axes)
        rule = filters.find_exclusion(cell, axes)
        if rule:
            removal_counts[rule] += 1
            continue
        device = campaign.part_on(cell.configuration).device_model(cell.configuration)
        cell_settings = settings(axes, campaign.workloads[cell.workload], device.runs_on)
        if not filters.is_selected(axes, partial(identity, cell, cell_settings)):
            removal_counts[f"--where {where}", "not selected"] += 1
            continue
        identity.require_startable(cell)
        name = identity(cell, cell_settings)
        cells.setdefault(
            name, Cell(name, cell.configuration, cell.workload, cell.batch, cell.precision, cell.options, cell_settings)
        )
    if not cells and configurations is None:
        raise ConfigError(filters.explain_empty_matrix(removal_counts))
    return Matrix(
        cells=tuple(cells.values()),
        removed=tuple(RemovedByRule(*rule, count) for rule, count in removal_counts.items()),
        notes=(*settings.list_notes({cell.workload for cell in cells.values()}), *_note_unverified_devices(campaign)),
        warnings=tuple(unused_rules.warnings()) if configurations is None else (),
        where=where,
    )


class _CellFilters:
    """Rules that decide which combinations of axis values are cells of the matrix."""

    def __init__(self, campaign: Campaign, names: frozenset[str], where: str | None, hosts: HostsByCell | None) -> None:
        self._campaign = campaign
        self.exclusions = [
            (parse_expression(exclusion.when, names, campaign.format_location("exclude", index, "when")), exclusion.why)
            for index, exclusion in enumerate(campaign.file.exclude)
        ]
        self._selection = CellSelection(campaign, where, hosts) if where else None

    @property
    def reads_axes(self) -> bool:
        """True if a rule reads axis values."""
        return bool(self.exclusions) or self._selection is not None

    def find_exclusion(self, cell: Cell, axes: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the first rule that excludes the cell with its reason, or None if no rule does."""
        if cell.precision not in self._campaign.workloads[cell.workload].precisions:
            workload = self._campaign.workloads[cell.workload].name
            return f"{workload} with {cell.precision}", "the workload does not support this precision"
        return next(((rule.text, why) for rule, why in self.exclusions if rule(axes)), None)

    def is_selected(self, axes: Mapping[str, Any], cell_id: Callable[[], str]) -> bool:
        """Return whether `where` selects the cell."""
        return self._selection is None or self._selection(axes, cell_id)

    def explain_empty_matrix(self, removed: Counter[tuple[str, str]]) -> str:
        """Return the message for a matrix without cells, with the location to correct and the rules that removed cells."""
        campaign, selection = self._campaign, self._selection
        rules = "; ".join(
            f"{pluralize(count, 'cell')} removed by '{rule}' ({why})" for (rule, why), count in removed.items()
        )
        hosts = selection.list_known_hosts() if selection else ""
        place = (
            "--where"
            if selection
            else campaign.format_location("exclude")
            if self.exclusions
            else campaign.format_location("axes")
        )
        return f"{place}: no cell is left to measure; {rules or 'the axes are empty'}{hosts}"


def _note_unverified_devices(campaign: Campaign) -> Iterator[str]:
    """Yield a note per kind of device in the campaign that was never tested."""
    models = sorted(
        {(c.device, part.find_device_model(c.device).runs_on) for part in campaign.parts for c in part.configurations}
    )
    for kind, accelerator in ACCELERATORS.items():
        of_kind = [model for model, runs_on in models if runs_on == kind]
        if of_kind and accelerator.unverified:
            yield f"`runs_on: {kind}` ({', '.join(of_kind)}) is unverified: {accelerator.unverified}"


def build_specification(campaign: Campaign, cell: Cell) -> dict[str, Any]:
    """Build the full specification of a cell, which determines its identity.

    The cell's id is the hash of the specification. For many cells, use one `Specifications`, which hashes shared parts once.
    """
    return Specifications(campaign).build(cell)


def hash_specification(document: Mapping[str, Any]) -> str:
    """Hash a full specification to the id of its cell.

    Parts are hashed separately, so that 100,000 cells need not serialise the same workload.
    """
    parts = dict(document)
    for part in HASHED_PARTS:
        parts[part] = hash_document(parts[part])
    return hash_document(parts)


def _identify_system(campaign: Campaign, configuration: Configuration, from_storage: bool) -> dict[str, Any]:
    campaign = campaign.part_on(configuration)
    model = configuration.device
    identity: dict[str, Any] = {
        "name": campaign.system.name,
        "device": campaign.find_device_model(model).model_dump(mode="json", include={"runs_on", "precisions"}),
    }
    if launch := identify_launch(campaign.system, configuration):
        identity["launch"] = launch
    limit = campaign.system.get_storage_limit_gb_per_s(configuration.storage) if from_storage else None
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


def _identify_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that are part of a cell's identity.

    Settings that later versions introduced are left out if they are not used.
    """
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
    """Specifications and ids of cells. Parts that many cells share are hashed once and kept by their hash (`parts`)."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.parts: dict[str, dict[str, Any]] = {}
        self._hardware: dict[tuple[Configuration, bool], tuple[str, str]] = {}
        self._workloads = {name: self._store_part(campaign.identify_workload(name)) for name in campaign.workloads}
        self._objections: dict[tuple[str, str], str | None] = {}

    def require_startable(self, cell: Cell) -> None:
        """Raise ConfigError if the cell's workload cannot start on its devices, or if the storage that it reads is missing."""
        configuration, workload = cell.configuration, self._campaign.workloads[cell.workload]
        key, system = (configuration.name, cell.workload), self._campaign.part_on(configuration).system
        if key not in self._objections:
            self._objections[key] = explain_unusable_devices(system, configuration, workload)
        if reason := self._objections[key]:
            raise ConfigError(f"{self._campaign.path}: configuration '{configuration.name}': {reason}")
        kind = configuration.storage
        if not workload.reads_storage({**workload.options, **cell.options}):
            return
        if kind not in system.storage:
            raise ConfigError(
                f"{self._campaign.path}: configuration '{configuration.name}': with option input: storage, workload "
                f"'{cell.workload}' reads its samples from storage '{kind}', but system '{system.name}' does not define its path; "
                f"add `storage: {{{kind}: {{path: /a/directory/on/it}}}}` to the system file, or exclude these cells"
            )

    def _store_part(self, document: dict[str, Any]) -> str:
        name = hash_document(document)
        self.parts[name] = document
        return name

    def __call__(self, cell: Cell, settings: Settings) -> str:
        return hash_document(self.hash_parts(cell, settings))

    def hash_parts(self, cell: Cell, settings: Settings) -> dict[str, Any]:
        """Return a cell's specification with hashes for `system`, `configuration` and `workload`.

        The hash of this specification is the cell's id.
        """
        return {**self._specify_without_batch(cell), "batch": cell.batch, **_identify_settings(settings)}

    def build(self, cell: Cell) -> dict[str, Any]:
        """Build the full specification of a cell, with the documents of its parts instead of their hashes."""
        hashed_parts = self.hash_parts(cell, cell.settings)
        return {**hashed_parts, **{part: self.parts[hashed_parts[part]] for part in HASHED_PARTS}}

    def hash_memory_use(self, cell: Cell) -> str:
        """Hash everything that a cell's memory use depends on, except the batch.

        The number of steps and the seed are left out; the memory limit of the campaign is included.
        """
        return hash_document(
            {**self._specify_without_batch(cell), "memory_limit_mib": self._campaign.protocol.memory_limit_mib}
        )

    def _specify_without_batch(self, cell: Cell) -> dict[str, Any]:
        campaign, workload = self._campaign, self._campaign.workloads[cell.workload]
        options = {**workload.options, **cell.options}
        key = cell.configuration, workload.reads_storage(options)
        if key not in self._hardware:
            self._hardware[key] = (
                self._store_part(_identify_system(campaign, *key)),
                self._store_part(cell.configuration.shape()),
            )
        system, configuration = self._hardware[key]
        # Optional keys are left out if they are empty, so that cells keep the identity that they had in earlier versions.
        inputs = identify_inputs(workload, options, campaign.inputs)
        version, reference = campaign.file.version, cell.reference
        return {
            "system": system,
            "configuration": configuration,
            "workload": self._workloads[cell.workload],
            "precision": cell.precision,
            "options": workload.select_identity_options(options),
            **({"inputs": inputs} if inputs else {}),
            **({"version": version} if version else {}),
            # The reference cells of different leases are different cells, because runs are numbered by cell and composition.
            **({"reference": reference} if reference else {}),
        }


def _build_cell(campaign: Campaign, values: Mapping[str, Any]) -> Cell:
    options = {name: values[name] for name in campaign.file.axes.options}
    batch = 1 if campaign.workloads[values["workload"]].serves_requests else values["batch"]
    return Cell("", values["configuration"], values["workload"], batch, values["precision"], options)


def hash_run_set(cells: Sequence[Cell]) -> str:
    """Hash the set of runs of a lease.

    The hash changes exactly when a cell, a repetition or a target that ends them is added or removed.
    """
    return hash_document(json.dumps(sorted((cell.id, _identify_runs(cell.settings)) for cell in cells)), 12)


def _identify_runs(settings: Settings) -> object:
    is_single = settings.compositions == 1
    runs: object = settings.repetitions if is_single else list_run_numbers(settings)
    if settings.target_half_width_pct is None:
        return runs
    return settings.repetitions_min, runs, settings.target_half_width_pct
