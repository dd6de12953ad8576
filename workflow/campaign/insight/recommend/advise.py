"""From tables to advice: models, candidates, and an answer to every question that was asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import yaml
from pydantic import ValidationError

from campaign import wording
from campaign.config.system_file import SystemFile
from campaign.config.workload_inputs import stored_workload
from campaign.documents.metric import THROUGHPUT, Metric, metric_of
from campaign.errors import ConfigError
from campaign.insight.recommend.candidates import candidates, reasons
from campaign.insight.recommend.choice import TIE_PCT, ObjectiveOfWorkload, answer
from campaign.insight.recommend.document import Evidence, ModelSaid, Parameter, RecommendationDocument
from campaign.insight.recommend.objectives import (
    DEFAULT,
    MIX,
    PER_JOULE,
    PER_PRICE,
    RecommendationObjective,
    RecommendationRequest,
)
from campaign.insight.recommend.objectives import THROUGHPUT as BEST
from campaign.insight.recommend.shape_enumeration import pool_of
from campaign.insight.recommend.step_model import TRUSTED_PCT, FittedWorkload, MeasuredWorkload, measured_workloads
from campaign.insight.recommend.step_rows import MeasuredProgram
from campaign.insight.recommend.workload_mix import fastest_ways, mixed
from campaign.statistics.comparable_cells import option_columns
from campaign.statistics.comparisons import Design
from campaign.statistics.intervals import student_quantile
from campaign.tables.io import Tables

CHECK_COLUMNS = ("cell_id", "workload", "device", "configuration", "batch", "precision", "ranks", "hosts", "attach")


@dataclass(frozen=True)
class Advice:
    """The document, and for the figure a row for each measured cell with a model: `measured_per_s`, `predicted_per_s` without its
    configuration, `error_pct` of the one over the other, and the `reason` where that is large."""

    document: RecommendationDocument
    checks: pd.DataFrame


def advise(tables: Tables, asked: RecommendationRequest) -> Advice:
    """Answer what is asked from the tables of a campaign. ConfigError where a constraint cannot be applied."""
    metric = metric_of(tables.context)
    if metric != THROUGHPUT:
        tables, asked = _by_metric(tables, asked, metric)
    if "price_per_h" not in tables.cells:  # of an earlier version
        tables = replace(tables, cells=tables.cells.assign(price_per_h=np.nan))
    cells = tables.cells
    named = ["precision", *option_columns(cells)]
    document, system = _as_used(tables.context)
    programs = {
        str(name): MeasuredProgram(system, stored_workload(document, str(name)), tables.links)
        for name in cells["workload"].unique()
    }
    # The model is of step times.
    models = measured_workloads(tables, named, programs if metric == THROUGHPUT else None, asked.workloads)
    pools = {each.device: pool_of(system, each.device) for each in models} if system else {}
    rows = candidates(tables, models, pools)
    evidence = _evidence(cells, named, tables.design)
    allowed = rows if rows.empty else rows[_allowed(rows, asked)]
    currency = str(tables.context.get("system", {}).get("currency", ""))
    answers = [
        answer(question, own)
        for objective in asked.objectives
        for question, own in _questions(
            replace(objective, currency=currency), rows, allowed, named, evidence, asked.objectives is DEFAULT
        )
    ]
    told = RecommendationDocument(
        basis=_basis(models, _no_pool(tables, system), rows),
        constraints=tuple(each.text for each in asked.constraints),
        answers=tuple(answers),
        models=tuple(_said(each) for each in models) if metric == THROUGHPUT else (),
    )
    return Advice(told, _checks(models, named))


def _by_metric(tables: Tables, asked: RecommendationRequest, metric: Metric) -> tuple[Tables, RecommendationRequest]:
    """The tables with the mean of cells as a rate, and what can be asked of another metric than throughput."""
    if asked.objectives is DEFAULT:
        asked = replace(asked, objectives=(RecommendationObjective(BEST),))
    if wrong := [each.text for each in asked.objectives if each.name != BEST]:
        raise ConfigError(
            f"--objective {wrong[0]}: needs throughput, and the campaign's metric is {metric.name}; ask for '{BEST}', which then "
            f"means the best {metric.label}"
        )
    cells = tables.cells if metric.higher else tables.cells.assign(mean=1 / tables.cells["mean"])
    asked = replace(asked, objectives=tuple(replace(each, metric=metric) for each in asked.objectives))
    return replace(tables, cells=cells), asked


def _as_used(context: Mapping[str, Any]) -> tuple[Mapping[str, Any], SystemFile | None]:
    """The campaign as used and its system file, as the tables hold them; {} and None where they hold no readable ones."""
    try:
        document = yaml.load(context.get("campaign_yaml", ""), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
        return document, SystemFile.model_validate(document["system"])
    except (yaml.YAMLError, TypeError):
        return {}, None
    except (ValidationError, KeyError):
        return document, None


def _evidence(cells: pd.DataFrame, named: Sequence[str], design: Design) -> dict[str, Evidence]:
    columns = ["configuration", "workload", "batch", *named]
    compositions = np.append(design.compositions, 0)[design.places(cells["cell_id"])]
    records = cells[["cell_id", "n_ok", *columns]].assign(compositions=compositions).to_dict("records")
    return {
        row["cell_id"]: Evidence(
            cell_id=row["cell_id"],
            words=wording.describe(row, columns),
            runs=row["n_ok"],
            compositions=row["compositions"],
        )
        for row in records
    }


def _allowed(rows: pd.DataFrame, asked: RecommendationRequest) -> npt.NDArray[np.bool_]:
    """Which rows fulfil all constraints."""
    a_million_h = 1e6 / rows["rate"] / 3600
    values = rows.rename(columns={name: name.removeprefix("option_") for name in option_columns(rows)}).assign(
        throughput_per_s=rows["rate"],
        step_s=rows["batch_global"] / rows["rate"],
        device_hours_per_million=a_million_h * rows["devices"],
        cost_per_million=a_million_h * rows["price_per_h"],
        energy_per_sample_j=rows["energy_j"],
        extrapolated=rows["outside"],
        memory_fits=rows["memory"] == "fits",
    )
    used = {"batch", *(name for constraint in asked.constraints for name in constraint.names)}
    return np.array([asked.allows(row) for row in values[sorted(used)].to_dict("records")], dtype=np.bool_)


def _questions(
    objective: RecommendationObjective,
    rows: pd.DataFrame,
    allowed: pd.DataFrame,
    named: Sequence[str],
    evidence: Mapping[str, Evidence],
    unasked: bool,
) -> Iterator[tuple[ObjectiveOfWorkload, pd.DataFrame]]:
    """A question for each workload as it is run, or one for a mix, with the candidates for it. Nobody who did not ask is told that
    there is no answer."""
    needs = {PER_JOULE: "energy_j", PER_PRICE: "price_per_h"}.get(objective.name)
    if rows.empty or (unasked and needs and not rows[needs].notna().any()):
        return
    if objective.name == MIX:
        workloads = list(dict.fromkeys(rows["workload"]))
        shares = objective.shares or tuple((name, 1 / len(workloads)) for name in workloads)
        if unasked and len(shares) < 2:
            return
        names, parts = zip(*shares, strict=True)
        ways = fastest_ways(allowed, names, named)
        if len(ways) < len(shares):
            about = f"a mix of {', '.join(names)}"
            yield ObjectiveOfWorkload(objective, about, names, evidence, rows.iloc[:0]), allowed.iloc[:0]
            return
        about = " and ".join(f"{100 * share:.0f}\u202f% {way}" for way, share in zip(ways, parts, strict=True))
        alike = pd.concat(list(ways.values()))[["workload", *named]].drop_duplicates()
        own = rows[rows["measured"]].merge(alike)
        yield (
            ObjectiveOfWorkload(objective, f"a mix of {about}", names, evidence, own),
            mixed(list(ways.values()), parts),
        )
        return
    by = ["workload", *named]
    of = dict(list(allowed.groupby(by, sort=False)))
    for key, measured in rows[rows["measured"]].groupby(by, sort=False):
        about = wording.describe(dict(zip(by, key, strict=True)), by)
        question = ObjectiveOfWorkload(objective, about, (str(key[0]),), evidence, measured)
        yield question, of.get(key, allowed.iloc[:0])


def _no_pool(tables: Tables, system: SystemFile | None) -> str:
    """Why shapes that were not measured are not predicted; '' where they are."""
    if "system" in tables.cells and tables.cells["system"].nunique() > 1:
        return "The campaign is on several systems, so only measured configurations are compared."
    return (
        ""
        if system
        else "The hosts and pool of the system are unknown here: only measured configurations are compared."
    )


def _basis(models: Sequence[MeasuredWorkload], no_pool: str, rows: pd.DataFrame) -> tuple[str, ...]:
    if rows.empty:
        return ("No cell was measured, so there is nothing to recommend.",)
    predicted = int((~rows["measured"]).sum())
    replayed = sorted(rows.loc[rows["replayed"], "workload"].unique())
    no_device = (
        f"No device was measured for {', '.join(replayed)}: these cells were simulated, or replayed from traces, so what is "
        "built on them is predicted as well. Whether a batch fits into memory is not known here."
    )
    pool = no_pool or (
        f"{wording.plural(predicted, 'combination')} of a workload with a shape that the system’s hosts and pool allow by "
        "number were predicted in addition; drawers and cabling are checked when a campaign is planned."
    )
    return (
        *([no_device] if replayed else ()),
        f"Answers compare measured cells (mean of their runs) and predictions of step times. {_how(models)}"
        "Intervals are 95\u202f%; those of predictions are as wide as configurations left out of the fit need.",
        pool,
        f"A configuration ties with the best if both were measured, no test shows a difference (t on logarithms with the spread of "
        f"compositions, Holm over all pairs of measured shapes of a question), and two one-sided tests show one of less than "
        f"{TIE_PCT:.0f}\u202f% (Holm). Measured ones that are neither shown to differ nor to tie are not told apart. A prediction "
        "is listed where its interval reaches that of the best. Where each was measured on one composition, ties are unknown. "
        "Of ties, the one with the fewest devices, on the fewest hosts, is named first. A mix compares all shapes with the "
        "precision and options that each workload is fastest with. What failed is no candidate. "
        f"Predictions choose only where the model is within {TRUSTED_PCT:.0f}\u202f% (median) on configurations left "
        "out of the fit, and never outside of the measured range.",
    )


def _said(each: MeasuredWorkload) -> ModelSaid:
    cells, model = each.cells, each.model
    # Of a program of unknown inside, each strategy has a model of its own.
    strategy = f", {each.strategies[0]}," if model and model.rows.assumed and each.strategies[0] else ""
    about = f"{each.workload}{strategy} on {each.device}"
    off = cells["error_pct"].abs()
    known = bool(off.notna().any())
    if model is None:
        sentence = "too few configurations for a model; only what was measured is recommended."
    elif known:
        sentence = (
            f"throughput of a configuration that was left out is {wording.percent(off.median())} off (median), "
            f"{wording.percent(off.max())} at most; {(off > TRUSTED_PCT).sum()} of {wording.plural(off.count(), 'cell')} are more "
            f"than {TRUSTED_PCT:.0f}\u202f% off."
        )
    else:
        sentence = "no configuration could be left out."
    if model and each.untrusted == each.strategies:
        sentence += " The model does not describe these measurements: it chooses nothing here."
    elif model and each.untrusted:
        sentence += f" It does not describe {', '.join(each.untrusted)}: it chooses nothing there."
    by_configuration = off.groupby(cells["configuration"], sort=False).median().round(3)
    return ModelSaid(
        workload=each.workload,
        device=each.device,
        cells=len(cells),
        configurations=int(cells["configuration"].nunique()),
        trusted=not each.untrusted,
        parts=_parts(model) if model else "",
        error_median_pct=float(off.median()) if known else None,
        error_worst_pct=float(off.max()) if known else None,
        sentence=f"{about}: {sentence}",
        parameters=tuple(_parameters(model)) if model else (),
        by_configuration={str(name): None if np.isnan(value) else value for name, value in by_configuration.items()}
        if model
        else {},
    )


SIMULATES, ASSUMES = "simulation of a step", "simulation of an assumed step"
_HOW = {
    SIMULATES: "Steps of {} are simulated, with parameters that the measured cells tell. ",
    ASSUMES: "The inside of a step is unknown for {}: steps are simulated as data-parallel training of equal layers, in the way "
    "that describes the measured cells best. ",
}


def _parts(model: FittedWorkload) -> str:
    return ASSUMES if model.rows.assumed else SIMULATES


def _how(models: Sequence[MeasuredWorkload]) -> str:
    """The ways in which steps are predicted, as sentences, each with a space behind it."""
    named: dict[str, dict[str, None]] = {}
    for each in models:
        if each.model is not None:
            named.setdefault(_parts(each.model), {})[each.workload] = None
    return "".join(sentence.format(", ".join(named[parts])) for parts, sentence in _HOW.items() if parts in named)


def _parameters(model: FittedWorkload) -> Iterator[Parameter]:
    """Those that are known better than before."""
    for name, value, low, high in model.fitted.learned(float(student_quantile(model.freedom))):
        before = model.fitted.prior[name]
        unit = "" if before.unit == "1" else f"\u202f{before.unit}"
        yield Parameter(
            name=name,
            value=f"{wording.number(value)}{unit}",
            interval=wording.between(low, high),
            start=before.source,
        )


def _checks(models: Sequence[MeasuredWorkload], named: Sequence[str]) -> pd.DataFrame:
    columns = list(dict.fromkeys([*CHECK_COLUMNS, *named]))
    frames = [
        each.cells[[*columns, "error_pct"]].assign(
            measured_per_s=each.cells["mean"],
            predicted_per_s=each.cells["batch_global"] / each.cells["predicted_s"],
            reason=reasons(each),
        )
        for each in models
        if each.model is not None
    ]
    kept = [*columns, "measured_per_s", "predicted_per_s", "error_pct", "reason"]
    return pd.concat(frames, ignore_index=True)[kept] if frames else pd.DataFrame(columns=kept)
