"""Write the site: what campaigns are new, and of the other pages what differs from what is there."""

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
from campaign.analysis.tables.io import Tables, read
from campaign.common.errors import CampaignError, convert_os_error
from campaign.common.files import hash_text, load_json, reject_damaged_document, write_atomic
from campaign.common.paths import REPORTS
from campaign.report.compare_page import compare_page
from campaign.report.site import campaigns, history, pages
from campaign.report.site.campaigns import ListedCampaign
from campaign.report.source_hash import source_hash
from campaign.report.templates import STYLE, templates

_TEMPLATES = REPORTS / "results_site"


def write_site(sources: Iterable[Path], site: Path, say: Callable[[str], None]) -> int:
    """Add sources to a site, write its pages, and return the number of campaigns.

    report: callback for messages on sources that were left out. Raises RecordError if the site cannot be written.
    """
    try:
        site.mkdir(parents=True, exist_ok=True)
        entries = {entry.directory: entry for entry in campaigns.entries(site)}
        known = {digest for entry in entries.values() for digest in entry.digests}
        for source in sources:
            try:
                digest = campaigns.digest_of(source)
                if digest not in known:
                    known.add(digest)
                    entry = campaigns.add(source, digest, site, entries.values())
                    entries[entry.directory] = entry
            except CampaignError as error:
                text = str(error)
                say(f"left out: {text if text.startswith(str(source)) else f'{source}: {text}'}")
        return _write_pages(site)
    except OSError as error:
        raise convert_os_error(error, site) from error


def _write_pages(site: Path) -> int:
    entries = campaigns.entries(site)
    measured = [(each.directory, each.started, _measured_cells(site / each.directory / "tables")) for each in entries]
    shown = pages.history_pages(history.histories(measured), campaigns.plain)
    before = _predecessors(entries, measured)
    (site / "history").mkdir(exist_ok=True)
    _put(site / "style.css", STYLE.read_text("utf-8") + (_TEMPLATES / "results_site.css").read_text("utf-8"))
    filled = templates(_TEMPLATES)

    def page(path: str, template: str, context: Mapping[str, Any]) -> None:
        _put(site / path, filled.get_template(template).render(**context, root="../" * path.count("/")))

    page("index.html", "index.html.j2", pages.index(entries, before, shown))
    for each in entries:
        files = {
            part: sorted(p.name for p in (site / each.directory / part).iterdir()) for part in ("figures", "tables")
        }
        page(
            f"{each.directory}/index.html", "campaign.html.j2", pages.campaign(each, before.get(each.directory), files)
        )
    for own in shown:
        page(f"history/{own.name}.html", "history.html.j2", pages.history(own, entries))
        _put(site / "history" / f"{own.name}.csv", pages.history_table(own).to_csv(index=False, lineterminator="\n"))
    for path in (site / "history").iterdir():
        if path.stem not in {own.name for own in shown}:  # its campaigns were taken out, or name it otherwise
            path.unlink()
    pairs = [
        (before[each.directory], each, history.spread_before(measured, place))
        for place, each in enumerate(entries)
        if each.directory in before
    ]
    _write_comparisons(site, pairs)
    return len(entries)


def _put(path: Path, text: str) -> None:
    """Write a file only if its content changed, so that incremental copies stay small."""
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)


def _measured_cells(tables: Path) -> pd.DataFrame:
    with reject_damaged_document(tables, "delete the campaign's directory and run again"):
        return history.measured_cells(pd.read_parquet(tables / "cells.parquet"), load_json(tables / "context.json"))


def _predecessors(
    entries: Sequence[ListedCampaign], measured: Sequence[tuple[str, float, pd.DataFrame]]
) -> dict[str, ListedCampaign]:
    """Return, for each campaign, the latest earlier one that measured one of its cells."""
    found, last = {}, dict[tuple[Any, ...], ListedCampaign]()
    for entry, (_, _, rows) in zip(entries, measured, strict=True):
        cells = set(rows[list(history.KEY)].itertuples(index=False, name=None))
        earlier = [last[cell] for cell in cells if cell in last]
        if earlier:
            found[entry.directory] = max(earlier, key=lambda each: (each.started, each.directory))
        last.update(dict.fromkeys(cells, entry))
    return found


def _write_comparisons(site: Path, pairs: Sequence[tuple[ListedCampaign, ListedCampaign, CampaignSpread]]) -> None:
    """Write the outdated comparisons of campaigns with their predecessors, on all processors."""
    program = source_hash(REPORTS)
    wanted = []
    for base, other, spread in pairs:
        made_from = f"<!-- {hash_text(f'{base.digests[-1]} {other.digests[-1]} {spread} {program}')} -->\n"
        path = site / other.directory / campaigns.COMPARISON
        if not path.is_file() or not path.read_bytes().endswith(made_from.encode()):
            wanted.append((site, base, other, spread, made_from))
    if wanted:
        with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), len(wanted)), get_context("fork")) as pool:
            list(pool.map(_write_comparison, *zip(*wanted, strict=True)))


def _write_comparison(
    site: Path, base: ListedCampaign, other: ListedCampaign, spread: CampaignSpread, made_from: str
) -> None:
    comparison = compare(_named(site, base), _named(site, other), spread=spread)
    page = compare_page(comparison, back="../index.html")
    write_atomic(site / other.directory / campaigns.COMPARISON, page + made_from)


def _named(site: Path, entry: ListedCampaign) -> Tables:
    """Read the tables of a campaign, with its date in the name to distinguish campaigns of one name."""
    tables = read(site / entry.directory / "tables")
    named = {**tables.context["campaign"], "name": f"{entry.name} of {history.dated(entry.started)}"}
    return replace(tables, context={**tables.context, "campaign": named})
