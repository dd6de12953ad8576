"""From a results directory to its tables and the words beside them. Needs no hardware and no system, so it works on archives."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign.config.resolve import Campaign, from_document
from campaign.documents.cell import Settings
from campaign.documents.earlier_spread import kept
from campaign.documents.kept_lease import checked_lease
from campaign.documents.lease_plan import read_lease_plan
from campaign.documents.plan import parse_plan, plan_json
from campaign.documents.race import read_race
from campaign.documents.record import Record, Store
from campaign.documents.run_numbers import composition_of, compositions_of, number_in_composition, whole
from campaign.documents.superseded import RecordedHosts
from campaign.files import load_json, reading
from campaign.observe.links.lease_links import links_of_uses
from campaign.paths import Results
from campaign.plan import analysis
from campaign.plan.control_runs import references_of
from campaign.plan.matrix import Matrix, Removed, expand
from campaign.plan.missing_runs import read_known
from campaign.plan.past_costs import COSTS, Costs, Span, costs_document, measure_costs, read_forecast_offs
from campaign.plan.plan import Key, lease_name
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.tables.report_context import Collected, context_document

if TYPE_CHECKING:  # it brings pandas
    import pandas as pd

    from campaign.tables.io import Tables


def gather(campaign: Campaign, directory: Path, where: str | None = None, store: Store | None = None) -> Collected:
    """Read what the results directory holds of the campaign's cells; RecordError names a damaged file.

    store: of that directory, where one has read records already.
    """
    store = store or Store(directory)
    matrix = expand(campaign, where, hosts=RecordedHosts(store))
    return _gathered(campaign, matrix, store)


def _gathered(campaign: Campaign, matrix: Matrix, store: Store) -> Collected:
    directory, results = store.results, Results.at(store.results)
    if (race := read_race(results.race)) is not None:
        matrix = replace(matrix, compositions=race.compositions)
    known = read_known(store, skip_implied=campaign.protocol.skip_implied)
    present, settings = known.measured, {cell.id: cell.settings for cell in matrix.cells}
    imported = campaign.file.imported
    wanted = sorted(key for key in present if (key[0] in settings if imported else _counts(key, settings)))
    records = list(_sharing(store.read(*key) for key in wanted))
    references = references_of(campaign, matrix.cells)
    of_reference = [store.read(*key) for key in sorted(present) if key[0] in references]
    used = {record.lease_id for record in (*records, *of_reference)}
    names = {lease_name(campaign.protocol, cell, c) for cell in matrix.cells for c in compositions_of(cell.settings)}
    beside, of_other_labels = [], set()
    for other in (store.read(*key) for key in sorted(present.difference(wanted))):
        if other.lease_id in used:
            beside.append((other.lease_id, other.started, other.ended))
        elif other.specification.get("version") != campaign.file.version:
            of_other_labels.add(other.lease_id)
    leases = [
        lease
        for path in sorted(results.leases.glob("*.json"))
        if (lease := _document(path))["lease_id"] in used
        or (lease.get("lease") in names and lease["lease_id"] not in of_other_labels)
    ]
    leases.sort(key=lambda lease: (lease.get("requested_s") or 0.0, lease["lease_id"]))
    configurations = {record.lease_id: record.cell.configuration for record in records}
    links = [
        {**each, "configuration": configurations[each["lease_id"]]}
        for each in links_of_uses(directory, store)
        if each["lease_id"] in configurations
    ]
    left_out = ExcludedHosts(results.slurm).read()
    return Collected(
        campaign,
        matrix,
        records,
        leases,
        _reasons(results),
        store,
        beside,
        links,
        known,
        hosts_left_out=left_out,
        reference=of_reference,
        earlier=kept(results.earlier_spread),
        analysis=analysis.kept(results.analysis),
        race=race,
    )


def gather_planned(plan: Path) -> Collected:
    """What a campaign's results directory holds of a plan that was written into it (plan/plan.json and plan/leases/)."""
    directory = plan.parent.parent
    planned = parse_plan(plan, plan_json(plan))
    leases = [read_lease_plan(plan.parent / lease.document) for lease in planned.leases]
    campaign = from_document(leases[0].campaign_as_used)
    cells = {cell.id: replace(cell, settings=whole(cell.settings)) for lease in leases for cell in lease.work}
    removed = tuple(Removed(each.rule, each.why, each.cells) for each in planned.removed)
    if not cells.keys() >= set(planned.cells):  # written when a plan could leave cells without a lease
        return gather(campaign, directory, planned.where)
    matrix = Matrix(tuple(cells[name] for name in planned.cells), removed, planned.notes)
    return _gathered(campaign, matrix, Store(directory))


def _sharing(records: Iterable[Record]) -> Iterator[Record]:
    """Records that hold what the runs of a cell, or all, have in common once: it is most of a record."""
    first: Record | None = None
    keys: set[str] = set()
    for record in records:
        # One set of names for all: a set each is 100 MB of 50,000 records. There is no public way to give one.
        keys = keys if record.model_fields_set == keys else record.model_fields_set
        object.__setattr__(record, "__pydantic_fields_set__", keys)
        if first is None or record.cell_id != first.cell_id:
            _share(record.specification, first.specification if first else {}, ("system", "workload"))
            first = record
        _share(vars(record), vars(first), _COMMON)
        yield record


_COMMON = ("specification", "cell", "hosts", "lease_id", "composition", "environment", "campaign")


def _share(own: dict[str, Any], other: Mapping[str, Any], names: Iterable[str]) -> None:
    own.update({name: other[name] for name in names if name in other and other[name] == own.get(name)})


def _counts(key: Key, cells: Mapping[str, Settings]) -> bool:
    """Whether a run is one of these cells' planned compositions. Those that the plan asked for when it had fewer compositions, or
    more repetitions in them, are measurements like any other."""
    settings, run = cells.get(key[0]), key[1]
    if settings is None:
        return False
    return composition_of(run) in compositions_of(settings) and number_in_composition(run) <= settings.repetitions


def _imported(planned: Sequence[int], present: Collection[int]) -> tuple[int, ...]:
    """Runs of an imported cell: those that were found, and as many more as the map plans."""
    more = [run for run in planned if run not in present]
    return (*sorted(present), *more[: max(0, len(planned) - len(present))])


def _document(path: Path) -> dict[str, Any]:
    with reading(path, "move it away, its lease is then shown as unknown"):
        return checked_lease(load_json(path))


def _reasons(results: Results) -> dict[str, str]:
    reasons = {}
    for path in sorted(results.list_manifests(), key=lambda path: path.stat().st_mtime):
        with reading(path, "delete this manifest, it is made again"):
            document = load_json(path)
            reasons[document["lease"]] = str(document["reason"])
    return reasons


def tables_of(collected: Collected) -> Tables:
    """All tables of what was gathered."""
    from campaign.tables.cells import CellPlan, cells_table
    from campaign.tables.io import Tables
    from campaign.tables.runs import reference_table, runs_table, step_times_table
    from campaign.tables.time_series import sampled

    steps = step_times_table(collected.records)  # first: what it needs for a moment is free for the others then
    runs = _named(collected, runs_table(collected.records, collected.beside, collected.campaign.metric))
    present = {record.key for record in collected.records}
    found: dict[str, list[int]] = {}
    for record in collected.records:
        found.setdefault(record.cell_id, []).append(record.repetition)
    nothing = "no log of it was imported" if collected.campaign.file.imported else "not measured yet"
    # Prices in two currencies cannot be compared.
    priced = collected.campaign.currency is not None or None
    planned = []
    for cell in collected.matrix.cells:
        leases = {c: lease_name(collected.campaign.protocol, cell, c) for c in compositions_of(cell.settings)}
        why = {c: collected.reasons.get(lease) or nothing for c, lease in leases.items()}
        runs_here = tuple(
            run
            for run in collected.known.planned(cell)
            if collected.matrix.is_wanted(cell, composition_of(run)) or (cell.id, run) in present
        )
        if collected.campaign.file.imported:
            runs_here = _imported(runs_here, found.get(cell.id, []))
        missing = {run: why[composition_of(run)] for run in runs_here if (cell.id, run) not in present}
        price_per_h = priced and collected.campaign.on(cell.configuration).system.price_per_h(cell.configuration)
        version = collected.campaign.file.version or ""
        planned.append(CellPlan(cell, len(runs_here), leases[1], missing, runs_here, price_per_h, version))
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


def _named(collected: Collected, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of several systems: their devices are different ones ('a100 on grace'), so that only equals are compared; and cells that
    were measured for a campaign on one system have the names of their configurations in this one."""
    if collected.campaign.part:
        return table
    import pandas as pd

    names = {cell.id: cell.configuration.name for cell in collected.matrix.cells}
    here = [f"{model} on {system}" for model, system in zip(table["device"], table["system"], strict=True)]
    configurations = [names.get(of, name) for of, name in zip(table["cell_id"], table["configuration"], strict=True)]
    columns = {"configuration": configurations, "device": here}
    return table.assign(**{name: pd.Series(values, index=table.index, dtype="str") for name, values in columns.items()})


def collect(collected: Collected, out: Path) -> None:
    """Write tables/: runs and cells (Parquet and CSV), telemetry, steps and reference (Parquet), leases.json, links.json,
    context.json; and costs.json, what forecasts learn from."""
    from campaign.tables.io import write

    tables, campaign = tables_of(collected), collected.campaign
    write(tables, out)
    found, offs = [], read_forecast_offs(collected.store.results)
    for part in campaign.parts:
        spread = tables.spread_of_compositions("" if campaign.part else part.part)
        empty = Costs(campaign.name, part.part, spread=spread, fabric=str(part.system.fabric["kind"]))
        # Runs that were only implied, or whose log did not say how long they took, cost nothing.
        records = [
            each
            for each in (*collected.records, *collected.reference)
            if (campaign.part or each.system == part.part) and each.status != "implied" and each.ended > each.started
        ]
        cells = {each.cell_id: (each.cell.workload, each.requested) for each in records}
        spans = [Span(each.cell_id, each.started, each.ended, each.status == "ok", each.lease_id) for each in records]
        found.append(measure_costs(empty, cells, spans, collected.leases, offs))
    (out / COSTS).write_text(json.dumps(costs_document(found)) + "\n", encoding="utf-8")
