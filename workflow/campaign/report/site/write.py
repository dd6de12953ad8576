"""Writing of the site: new campaigns, and pages whose content changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from campaign.analysis.compare import compare
from campaign.analysis.compare.campaign_spread import CampaignSpread
from campaign.analysis.tables.io import Tables, read_tables
from campaign.common.errors import CampaignError, convert_os_error
from campaign.common.files import hash_text, load_json, reject_damaged_document, write_atomic
from campaign.common.paths import REPORTS
from campaign.report.compare_page import render_compare_page
from campaign.report.site import campaigns, history, pages
from campaign.report.site.campaigns import ListedCampaign
from campaign.report.source_hash import compute_source_hash
from campaign.report.templates import STYLE, load_templates

_TEMPLATES = REPORTS / "results_site"


def write_site(sources: Iterable[Path], site: Path, report: Callable[[str], None]) -> int:
    """Add sources to a site, write its pages, and return the number of campaigns.

    Raises RecordError if the site cannot be written.

    Args:
        sources: results directories and archives.
        site: directory of the site.
        report: callback for messages on sources that were left out.
    """
    try:
        site.mkdir(parents=True, exist_ok=True)
        entries = {entry.directory: entry for entry in campaigns.read_entries(site)}
        known_digests = {digest for entry in entries.values() for digest in entry.digests}
        for source in sources:
            try:
                digest = campaigns.hash_source(source)
                if digest not in known_digests:
                    known_digests.add(digest)
                    entry = campaigns.add_campaign(source, digest, site, entries.values())
                    entries[entry.directory] = entry
            except CampaignError as error:
                text = str(error)
                report(f"left out: {text if text.startswith(str(source)) else f'{source}: {text}'}")
        return _write_pages(site)
    except OSError as error:
        raise convert_os_error(error, site) from error


def _write_pages(site: Path) -> int:
    entries = campaigns.read_entries(site)
    measured_campaigns = [
        (entry.directory, entry.started, _read_measured_cells(site / entry.directory / "tables")) for entry in entries
    ]
    history_pages = pages.build_history_pages(history.build_histories(measured_campaigns), campaigns.to_address)
    predecessors = _find_predecessors(entries, measured_campaigns)
    (site / "history").mkdir(exist_ok=True)
    _write_if_changed(
        site / "style.css", STYLE.read_text("utf-8") + (_TEMPLATES / "results_site.css").read_text("utf-8")
    )
    environment = load_templates(_TEMPLATES)

    def write_page(path: str, template: str, context: Mapping[str, Any]) -> None:
        _write_if_changed(
            site / path, environment.get_template(template).render(**context, root="../" * path.count("/"))
        )

    write_page("index.html", "index.html.j2", pages.build_index_context(entries, predecessors, history_pages))
    for entry in entries:
        files = {
            part: sorted(p.name for p in (site / entry.directory / part).iterdir()) for part in ("figures", "tables")
        }
        write_page(
            f"{entry.directory}/index.html",
            "campaign.html.j2",
            pages.build_campaign_context(entry, predecessors.get(entry.directory), files),
        )
    for history_page in history_pages:
        write_page(
            f"history/{history_page.name}.html", "history.html.j2", pages.build_history_context(history_page, entries)
        )
        _write_if_changed(
            site / "history" / f"{history_page.name}.csv",
            pages.build_history_table(history_page).to_csv(index=False, lineterminator="\n"),
        )
    for path in (site / "history").iterdir():
        # A file without a page remains if its campaigns were removed, or if they name the configuration differently.
        if path.stem not in {history_page.name for history_page in history_pages}:
            path.unlink()
    pairs = [
        (predecessors[entry.directory], entry, history.estimate_spread_before(measured_campaigns, place))
        for place, entry in enumerate(entries)
        if entry.directory in predecessors
    ]
    _write_comparisons(site, pairs)
    return len(entries)


def _write_if_changed(path: Path, text: str) -> None:
    """Write a file only if its content changed, so that incremental copies stay small."""
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)


def _read_measured_cells(tables: Path) -> pd.DataFrame:
    with reject_damaged_document(tables, "delete the campaign's directory and run again"):
        return history.select_measured_cells(
            pd.read_parquet(tables / "cells.parquet"), load_json(tables / "context.json")
        )


def _find_predecessors(
    entries: Sequence[ListedCampaign], measured_campaigns: Sequence[tuple[str, float, pd.DataFrame]]
) -> dict[str, ListedCampaign]:
    """Find the predecessor of each campaign: the latest earlier one that measured one of its cells."""
    predecessors, last_campaigns = {}, dict[tuple[Any, ...], ListedCampaign]()
    for entry, (_, _, rows) in zip(entries, measured_campaigns, strict=True):
        cells = set(rows[list(history.KEY_COLUMNS)].itertuples(index=False, name=None))
        earlier = [last_campaigns[cell] for cell in cells if cell in last_campaigns]
        if earlier:
            predecessors[entry.directory] = max(
                earlier, key=lambda entry_before: (entry_before.started, entry_before.directory)
            )
        last_campaigns.update(dict.fromkeys(cells, entry))
    return predecessors


def _write_comparisons(site: Path, pairs: Sequence[tuple[ListedCampaign, ListedCampaign, CampaignSpread]]) -> None:
    """Write the outdated comparisons of campaigns with their predecessors, on all processors."""
    program = compute_source_hash(REPORTS)
    outdated_comparisons = []
    for base, other, spread in pairs:
        origin_comment = f"<!-- {hash_text(f'{base.digests[-1]} {other.digests[-1]} {spread} {program}')} -->\n"
        path = site / other.directory / campaigns.COMPARISON_FILE
        if not path.is_file() or not path.read_bytes().endswith(origin_comment.encode()):
            outdated_comparisons.append((site, base, other, spread, origin_comment))
    if outdated_comparisons:
        with ProcessPoolExecutor(
            min(len(os.sched_getaffinity(0)), len(outdated_comparisons)), get_context("fork")
        ) as pool:
            list(pool.map(_write_comparison, *zip(*outdated_comparisons, strict=True)))


def _write_comparison(
    site: Path, base: ListedCampaign, other: ListedCampaign, spread: CampaignSpread, origin_comment: str
) -> None:
    comparison = compare(_read_named_tables(site, base), _read_named_tables(site, other), spread=spread)
    page = render_compare_page(comparison, back_address="../index.html")
    write_atomic(site / other.directory / campaigns.COMPARISON_FILE, page + origin_comment)


def _read_named_tables(site: Path, entry: ListedCampaign) -> Tables:
    """Read the tables of a campaign, with its date in the name to distinguish campaigns of one name."""
    tables = read_tables(site / entry.directory / "tables")
    campaign = {**tables.context["campaign"], "name": f"{entry.name} of {history.format_date(entry.started)}"}
    return replace(tables, context={**tables.context, "campaign": campaign})
