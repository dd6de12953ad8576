"""What has changed since runs were measured and measures nothing again by itself: what is installed, edited inputs, parsers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from campaign.config.workload_inputs import Inputs, edited, from_document, stored_workload
from campaign.documents.readings import all_readings
from campaign.documents.record import CAMPAIGN_SCHEMA, Store, campaigns_as_used
from campaign.errors import ConfigError
from campaign.files import read_json
from campaign.paths import Results
from campaign.plan.plan import Plan
from campaign.run.environment import environment_document, versions
from campaign.wording import plural


def since_measured(plan: Plan, results: Results) -> list[str]:
    """Sentences; none where nothing was measured or nothing has changed."""
    campaign = plan.campaign
    if campaign.file.imported or not results.records.is_dir():
        return []
    store = Store(results.directory)
    measured: Inputs = {}
    with suppress(ConfigError):  # of another version
        measured = from_document(next(campaigns_as_used(results.directory), {}).get("inputs", {}))
    shared = {path.stem: read_json(path) for path in results.shared.glob("*.json")}
    return [*edited(campaign.workloads, campaign.inputs, measured), *_changed(plan, store, shared)]


def _changed(plan: Plan, store: Store, shared: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What else is installed here than when cells were measured, and runs whose workload has another parser now."""
    campaign = plan.campaign
    local = {part.part for part in campaign.parts if part.system.launcher == "local"}
    here = environment_document() if local else {}
    others = {
        name: differing
        for name, document in shared.items()
        # Of another host, or of an allocation, nothing is known here.
        if here and document.get("schema_version") == here["schema_version"] and document.get("host") == here["host"]
        if (differing := _differing(versions(document), versions(here)))
    }
    as_used = {name: each for name, each in shared.items() if each.get("schema_version") == CAMPAIGN_SCHEMA}
    readers = {name: workload.reading() for name, workload in campaign.workloads.items() if workload.reading_keys}
    then = {
        name: {workload: found.reading() for workload in readers if (found := stored_workload(document, workload))}
        for name, document in as_used.items()
    }
    if not others and not any(readers[name] != how for each in then.values() for name, how in each.items()):
        return
    again = {run: each.workloads for each in all_readings(store.results) for run in each.runs}
    installed: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    unread: defaultdict[str, int] = defaultdict(int)
    cells = {cell.id: cell for _, cell in plan.cells}
    for cell_id, run in sorted(key for key in store.index(implied=False) if key[0] in cells):
        record, cell = read_json(store.path(cell_id, run)), cells[cell_id]
        if cell.configuration.system in local and (differing := others.get(str(record.get("environment")))):
            installed[differing].add(cell_id)
        how = again.get(f"{cell_id}.{run}", then.get(str(record.get("campaign")), {})).get(cell.workload)
        unread[cell.workload] += bool(record.get("log")) and how is not None and how != readers.get(cell.workload)
    for (before, now), measured in installed.items():
        yield (
            f"{plural(len(measured), 'cell')} {'was' if len(measured) == 1 else 'were'} measured with {before}; this machine has "
            f"{now}. '--config version=LABEL' ('--version LABEL') measures them again, and keeps what was measured"
        )
    for name, count in unread.items():
        if count:
            yield (
                f"workload '{name}': {plural(count, 'run')} {'was' if count == 1 else 'were'} read by another parser than its file "
                f"has now; 'campaign parse {campaign.path}' reads the kept logs again, and measures nothing"
            )


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str] | None:
    """What both know and have otherwise: 'nvidia driver 570.86', 'nvidia driver 580.159'."""
    names = [name for name in then if then[name] != now.get(name, then[name])]
    before, after = (", ".join(f"{name} {each[name]}" for name in names) for each in (then, now))
    return (before, after) if names else None
