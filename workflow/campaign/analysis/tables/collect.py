"""Conversion of a results directory to its tables and the context beside them.

It needs no hardware and no system, so it works on archives.
"""

from __future__ import annotations

import gc
import json
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign.analysis.tables.collected import CampaignResults
from campaign.analysis.tables.report_context import build_context_document
from campaign.common.files import load_json, reject_damaged_document
from campaign.common.paths import Results
from campaign.observe.links.lease_links import read_link_measurements
from campaign.plan import analysis
from campaign.plan.campaign.resolve import Campaign, campaign_from_document
from campaign.plan.control_runs import collect_references
from campaign.plan.matrix import Matrix, RemovedByRule, expand_matrix
from campaign.plan.missing_runs import read_recorded_runs
from campaign.plan.past_costs import COSTS, CampaignCosts, RunSpan, dump_costs, measure_costs, read_forecast_ratios
from campaign.plan.plan import format_lease_name
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.spec.cell import Cell, Settings
from campaign.spec.earlier_spread import EarlierSpread, read_spreads
from campaign.spec.kept_lease import validate_lease
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.plan import parse_plan, read_plan_document
from campaign.spec.race import read_race
from campaign.spec.record import Record, RecordStore
from campaign.spec.run_numbers import (
    RunKey,
    get_composition_number,
    get_number_in_composition,
    list_compositions,
    without_composition,
)
from campaign.spec.superseded import RecordedHosts

if TYPE_CHECKING:  # These modules import pandas, which is slow.
    import pandas as pd

    from campaign.analysis.tables.cells import CellPlan
    from campaign.analysis.tables.io import Tables
    from campaign.analysis.tables.leases import BusySpan


def read_campaign_results(
    campaign: Campaign, directory: Path, where: str | None = None, store: RecordStore | None = None
) -> CampaignResults:
    """Read the records of a campaign's cells from a results directory. Raises RecordError if a file is damaged.

    Args:
        campaign: the campaign.
        directory: results directory of the campaign.
        where: expression that selects cells; None for all.
        store: records of the directory, if they have been read already.
    """
    store = store or RecordStore(directory)
    matrix = expand_matrix(campaign, where, hosts=RecordedHosts(store))
    return _read_matrix_results(campaign, matrix, store)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector. Records and tables have no reference cycles, and a search for them takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_pause_garbage_collection()
def _read_matrix_results(campaign: Campaign, matrix: Matrix, store: RecordStore) -> CampaignResults:
    """Read the records of the matrix and the reference, with the data of their leases."""
    results = Results.from_directory(store.results)
    race = read_race(results.race_file)
    if race is not None:
        matrix = replace(matrix, compositions=race.compositions)
    known_runs = read_recorded_runs(store, skip_implied=campaign.protocol.skip_implied)
    run_keys = _select_runs(campaign, matrix, known_runs.measured)
    references = collect_references(campaign, matrix.cells)
    records = list(_share_common_values(store.read_latest(*key) for key in run_keys))
    reference = [store.read_latest(*key) for key in sorted(known_runs.measured) if key[0] in references]
    lease_ids = {record.lease_id for record in (*records, *reference)}
    # Records are read one at a time, because all of them may not fit into memory.
    other_records = (store.read_latest(*key) for key in sorted(known_runs.measured.difference(run_keys)))
    other_uses, other_labels = _sort_other_runs(other_records, lease_ids, campaign.file.version)
    return CampaignResults(
        campaign=campaign,
        matrix=matrix,
        records=records,
        leases=_read_leases(results, lease_ids, _name_leases(campaign, matrix), other_labels),
        missing_reasons=_read_missing_reasons(results),
        store=store,
        other_uses=other_uses,
        links=_read_links(records, store),
        known_runs=known_runs,
        reference=reference,
        earlier_spreads=read_spreads(results.earlier_spread_file),
        analysis=analysis.read_versions(results.analysis_file),
        race=race,
        hosts_left_out=ExcludedHosts(results.slurm_state).read_all(),
    )


def _select_runs(campaign: Campaign, matrix: Matrix, measured_runs: Collection[RunKey]) -> list[RunKey]:
    """Return the measured runs that belong to the matrix, sorted.

    All imported runs of a cell belong to it.
    """
    settings = {cell.id: cell.settings for cell in matrix.cells}
    is_imported = campaign.file.imported
    return sorted(
        key for key in measured_runs if (key[0] in settings if is_imported else _is_planned_run(key, settings))
    )


def _sort_other_runs(
    other_records: Iterable[Record], lease_ids: Collection[str], version: str | None
) -> tuple[list[BusySpan], set[str]]:
    """Return the times of other cells' runs on these leases, and the other leases with runs under another label."""
    uses: list[BusySpan] = []
    other_labels = set[str]()
    for record in other_records:
        if record.lease_id in lease_ids:
            uses.append((record.lease_id, record.started, record.ended))
        elif record.specification.get("version") != version:
            other_labels.add(record.lease_id)
    return uses, other_labels


def _name_leases(campaign: Campaign, matrix: Matrix) -> set[str]:
    """Return the names of all leases of the matrix."""
    return {
        format_lease_name(campaign.protocol, cell, composition)
        for cell in matrix.cells
        for composition in list_compositions(cell.settings)
    }


def _read_leases(
    results: Results, lease_ids: Collection[str], names: Collection[str], other_labels: Collection[str]
) -> list[dict[str, Any]]:
    """Read the lease documents from a results directory, in the order of the requests.

    Args:
        results: results directory.
        lease_ids: leases with records, which are always read.
        names: names of further leases to read.
        other_labels: leases of runs under another label, which are left out unless they have records.
    """
    leases = []
    for path in sorted(results.leases.glob("*.json")):
        lease = _read_lease(path)
        is_named = lease.get("lease") in names and lease["lease_id"] not in other_labels
        if lease["lease_id"] in lease_ids or is_named:
            leases.append(lease)
    return sorted(leases, key=lambda lease: (lease.get("requested_s") or 0.0, lease["lease_id"]))


def _read_links(records: Sequence[Record], store: RecordStore) -> list[dict[str, Any]]:
    """Read the link measurements of the records' leases, with the configuration of each lease."""
    configurations = {record.lease_id: record.cell.configuration for record in records}
    return [
        {**links, "configuration": configurations[links["lease_id"]]}
        for links in read_link_measurements(store.results, store)
        if links["lease_id"] in configurations
    ]


def read_planned_results(plan: Path) -> CampaignResults:
    """Read the records of a plan from the results directory that contains it (plan/plan.json and plan/leases/)."""
    directory = plan.parent.parent
    plan_document = parse_plan(plan, read_plan_document(plan))
    leases = [read_lease_plan(plan.parent / lease.document) for lease in plan_document.leases]
    campaign = campaign_from_document(leases[0].campaign_as_used)
    cells = {
        cell.id: replace(cell, settings=without_composition(cell.settings))
        for lease in leases
        for cell in lease.work_cells
    }
    removed_cells = tuple(RemovedByRule(rule.rule, rule.why, rule.cells) for rule in plan_document.removed)
    if not cells.keys() >= set(plan_document.cells):  # An earlier version could plan cells without a lease.
        return read_campaign_results(campaign, directory, plan_document.where)
    matrix = Matrix(tuple(cells[name] for name in plan_document.cells), removed_cells, plan_document.notes)
    return _read_matrix_results(campaign, matrix, RecordStore(directory))


def _share_common_values(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records with less memory: values that are equal in all runs, or in all runs of a cell, are shared.

    These values and the step times, which become arrays, make up most of a record.
    """
    first: Record | None = None
    keys: set[str] = set()
    for record in records:
        # All records share one set of names, because separate sets take 100 MB for 50,000 records. There is no public
        # way to set it.
        keys = keys if record.model_fields_set == keys else record.model_fields_set
        object.__setattr__(record, "__pydantic_fields_set__", keys)
        if first is None or record.cell_id != first.cell_id:
            _share_equal_values(record.specification, first.specification if first else {}, ("system", "workload"))
            first = record
        _share_equal_values(vars(record), vars(first), _COMMON_FIELDS)
        vars(record)["step_times_s"] = tuple(array("d", times) for times in record.step_times_s)
        yield record


_COMMON_FIELDS = (
    "cell_id",
    "specification",
    "cell",
    "hosts",
    "lease_id",
    "composition",
    "environment",
    "campaign",
    "phases_s",
    "in_force",
)


def _share_equal_values(target: dict[str, Any], source: Mapping[str, Any], names: Iterable[str]) -> None:
    """Replace values of the target by equal values of the source, so that both share one object."""
    target.update({name: source[name] for name in names if name in source and source[name] == target.get(name)})


def _is_planned_run(key: RunKey, cells: Mapping[str, Settings]) -> bool:
    """Return whether a run is a planned run of one of these cells.

    Runs that were planned when the plan had fewer compositions, or more repetitions per composition, count too.
    """
    settings, run = cells.get(key[0]), key[1]
    if settings is None:
        return False
    return (
        get_composition_number(run) in list_compositions(settings)
        and get_number_in_composition(run) <= settings.repetitions
    )


def _list_imported_runs(planned_runs: Sequence[int], present_runs: Collection[int]) -> tuple[int, ...]:
    """Return the runs of an imported cell: those present, plus the missing ones that the import map plans."""
    missing_runs = [run for run in planned_runs if run not in present_runs]
    return (*sorted(present_runs), *missing_runs[: max(0, len(planned_runs) - len(present_runs))])


def _read_lease(path: Path) -> dict[str, Any]:
    """Read the document of a lease. Raises RecordError if it is damaged."""
    with reject_damaged_document(path, "move it away; its lease is then shown as unknown"):
        return validate_lease(load_json(path))


def _read_missing_reasons(results: Results) -> dict[str, str]:
    """Read from the manifests why runs of a lease are missing, by lease."""
    reasons = {}
    for path in sorted(results.list_manifests(), key=lambda path: path.stat().st_mtime):
        with reject_damaged_document(path, "delete this manifest; it is written again"):
            document = load_json(path)
            reasons[document["lease"]] = str(document["reason"])
    return reasons


def build_tables(campaign_results: CampaignResults) -> Tables:
    """Build all tables of a campaign from its records."""
    from campaign.analysis.tables.runs import build_step_times_table

    steps = build_step_times_table(campaign_results.records)
    return replace(_build_tables_without_steps(campaign_results), steps=steps)


def _build_tables_without_steps(campaign_results: CampaignResults) -> Tables:
    from campaign.analysis.tables.cells import build_cells_table
    from campaign.analysis.tables.io import Tables
    from campaign.analysis.tables.runs import build_reference_table, build_runs_table
    from campaign.analysis.tables.time_series import build_telemetry_table

    runs = _name_across_systems(
        campaign_results,
        build_runs_table(campaign_results.records, campaign_results.other_uses, campaign_results.campaign.metric),
    )
    plans = _plan_cells(campaign_results)
    cells = _name_across_systems(
        campaign_results,
        build_cells_table(plans, runs, campaign_results.campaign.metric, campaign_results.earlier_spreads),
    )
    store, order = campaign_results.store, [cell.id for cell in campaign_results.matrix.cells]
    telemetry = build_telemetry_table(campaign_results.records, store.results, store.read_shared_document, order)
    return Tables(
        runs,
        cells,
        campaign_results.leases,
        campaign_results.links,
        build_context_document(campaign_results),
        telemetry,
        reference=_name_across_systems(
            campaign_results, build_reference_table(campaign_results.reference, campaign_results.campaign.metric)
        ),
    )


def _plan_cells(campaign_results: CampaignResults) -> list[CellPlan]:
    """Return the plan of each cell: its runs, the reasons for missing runs, and its price."""
    from campaign.analysis.tables.cells import CellPlan

    campaign, matrix = campaign_results.campaign, campaign_results.matrix
    measured_runs: defaultdict[str, set[int]] = defaultdict(set)
    for record in campaign_results.records:
        measured_runs[record.cell_id].add(record.repetition)
    default_reason = "no log of this run was imported" if campaign.file.imported else "not measured yet"
    # Prices in two currencies cannot be compared.
    has_prices = campaign.currency is not None
    plans = []
    for cell in matrix.cells:
        runs = _list_planned_runs(campaign_results, cell, measured_runs[cell.id])
        leases = {
            composition: format_lease_name(campaign.protocol, cell, composition)
            for composition in list_compositions(cell.settings)
        }
        missing = {
            run: campaign_results.missing_reasons.get(leases[get_composition_number(run)]) or default_reason
            for run in runs
            if run not in measured_runs[cell.id]
        }
        price_per_h = (
            campaign.part_on(cell.configuration).system.compute_price_per_h(cell.configuration) if has_prices else None
        )
        version = campaign.file.version or ""
        plans.append(CellPlan(cell, len(runs), leases[1], missing, runs, price_per_h, version))
    return plans


def _list_planned_runs(
    campaign_results: CampaignResults, cell: Cell, measured_runs: Collection[int]
) -> tuple[int, ...]:
    """List the planned runs of a cell on compositions that are to be measured, and all measured runs."""
    runs = tuple(
        run
        for run in campaign_results.known_runs.list_planned_runs(cell)
        if campaign_results.matrix.is_wanted(cell, get_composition_number(run)) or run in measured_runs
    )
    return _list_imported_runs(runs, measured_runs) if campaign_results.campaign.file.imported else runs


def _name_across_systems(campaign_results: CampaignResults, table: pd.DataFrame) -> pd.DataFrame:
    """Make rows of several systems distinguishable, by the system in the name of the device ('a100 on grace').

    So only equal devices are compared. Cells that were measured for a campaign on one system get the names of their
    configurations in this campaign.
    """
    if campaign_results.campaign.part:
        return table
    import pandas as pd

    names = {cell.id: cell.configuration.name for cell in campaign_results.matrix.cells}
    devices = [f"{model} on {system}" for model, system in zip(table["device"], table["system"], strict=True)]
    configurations = [
        names.get(cell_id, name) for cell_id, name in zip(table["cell_id"], table["configuration"], strict=True)
    ]
    columns = {"configuration": configurations, "device": devices}
    return table.assign(**{name: pd.Series(values, index=table.index, dtype="str") for name, values in columns.items()})


@_pause_garbage_collection()
def write_campaign_tables(campaign_results: CampaignResults, out: Path) -> None:
    """Write all tables of a campaign, and costs.json for later forecasts.

    Tables are runs and cells (Parquet and CSV), telemetry, steps and reference (Parquet), leases.json, links.json and
    context.json.

    Args:
        campaign_results: records of the campaign.
        out: directory of the tables.
    """
    from campaign.analysis.tables.io import write_all_tables, write_series_table
    from campaign.analysis.tables.runs import build_step_times_table

    # The table of steps has the most rows. It is written first and not kept, so that its memory is free afterwards.
    write_series_table(out, "steps", build_step_times_table(campaign_results.records))
    tables, campaign = _build_tables_without_steps(campaign_results), campaign_results.campaign
    write_all_tables(tables, out, written_series=["steps"])
    spreads = [tables.summarize_composition_spread("" if campaign.part else part.part) for part in campaign.parts]
    del tables  # Its memory is used for the costs.
    forecast_offs = read_forecast_ratios(campaign_results.store.results)
    costs = [
        _measure_part_costs(campaign_results, part, spread, forecast_offs)
        for part, spread in zip(campaign.parts, spreads, strict=True)
    ]
    (out / COSTS).write_text(json.dumps(dump_costs(costs)) + "\n", encoding="utf-8")


def _measure_part_costs(
    campaign_results: CampaignResults,
    part: Campaign,
    spread: tuple[EarlierSpread, ...],
    forecast_offs: Mapping[str, float],
) -> CampaignCosts:
    """Return the durations of the runs and leases on the system of a part of the campaign."""
    campaign = campaign_results.campaign
    empty = CampaignCosts(campaign.name, part.part, spread=spread, fabric=str(part.system.fabric["kind"]))
    # Runs that were only implied, or whose log has no duration, have no cost.
    records = [
        record
        for record in (*campaign_results.records, *campaign_results.reference)
        if (campaign.part or record.system == part.part)
        and record.status != "implied"
        and record.ended > record.started
    ]
    last_records = {record.cell_id: record for record in records}
    cells = {
        cell_id: (record.cell.workload, record.requested_configuration) for cell_id, record in last_records.items()
    }
    spans = [
        RunSpan(record.cell_id, record.started, record.ended, record.status == "ok", record.lease_id)
        for record in records
    ]
    return measure_costs(empty, cells, spans, campaign_results.leases, forecast_offs)
