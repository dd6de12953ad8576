"""Numbers, methods and the artifact appendix of a campaign in LaTeX, true for this campaign: each piece can be `\\input` alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from campaign import __version__, wording
from campaign.documents.metric import metric_of
from campaign.errors import unwritable
from campaign.insight.compare.claims import CELLS, claims
from campaign.report.context_schema import ContextDocument
from campaign.report.page import analysis_said, tests_said
from campaign.report.paper.latex import code, escaped, listed, loosely, table
from campaign.report.sections.coverage import state_counts
from campaign.statistics import intervals, verdict
from campaign.statistics.comparable_cells import naming_columns
from campaign.statistics.drift import is_adjusted
from campaign.statistics.location import FAR
from campaign.tables import measured_protocol
from campaign.tables.io import Tables
from campaign.tables.leases import leases_table


def write(tables: Tables, source: Path, out: Path, documents: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write numbers.tex (with claims.csv and cells.csv), methods.tex and artifact.tex.

    source: what the tables are of; documents: of the figures that are shown (`figure.page_document`).
    """
    stated = claims(tables)
    texts = {
        "numbers.tex": numbers(tables, stated),
        "methods.tex": methods(tables, documents, stated),
        "artifact.tex": artifact(tables, source, stated),
        "claims.csv": stated.to_csv(index=False, lineterminator="\n"),
        "cells.csv": tables.cells.to_csv(index=False, lineterminator="\n"),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(error, out) from error
    return [out / name for name in texts]


def numbers(tables: Tables, stated: pd.DataFrame) -> str:
    """The comparisons that the answers state, and all cells, with 95 % intervals."""
    metric = metric_of(tables.context)
    unit = f" ({metric.unit})" if metric.unit else ""
    compared = [
        (row["claim"], row["figure"], _ratio(row), verdict.p_value(row["p_holm"]),
         f"{row['compositions']} / {row['against_compositions']}", row["method"].removesuffix(", 95 %"))
        for row in stated.to_dict("records")
    ]  # fmt: skip
    names = [name for name in naming_columns(tables.cells) if tables.cells[name].nunique(dropna=False) > 1]
    composed = dict(zip(tables.design.cells, tables.design.compositions, strict=True))
    cells = [
        (wording.describe(row, [name for name in names or ["configuration"] if row[name] != ""]),
         wording.with_interval(row["mean"], row["ci_low"], row["ci_high"], wording.rate) if row["n_ok"] else row["state"],
         str(row["n_ok"]), str(composed.get(row["cell_id"], 0)), wording.statuses(row["failures"]) if row["failures"] else "")
        for row in tables.cells.to_dict("records")
    ]  # fmt: skip
    basis = " ".join(f"{each[:1].upper()}{each[1:]}." for each in tables.context.get("conditions", ()))
    parts = []
    if compared:
        other = "".join(f", of {kind}" for kind in dict.fromkeys(stated["of"]) if kind != CELLS)
        title = (
            f"Ratios of {metric.performance}{other}, with 95 % intervals; above 1 is better. p-values are adjusted by Holm "
            f"over the comparisons of a figure. {basis}"
        )
        headings = ("Comparison", "Figure", "Ratio", "p (Holm)", "Compositions", "Interval")
        parts.append(table("comparisons", title, headings, compared, "claims.csv"))
    if cells:
        title = f"All cells: mean {metric.label}{unit} with its 95 % interval. {basis}"
        parts.append(table("cells", title, ("Cell", "Mean", "Runs", "Compositions", "Failures"), cells, "cells.csv"))
    return "\n".join(parts) or "% no cell is planned\n"


def _ratio(row: Mapping[Any, Any]) -> str:
    return wording.with_interval(row["ratio"], row["low"], row["high"], wording.times)


def methods(tables: Tables, documents: Sequence[Mapping[str, Any]], stated: pd.DataFrame) -> str:
    """One paragraph: what was measured, how often and in which order, and how intervals and tests were made."""
    said = ContextDocument.model_validate(tables.context)
    sentences = [
        *_replicates(tables, said),
        *_statistics(tables, documents, stated),
        *_conditions(tables, said),
        *analysis_said(said.campaign.analysis),
        *(f"{each['title']}: {each['method']}." for each in documents if each["method"]),
    ]
    return loosely("\\paragraph{Methods}\n" + "".join(f"{escaped(each)}\n" for each in sentences if each))


def _replicates(tables: Tables, said: ContextDocument) -> Iterator[str]:
    valid = tables.runs[tables.runs["status"] == "ok"]
    states = ", ".join(f"{count} {name}" for name, count in state_counts(tables.cells) if count != "0")
    yield (
        f"Campaign {said.campaign.name} on {said.campaign.system} planned {wording.plural(len(tables.cells), 'cell')} "
        f"(configuration, "
        f"workload, batch, precision): {states}."
    )
    if valid.empty:
        yield "No run is valid."
        return
    leased = valid[valid["lease_id"] != ""]
    if len(leased):
        composed = leased.groupby("cell_id")["lease_id"].nunique()
        runs = leased.groupby(["cell_id", "lease_id"]).size()
        yield (
            f"The unit of replication is the composition: hardware was composed anew "
            f"{wording.plural(leased['lease_id'].nunique(), 'time')}, "
            f"each cell was measured in {_range(composed, 'composition')} with {_range(runs, 'valid run')} in each, "
            f"{wording.plural(len(valid), 'valid run')} in all."
        )
    else:
        yield f"There are {wording.plural(len(valid), 'valid run')}; which compositions they are of is not known."
    yield f"Protocol: {measured_protocol.said(tables.runs, said.campaign.protocol)}."
    if "reference" in said.campaign.protocol:
        yield "A reference cell was measured in every composition."
    if is_adjusted(dict(tables.context["campaign"])):
        yield verdict.ADJUSTED


def _range(counts: pd.Series[Any], noun: str) -> str:
    low, high = int(counts.min()), int(counts.max())
    return wording.plural(low, noun) if low == high else f"{low:,} to {high:,} {noun}s"


def _statistics(tables: Tables, documents: Iterable[Mapping[str, Any]], stated: pd.DataFrame) -> Iterator[str]:
    metric = metric_of(tables.context)
    mean = "harmonic mean of rates" if metric.higher else "mean"
    yield (
        f"The primary metric is {metric.label}{f' in {metric.unit}' if metric.unit else ''}. The value of a cell is "
        f"the {mean} over its "
        f"compositions of the {mean} over their runs; a run further than {FAR:g} robust standard deviations from the "
        f"median of its cell "
        "counts as that far, and none is left out."
    )
    if outliers := int(tables.cells["n_outliers"].sum()):
        were = "was marked as an outlier" if outliers == 1 else "were marked as outliers"
        yield f"{wording.plural(outliers, 'run')} {were}, by a rule with 1 false alarm in 100 clean cells."
    if made_by := wording.made_by(tables.cells["interval_method"]):
        yield f"Intervals of cells are 95 % intervals{made_by}."
    if tests := tests_said(documents):
        yield tests
    if len(stated):
        borrowed = stated["method"].isin([intervals.BORROWED, intervals.BORROWED_EARLIER])
        if borrowed.any():
            lent = sorted({name for name in stated.get("lent_by", pd.Series(dtype=str)) if name})
            source = f"earlier campaigns on the system ({', '.join(lent)})" if lent else "other cells of the campaign"
            yield f"In {wording.plural(int(borrowed.sum()), 'comparison')} the spread of compositions is borrowed from {source}."
        if untested := int((~stated["tested"]).sum()):
            yield f"{wording.plural(untested, 'comparison')} not tested: {verdict.why_not_tested(stated[~stated['tested']])}."
        if unlike := verdict.unlike(stated):
            yield unlike.strip()


def _conditions(tables: Tables, said: ContextDocument) -> Iterator[str]:
    yield from (f"{each[:1].upper()}{each[1:]}." for each in said.conditions)
    yield from said.notes
    for rule in said.excluded:
        yield f"Left out ({wording.plural(rule.cells, 'cell')}): {rule.rule}, because {rule.why}."
    for host in said.hosts_left_out:
        yield f"Host {host.host} was left out after a failure: {host.why}."


def artifact(tables: Tables, source: Path, stated: pd.DataFrame) -> str:
    """Artifact Description and Evaluation in the parts that the SC conference asks for; what only authors know is marked TODO."""
    said = ContextDocument.model_validate(tables.context)
    archive = source.name if source.suffix == ".zip" else f"{said.campaign.name}.zip"
    packed = (
        "" if source.suffix == ".zip" else f" It is made by {code(f'campaign archive {source} --output {archive}')}."
    )
    title = escaped(said.campaign.title)
    return loosely("\n".join([
        "% Needs \\usepackage{graphicx,booktabs}. Fill in what is marked TODO.",
        "\\section*{Artifact Description}",
        "\\subsection*{Paper's Main Contributions}",
        listed(_contributions(said, stated), "description"),
        "\\subsection*{Computational Artifacts}",
        f"$A_1$ is the archive {code(archive)} (TODO: DOI): {title}. It is a Workflow Run RO-Crate with the campaign as used, its "
        f"programs, one record a run with every step time, tables, and checksums of all files.{packed}\n",
        "\\section*{Artifact Identification: $A_1$}",
        "\\subsection*{Relation to Contributions}",
        "All numbers, tables and figures of the campaign are made from the archive alone.\n",
        "\\subsection*{Expected Results}",
        _expected(stated),
        "\\subsection*{Expected Reproduction Time}",
        listed(_times(tables)),
        "\\subsection*{Artifact Setup}",
        "\\paragraph{Hardware}" + " ".join(map(escaped, _hardware(said))) + "\n",
        "\\paragraph{Software}" + " ".join(map(escaped, _software(said))) + "\n",
        "\\paragraph{Datasets and Inputs}The archive holds the programs and input files of its workloads; its README "
        "lists those that "
        "are left out.\n",
        "\\paragraph{Installation}" + code(f"pip install composable-campaign=={__version__}") + "\n",
        "\\section*{Artifact Evaluation}",
        "\\subsection*{Execution and Analysis}",
        listed(_commands(archive, said.campaign.name), "enumerate"),
    ]))  # fmt: skip


def _contributions(said: ContextDocument, stated: pd.DataFrame) -> Iterator[str]:
    """The question, and how much of each kind of comparison answers it."""
    if said.campaign.question:
        yield f"[$C_1$] {escaped(said.campaign.question)}"
    counts: Mapping[Any, int] = stated["figure"].value_counts(sort=False).to_dict()
    told = "; ".join(f"{name}: {wording.plural(int(count), 'comparison')}" for name, count in counts.items())
    yield f"[TODO] What the paper concludes.{f' The campaign states: {escaped(told)}.' if told else ''}"


def _expected(stated: pd.DataFrame) -> str:
    """The claims with what a repetition is expected to give."""
    known = stated[stated["expected_low"].notna()] if len(stated) else stated
    if known.empty:
        return "The campaign states no comparison whose spread between compositions is known; compare Table~\\ref{tab:cells}.\n"
    rows = [
        (row["claim"], _ratio(row), wording.between(row["expected_low"], row["expected_high"], wording.times))
        for row in known.to_dict("records")
    ]
    title = (
        "Expected results: ratios, and the 95 % prediction interval of a repetition with as many compositions and runs. Of 20 "
        "ratios, one is expected outside by chance."
    )
    left_out = len(stated) - len(known)
    notes = (
        [f"{wording.plural(left_out, 'comparison')} without a known spread between compositions left out."]
        if left_out
        else []
    )
    headings = ("Comparison", "Archive, 95 % interval", "Expected")
    return (
        "Table~\\ref{tab:expected} has each ratio and the tolerance that follows from the archive's spread between compositions.\n"
        + table("expected", title, headings, rows, "claims.csv", notes)
    )


def _times(tables: Tables) -> Iterator[str]:
    times = leases_table(tables.leases)
    total = float(times[["compose_s", "held_s", "release_s"]].sum().sum()) if len(times) else math.nan
    yield "Artifact setup: a few minutes, for an installation from the package registry."
    if total > 0:
        yield escaped(
            f"Artifact execution: {wording.duration(total)} of compositions one after another, as recorded "
            f"({wording.plural(len(times), 'composition')}); "
            "less where leases run side by side, more where a scheduler queues them."
        )
    else:
        yield "Artifact execution: TODO; the archive records no times of compositions."
    yield "Artifact analysis: about a minute."


def _hardware(said: ContextDocument) -> Iterator[str]:
    described = f": {said.system.description}" if said.system.description else "."
    yield f"System {said.system.name}{described} Fabric: {said.system.fabric}."
    seen: dict[str, None] = {}
    for each in said.environments.values():
        parts = [str(each[key]) for key in ("cpu", "machine") if each.get(key)]
        parts += [f"{each['memory_gib']} GiB"] if each.get("memory_gib") else []
        parts += [str(gpu) for gpu in each.get("gpus") or ()]
        seen[", ".join(parts)] = None
    yield from (f"Host: {each}." for each in seen if each)
    yield from (f"{each[:1].upper()}{each[1:]}." for each in said.conditions)
    yield "The control plane and the hosts of another system are described in a system file; nothing else changes."


def _software(said: ContextDocument) -> Iterator[str]:
    systems = {str(each["system"]): None for each in said.environments.values() if each.get("system")}
    pythons = {f"Python {each['python']}": None for each in said.environments.values() if each.get("python")}
    listed_ = [*systems, *pythons, *(f"{each.name} {each.version}" for each in said.software)]
    yield f"Composable Campaign {__version__}; measured with: {', '.join(listed_) or 'not recorded'}."


def _commands(archive: str, name: str) -> Iterator[str]:
    steps = {
        f"campaign archive verify {archive}": "checks every file (seconds).",
        f"campaign report {archive}": "makes the report and its figures again from the records (about a minute).",
        f"campaign reproduce {archive}": "writes the campaign's files (seconds); an option names another system.",
        f"campaign run {name}-again/config/campaign.yaml": "measures all cells (see the expected reproduction time).",
        f"campaign reproduce {archive} --against {name}-again/config/campaign.yaml":
            "writes a page that holds each claim against its prediction interval (about a minute).",
    }  # fmt: skip
    yield from (f"{code(command)} {escaped(does)}" for command, does in steps.items())
