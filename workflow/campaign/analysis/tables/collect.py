"""Conversion of a results directory to its tables and the context beside them.

It needs no hardware and no system, so it works on archives.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign.analysis.tables.collected import Collected
from campaign.analysis.tables.report_context import context_document
from campaign.common.files import load_json, reject_damaged_document
from campaign.common.paths import Results
from campaign.observe.links.lease_links import links_of_uses
from campaign.plan import analysis
from campaign.plan.campaign.resolve import Campaign, from_document
from campaign.plan.control_runs import references_of
from campaign.plan.matrix import Matrix, Removed, expand
from campaign.plan.missing_runs import read_known
from campaign.plan.past_costs import COSTS, Costs, Span, costs_document, measure_costs, read_forecast_offs
from campaign.plan.plan import lease_name
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.spec.cell import Cell, Settings
from campaign.spec.earlier_spread import kept
from campaign.spec.kept_lease import checked_lease
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.plan import parse_plan, plan_json
from campaign.spec.race import read_race
from campaign.spec.record import Record, Store
from campaign.spec.run_numbers import RunKey, composition_of, compositions_of, number_in_composition, whole
from campaign.spec.superseded import RecordedHosts

if TYPE_CHECKING:  # it brings pandas
    import pandas as pd

    from campaign.analysis.tables.cells import CellPlan
    from campaign.analysis.tables.io import Tables
    from campaign.analysis.tables.leases import BusySpan


def gather(campaign: Campaign, directory: Path, where: str | None = None, store: Store | None = None) -> Collected:
    """Read the records of the campaign's cells from a results directory. Raises RecordError with the name of a damaged file.

    Args:
        campaign: the campaign.
        directory: results directory of the campaign.
        where: expression that selects cells; None for all.
        store: records of the directory, if they have been read already.
    """
    store = store or Store(directory)
    matrix = expand(campaign, where, hosts=RecordedHosts(store))
    return _read_results(campaign, matrix, store)


def _read_results(campaign: Campaign, matrix: Matrix, store: Store) -> Collected:
    """Read the records of the matrix and of the reference, with the data of the leases that they were measured on."""
    results = Results.from_directory(store.results)
    race = read_race(results.race_file)
    if race is not None:
        matrix = replace(matrix, compositions=race.compositions)
    known = read_known(store, skip_implied=campaign.protocol.skip_implied)
    wanted = _select_runs(campaign, matrix, known.measured)
    references = references_of(campaign, matrix.cells)
    records = list(_sharing(store.read(*key) for key in wanted))
    reference = [store.read(*key) for key in sorted(known.measured) if key[0] in references]
    lease_ids = {record.lease_id for record in (*records, *reference)}
    # Records are read one at a time, because all of them may not fit into memory.
    others = (store.read(*key) for key in sorted(known.measured.difference(wanted)))
    other_uses, other_labels = _sort_other_runs(others, lease_ids, campaign.file.version)
    return Collected(
        campaign=campaign,
        matrix=matrix,
        records=records,
        leases=_read_leases(results, lease_ids, _name_leases(campaign, matrix), other_labels),
        reasons=_reasons(results),
        store=store,
        beside=other_uses,
        links=_read_links(records, store),
        known=known,
        reference=reference,
        earlier=kept(results.earlier_spread_file),
        analysis=analysis.kept(results.analysis_file),
        race=race,
        hosts_left_out=ExcludedHosts(results.slurm_state).read(),
    )


def _select_runs(campaign: Campaign, matrix: Matrix, measured: Collection[RunKey]) -> list[RunKey]:
    """Return the measured runs that belong to the matrix, sorted.

    All imported runs of a cell belong to it.
    """
    settings = {cell.id: cell.settings for cell in matrix.cells}
    imported = campaign.file.imported
    return sorted(key for key in measured if (key[0] in settings if imported else _counts(key, settings)))


def _sort_other_runs(
    others: Iterable[Record], lease_ids: Collection[str], version: str | None
) -> tuple[list[BusySpan], set[str]]:
    """Return the times at which runs of other cells used these leases, and the further leases with runs under another label."""
    uses: list[BusySpan] = []
    other_labels = set[str]()
    for record in others:
        if record.lease_id in lease_ids:
            uses.append((record.lease_id, record.started, record.ended))
        elif record.specification.get("version") != version:
            other_labels.add(record.lease_id)
    return uses, other_labels


def _name_leases(campaign: Campaign, matrix: Matrix) -> set[str]:
    """Return the names of all leases of the matrix."""
    return {
        lease_name(campaign.protocol, cell, composition)
        for cell in matrix.cells
        for composition in compositions_of(cell.settings)
    }


def _read_leases(
    results: Results, lease_ids: Collection[str], names: Collection[str], other_labels: Collection[str]
) -> list[dict[str, Any]]:
    """Read the documents of leases in the order of their requests.

    Args:
        results: results directory.
        lease_ids: leases with records, which are always read.
        names: names of leases, which are read as well.
        other_labels: leases of runs under another label, which are left out unless they have records.
    """
    leases = []
    for path in sorted(results.leases.glob("*.json")):
        lease = _document(path)
        is_named = lease.get("lease") in names and lease["lease_id"] not in other_labels
        if lease["lease_id"] in lease_ids or is_named:
            leases.append(lease)
    return sorted(leases, key=lambda lease: (lease.get("requested_s") or 0.0, lease["lease_id"]))


def _read_links(records: Sequence[Record], store: Store) -> list[dict[str, Any]]:
    """Read the link measurements of the records' leases, with the configuration of each lease."""
    configurations = {record.lease_id: record.cell.configuration for record in records}
    return [
        {**links, "configuration": configurations[links["lease_id"]]}
        for links in links_of_uses(store.results, store)
        if links["lease_id"] in configurations
    ]


def gather_planned(plan: Path) -> Collected:
    """Read the records of a plan from the results directory that contains it (plan/plan.json and plan/leases/)."""
    directory = plan.parent.parent
    planned = parse_plan(plan, plan_json(plan))
    leases = [read_lease_plan(plan.parent / lease.document) for lease in planned.leases]
    campaign = from_document(leases[0].campaign_as_used)
    cells = {cell.id: replace(cell, settings=whole(cell.settings)) for lease in leases for cell in lease.work}
    removed = tuple(Removed(each.rule, each.why, each.cells) for each in planned.removed)
    if not cells.keys() >= set(planned.cells):  # written when a plan could leave cells without a lease
        return gather(campaign, directory, planned.where)
    matrix = Matrix(tuple(cells[name] for name in planned.cells), removed, planned.notes)
    return _read_results(campaign, matrix, Store(directory))


def _sharing(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records with one shared copy of the values that the runs of a cell, or all runs, have in common.

    These values are most of a record, so this saves memory.
    """
    first: Record | None = None
    keys: set[str] = set()
    for record in records:
        # All records share one set of names, because separate sets take 100 MB for 50,000 records. There is no public way to set it.
        keys = keys if record.model_fields_set == keys else record.model_fields_set
        object.__setattr__(record, "__pydantic_fields_set__", keys)
        if first is None or record.cell_id != first.cell_id:
            _share(record.specification, first.specification if first else {}, ("system", "workload"))
            first = record
        _share(vars(record), vars(first), _COMMON)
        yield record


_COMMON = ("specification", "cell", "hosts", "lease_id", "composition", "environment", "campaign")


def _share(own: dict[str, Any], other: Mapping[str, Any], names: Iterable[str]) -> None:
    """Replace values of the target by equal values of the source, so that both share one object."""
    own.update({name: other[name] for name in names if name in other and other[name] == own.get(name)})


def _counts(key: RunKey, cells: Mapping[str, Settings]) -> bool:
    """Return whether a run is a planned run of one of these cells.

    Runs that were planned when the plan had fewer compositions, or more repetitions per composition, count as well.
    """
    settings, run = cells.get(key[0]), key[1]
    if settings is None:
        return False
    return composition_of(run) in compositions_of(settings) and number_in_composition(run) <= settings.repetitions


def _imported(planned: Sequence[int], present: Collection[int]) -> tuple[int, ...]:
    """Return the runs of an imported cell: those that are present, and as many missing ones as the map plans."""
    more = [run for run in planned if run not in present]
    return (*sorted(present), *more[: max(0, len(planned) - len(present))])


def _document(path: Path) -> dict[str, Any]:
    """Read the document of a lease. Raises RecordError if it is damaged."""
    with reject_damaged_document(path, "move it away, its lease is then shown as unknown"):
        return checked_lease(load_json(path))


def _reasons(results: Results) -> dict[str, str]:
    """Read from the manifests the reason that the runs of a lease are missing, by lease."""
    reasons = {}
    for path in sorted(results.list_manifests(), key=lambda path: path.stat().st_mtime):
        with reject_damaged_document(path, "delete this manifest, it is made again"):
            document = load_json(path)
            reasons[document["lease"]] = str(document["reason"])
    return reasons


def tables_of(collected: Collected) -> Tables:
    """Build all tables from the records that were read."""
    from campaign.analysis.tables.cells import cells_table
    from campaign.analysis.tables.io import Tables
    from campaign.analysis.tables.runs import reference_table, runs_table, step_times_table
    from campaign.analysis.tables.time_series import sampled

    steps = step_times_table(
        collected.records
    )  # This is the first step, because its temporary memory is free afterwards.
    runs = _named(collected, runs_table(collected.records, collected.beside, collected.campaign.metric))
    planned = _plan_cells(collected)
    cells = _named(collected, cells_table(planned, runs, collected.campaign.metric, collected.earlier))
    store, order = collected.store, [cell.id for cell in collected.matrix.cells]
    telemetry = sampled(collected.records, store.results, store.shared_document, order)
    return Tables(
        runs,
        cells,
        collected.leases,
        collected.links,
        context_document(collected),
        telemetry,
        steps,
        _named(collected, reference_table(collected.reference, collected.campaign.metric)),
    )


def _plan_cells(collected: Collected) -> list[CellPlan]:
    """Return for each cell its planned runs, the reasons for missing runs, and its price."""
    from campaign.analysis.tables.cells import CellPlan

    campaign, matrix = collected.campaign, collected.matrix
    measured: defaultdict[str, set[int]] = defaultdict(set)
    for record in collected.records:
        measured[record.cell_id].add(record.repetition)
    default_reason = "no log of it was imported" if campaign.file.imported else "not measured yet"
    # Prices in two currencies cannot be compared.
    has_prices = campaign.currency is not None
    plans = []
    for cell in matrix.cells:
        runs = _list_planned_runs(collected, cell, measured[cell.id])
        leases = {
            composition: lease_name(campaign.protocol, cell, composition)
            for composition in compositions_of(cell.settings)
        }
        missing = {
            run: collected.reasons.get(leases[composition_of(run)]) or default_reason
            for run in runs
            if run not in measured[cell.id]
        }
        price_per_h = campaign.on(cell.configuration).system.price_per_h(cell.configuration) if has_prices else None
        version = campaign.file.version or ""
        plans.append(CellPlan(cell, len(runs), leases[1], missing, runs, price_per_h, version))
    return plans


def _list_planned_runs(collected: Collected, cell: Cell, measured: Collection[int]) -> tuple[int, ...]:
    """List the planned runs of a cell on compositions that are to be measured, and all measured runs."""
    runs = tuple(
        run
        for run in collected.known.planned(cell)
        if collected.matrix.is_wanted(cell, composition_of(run)) or run in measured
    )
    return _imported(runs, measured) if collected.campaign.file.imported else runs


def _named(collected: Collected, table: pd.DataFrame) -> pd.DataFrame:
    """Make rows of several systems distinguishable, by the system in the name of the device ('a100 on grace').

    So only equal devices are compared. Cells that were measured for a campaign on one system get the names of their
    configurations in
    this campaign.
    """
    if collected.campaign.part:
        return table
    import pandas as pd

    names = {cell.id: cell.configuration.name for cell in collected.matrix.cells}
    here = [f"{model} on {system}" for model, system in zip(table["device"], table["system"], strict=True)]
    configurations = [names.get(of, name) for of, name in zip(table["cell_id"], table["configuration"], strict=True)]
    columns = {"configuration": configurations, "device": here}
    return table.assign(**{name: pd.Series(values, index=table.index, dtype="str") for name, values in columns.items()})


def collect(collected: Collected, out: Path) -> None:
    """Write all tables of a campaign, and costs.json for later forecasts.

    Tables are runs and cells (Parquet and CSV), telemetry, steps and reference (Parquet), leases.json, links.json and
    context.json.

    Args:
        campaign_results: records of the campaign.
        out: directory of the tables.
    """
    from campaign.analysis.tables.io import write

    tables, campaign = tables_of(collected), collected.campaign
    write(tables, out)
    found, offs = [], read_forecast_offs(collected.store.results)
    for part in campaign.parts:
        spread = tables.spread_of_compositions("" if campaign.part else part.part)
        empty = Costs(campaign.name, part.part, spread=spread, fabric=str(part.system.fabric["kind"]))
        # Runs that were only implied, or whose log has no duration, have no cost.
        records = [
            each
            for each in (*collected.records, *collected.reference)
            if (campaign.part or each.system == part.part) and each.status != "implied" and each.ended > each.started
        ]
        cells = {each.cell_id: (each.cell.workload, each.requested) for each in records}
        spans = [Span(each.cell_id, each.started, each.ended, each.status == "ok", each.lease_id) for each in records]
        found.append(measure_costs(empty, cells, spans, collected.leases, offs))
    (out / COSTS).write_text(json.dumps(costs_document(found)) + "\n", encoding="utf-8")
