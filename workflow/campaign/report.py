"""The report page: words and numbers for the template, made from the tables, the leases and the finished figures.

`build_context` is pure and computes everything; the template only lays out. The page is one file: no script, no request,
no clock. All text that comes from campaigns, hosts or logs is escaped by the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from campaign import wording
from campaign.comparison import option_columns
from campaign.errors import RecordError
from campaign.figure import in_page_order
from campaign.project import REPORTS
from campaign.report_compositions import compositions, idle
from campaign.report_document import ContextDocument, Excluded, HostLeftOut
from campaign.tables import STATES, tally

# Up to so many planned cells the page has a row for each; beyond, one for each configuration and workload.
CELLS_ON_PAGE = 200
# Failed runs have a row each, with the path of their log.
FAILED_ON_PAGE = 500

_SCHEDULERS = {
    "slurm": "Slurm: every allocation was a Slurm job, every run a step in it",
    "local": "none: drivers and runs were processes of the machine that the campaign was started on",
}


def assemble(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
) -> str:
    """The report as HTML. drawings: by figure name, the document of its JSON file with the picture under `svg`.

    Raises RecordError when the context document is not as ContextDocument says.
    """
    return render(build_context(runs, cells, leases, context_document, drawings))


def write_report(out: Path, page: str) -> None:
    """Write the page; RecordError when that is not possible."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{out}: the report could not be written ({error.strerror})") from error


def read_drawings(files: Iterable[tuple[Path, Path]]) -> dict[str, dict[str, Any]]:
    """Finished figures by file name, from their (svg, json) files."""
    drawings = {}
    for svg, words in files:
        try:
            drawings[svg.stem] = {**json.loads(words.read_bytes()), "svg": svg.read_text(encoding="utf-8")}
        except (OSError, ValueError) as error:
            raise RecordError(f"{words}: the figure cannot be read ({error}); delete it and run again") from error
    return drawings


def build_context(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything the template lays out, already in words. See `assemble` for arguments and errors."""
    try:
        said = ContextDocument.model_validate(context_document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"report context: {where}: {first['msg']}") from error
    ordered = [drawings[name] for name in in_page_order(drawings)]
    shown = [{**drawing, "svg": Markup(inline(drawing["svg"]))} for drawing in ordered if drawing["shown"]]
    return {
        "campaign": said.campaign,
        "protocol": wording.protocol(said.campaign.protocol),
        "system": said.system,
        "notes": said.notes,
        "counts": _counts(runs, cells, said.excluded),
        "remarks": _remarks(runs, cells, said.hosts_left_out),
        "findings": [drawing for drawing in shown if drawing["findings"]],
        "coverage": _coverage(cells),
        "failed": _failed(runs, cells),
        "excluded": said.excluded,
        "sections": shown,
        "left_out": [drawing for drawing in ordered if not drawing["shown"]],
        "compositions": compositions(leases),
        "idle": idle(runs, cells),
        "hosts_left_out": said.hosts_left_out,
        "scheduler": _scheduler(said.launchers),
        "flags": _flags(runs, said.flags),
        "campaign_yaml": said.campaign_yaml,
        "software": said.software,
        "environments": {name: _json(document) for name, document in sorted(said.environments.items())},
        "schema_versions": sorted(said.schema_versions.items()),
        "recommendations": said.recommendations,
    }


def render(context: Mapping[str, Any], templates: Path | None = None) -> str:
    """The page for a context made by `build_context`; an undefined name in the template is an error."""
    directory = templates or REPORTS
    environment = Environment(
        loader=FileSystemLoader(directory),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = Markup((directory / "report.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html.j2").render(**context, css=css)


def inline(svg: str) -> str:
    """A picture without the XML declaration, which only a file of its own may have."""
    return svg[svg.index("<svg") :]


def _counts(runs: pd.DataFrame, cells: pd.DataFrame, excluded: Iterable[Excluded]) -> list[tuple[str, str]]:
    states = cells["state"].value_counts()
    return [
        ("planned", f"{len(cells):,}"),
        *((name, f"{int(states.get(name, 0)):,}") for name in _states(cells)),
        ("excluded", f"{sum(rule.cells for rule in excluded):,}"),
        ("runs", f"{len(runs):,}"),
    ]


def _remarks(runs: pd.DataFrame, cells: pd.DataFrame, hosts_left_out: Sequence[HostLeftOut]) -> list[str]:
    """What the counts alone would hide."""
    short = int(((cells["state"] == "measured") & (cells["n_ok"] < cells["n_planned"])).sum())
    alone = int((cells["n_ok"] == 1).sum())
    strangers = int((~runs["cell_id"].isin(cells["cell_id"])).sum())
    said = []
    if short:
        said.append(f"{wording.plural(short, 'measured cell')} with fewer believed runs than planned.")
    if alone:
        said.append(f"{wording.plural(alone, 'cell')} with one believed run only, so without an interval.")
    if strangers:
        said.append(f"{wording.plural(strangers, 'run')} of cells that this campaign does not plan, left out.")
    if hosts_left_out:
        names = ", ".join(each.host for each in hosts_left_out)
        said.append(f"{wording.plural(len(hosts_left_out), 'host')} failed, left out of further allocations: {names}.")
    return said


def _coverage(cells: pd.DataFrame) -> dict[str, Any]:
    """Every planned cell and what became of it; grouped when there are too many for a page."""
    if len(cells) > CELLS_ON_PAGE:
        return _grouped_coverage(cells)
    axes = _axes(cells)
    headings = ("Cell", "State", "Runs", "Samples/s", "95 % interval", "CV", "Why, and flags")
    rows = [
        (
            wording.describe(row, axes),
            row["state"],
            f"{row['n_ok']} of {row['n_planned']}",
            wording.rate(row["mean"]),
            wording.between(row["ci_low"], row["ci_high"], wording.rate),
            wording.percent(row["cv_pct"]),
            _why(row),
        )
        for row in cells.to_dict("records")
    ]
    return {"unit": "cell", "headings": headings, "rows": rows}


def _failed(runs: pd.DataFrame, cells: pd.DataFrame) -> dict[str, Any]:
    """Every run of a planned cell that is not believed, and where its log is, in the order of the plan."""
    axes = _axes(cells)
    words = {row["cell_id"]: wording.describe(row, axes) for row in cells.to_dict("records")}
    places = {name: place for place, name in enumerate(words)}
    failed = runs[~runs["status"].isin(("ok", "implied")) & runs["cell_id"].isin(cells["cell_id"])]
    failed = failed.assign(place=failed["cell_id"].map(places)).sort_values(["place", "repetition"], kind="stable")
    rows = [
        (
            words[row["cell_id"]],
            row["repetition"],
            row["status"],
            row["log"] or "none: nothing was started",
            row["failure_reason"],
        )
        for row in failed.head(FAILED_ON_PAGE).to_dict("records")
    ]
    headings = ("Cell", "Repetition", "Status", "Log", "Why")
    return {"headings": headings, "rows": rows, "total": f"{len(failed):,}", "left_out": f"{len(failed) - len(rows):,}"}


def _axes(cells: pd.DataFrame) -> list[str]:
    return ["configuration", "workload", "batch", "precision", *option_columns(cells)]


def _grouped_coverage(cells: pd.DataFrame) -> dict[str, Any]:
    known = _states(cells)
    headings = ("Configuration and workload", "State", "Cells", *map(str.capitalize, known), "Why, and flags")
    rows = []
    for (configuration, workload), group in cells.groupby(["configuration", "workload"], sort=False):
        counts = group["state"].value_counts()
        states = [name for name in known if name in counts]
        short = (group["n_failed"] + group["n_implied"] + group["n_missing"]) > 0
        reasons = [_why(row) for row in group[short].to_dict("records")]
        rows.append(
            (
                f"{configuration}, {workload}",
                states[0] if len(states) == 1 else "partly",
                f"{len(group):,}",
                *(f"{int(counts.get(name, 0)):,}" for name in known),
                tally(reasons),
            )
        )
    return {"unit": "configuration and workload", "headings": headings, "rows": rows}


def _states(cells: pd.DataFrame) -> list[str]:
    """The states to count: `implied` only where there are such cells."""
    return [name for name in STATES if name != "implied" or (cells["state"] == name).any()]


def _why(row: Mapping[Any, Any]) -> str:
    """Reasons of failed and missing runs, flags, and what ended the repetitions, of one cell."""
    word = "failed" if row["n_failed"] else "not run"
    parts = [
        f"{word}: {row['failures']} ({row['failure_reasons']})" if row["failure_reasons"] else "",
        f"{word}: {row['failures']}" if row["failures"] and not row["failure_reasons"] else "",
        f"missing: {row['missing_reasons']}" if row["n_missing"] else "",
        f"flags: {row['flags']}" if row["flags"] else "",
        f"ended: {row['stopped']}" if row["stopped"] else "",
    ]
    return "; ".join(part for part in parts if part)


def _flags(runs: pd.DataFrame, meanings: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Flag, its meaning, and how many runs and cells carry it."""
    carried = runs.loc[runs["flags"] != "", ["cell_id", "flags"]]
    single = carried.assign(flag=carried["flags"].str.split(", ")).explode("flag")
    return [
        (str(flag), meanings.get(str(flag), ""), f"{len(group):,}", f"{group['cell_id'].nunique():,}")
        for flag, group in single.groupby("flag", sort=True)
    ]


def _scheduler(launchers: Mapping[str, int]) -> str:
    """Who started the runs; with their numbers when it was more than one."""
    said = [
        _SCHEDULERS.get(name, name) + (f" ({wording.plural(runs, 'run')})" if len(launchers) > 1 else "")
        for name, runs in sorted(launchers.items())
    ]
    return "; ".join(said)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
