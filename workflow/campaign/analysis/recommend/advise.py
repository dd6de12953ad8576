"""Recommendation from the tables of a campaign: candidates, and an answer to each question of a request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import yaml
from pydantic import ValidationError

from campaign.analysis.recommend.candidates import energy_design, measured_candidates, with_results
from campaign.analysis.recommend.choice import TIE_PCT, RankingQuestion, choose
from campaign.analysis.recommend.document import Evidence, RecommendationDocument
from campaign.analysis.recommend.objectives import (
    DEFAULT,
    MIX,
    PER_JOULE,
    PER_PRICE,
    RecommendationObjective,
    RecommendationRequest,
)
from campaign.analysis.recommend.objectives import THROUGHPUT as BEST
from campaign.analysis.recommend.unmeasured_shapes import unmeasured_shapes
from campaign.analysis.recommend.workload_mix import fastest_variants, mix_candidates
from campaign.analysis.statistics.comparable_cells import option_columns
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import stored_system
from campaign.spec.cell import SHAPE_AXES
from campaign.spec.metric import THROUGHPUT, Metric, metric_of
from campaign.spec.system_file import SystemFile

_NO_CANDIDATE = "no configuration fulfils the constraints"
_WHY_NONE = {
    PER_JOULE: "no cell has samples of power",
    PER_PRICE: "the system file has no prices (`price_per_h` of its devices)",
}
_NO_MIX = "no configuration has all workloads of the mix like this; choose a precision or options with --constraint"
_NOTHING = "No cell was measured, so there is nothing to recommend."
_NO_SYSTEM = "Shapes that were not measured are not listed: the hosts and pool of the system are unknown here."
_BASIS = (
    "Answers rank measured cells by the mean of their runs; nothing is predicted. Intervals are 95\u202f%. "
    "That of the choice allows for its being the best of all candidates by chance; "
    "those of the configurations listed beside it are of one cell each.",
    "A configuration ties with the best if no test shows it to be worse, and two one-sided tests show a difference of less than "
    f"{TIE_PCT:.0f}\u202f% (t on logarithms with the spread of compositions; Holm, over all pairs of shapes of a question for "
    "differences). A configuration that is neither shown to be worse nor to tie is not told apart. Ties are unknown where each "
    "was measured on one composition. Of ties, the one with the fewest devices, on the fewest hosts, is named first. A mix "
    "compares all shapes with the precision and options that each workload is fastest with. What failed is no candidate. "
    "Configurations that always ran on hosts of their own are compared with their hosts, and never tie.",
)


def advise(tables: Tables, request: RecommendationRequest) -> RecommendationDocument:
    """Answer a request from the tables of a campaign.

    Raises ConfigError if an objective or a constraint cannot be applied.
    """
    request = _by_metric(request, metric_of(tables.context))
    named = ["precision", *option_columns(tables.cells)]
    energy = energy_design(tables)
    rows = measured_candidates(tables, energy, named, request.workloads)
    system = _system_as_used(tables.context)
    limits = [each for each in request.constraints if each.names <= SHAPE_AXES.keys()]
    basis = [*_BASIS, *([] if system else [_NO_SYSTEM])] if len(rows) else [_NOTHING]
    return RecommendationDocument(
        basis=tuple(basis),
        constraints=tuple(each.text for each in request.constraints),
        answers=tuple(choose(*each) for each in _questions(tables, energy, named, rows, request)) if len(rows) else (),
        unmeasured=tuple(unmeasured_shapes(system, tables.cells, limits)) if system else (),
    )


def _by_metric(request: RecommendationRequest, metric: Metric) -> RecommendationRequest:
    """Return the request with the campaign's primary metric in its objectives.

    Raises ConfigError if an objective needs throughput and the campaign has another primary metric.
    """
    if metric == THROUGHPUT:
        return request
    objectives = (RecommendationObjective(BEST),) if request.objectives is DEFAULT else request.objectives
    if wrong := [each.text for each in objectives if each.name != BEST]:
        raise ConfigError(
            f"--objective {wrong[0]}: needs throughput, and the campaign's metric is {metric.name}; ask for '{BEST}', which then "
            f"means the best {metric.label}"
        )
    return replace(request, objectives=tuple(replace(each, metric=metric) for each in objectives))


def _system_as_used(context: Mapping[str, Any]) -> SystemFile | None:
    """Return the system file that the campaign used; None if the tables hold no readable one, or several."""
    try:
        document = yaml.load(context.get("campaign_yaml", ""), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
        return stored_system(document["system"])
    except (yaml.YAMLError, TypeError, KeyError, ValidationError):
        return None


def _questions(
    tables: Tables, energy: Design, named: Sequence[str], rows: pd.DataFrame, request: RecommendationRequest
) -> Iterator[tuple[RankingQuestion, pd.DataFrame, str]]:
    """Yield each question of a request with its candidates and the reason to give if there are none.

    Objectives of the report are left out if the campaign has no data for them.
    """
    by_default = request.objectives is DEFAULT
    currency = str(tables.context.get("system", {}).get("currency", ""))
    allowed, cells = rows[_allowed(rows, request)], _evidence(tables, named)
    workloads = tuple(dict.fromkeys(rows["workload"]))
    lacking = {PER_JOULE: not len(energy.cells), PER_PRICE: rows["price_per_h"].isna().all(), MIX: len(workloads) < 2}
    for objective in request.objectives:
        if by_default and lacking.get(objective.name):
            continue
        if objective.name == MIX:
            yield _mix_question(objective, workloads, allowed, named, tables.design, cells)
            continue
        priced, design, own = replace(objective, currency=currency), tables.design, allowed
        if objective.name == PER_JOULE:
            design, own = energy, with_results(allowed, energy)
        by = ["workload", *named]
        candidates, possible = (dict(list(each.groupby(by, sort=False))) for each in (own, allowed))
        for key, _ in rows.groupby(by, sort=False):
            about = wording.format_axes(dict(zip(by, key, strict=True)), by)
            why_none = _WHY_NONE.get(objective.name, _NO_CANDIDATE) if key in possible else _NO_CANDIDATE
            yield (
                RankingQuestion(priced, about, (str(key[0]),), design, cells),
                candidates.get(key, own.iloc[:0]),
                why_none,
            )


def _mix_question(
    objective: RecommendationObjective,
    workloads: Sequence[str],
    allowed: pd.DataFrame,
    named: Sequence[str],
    design: Design,
    cells: Mapping[str, Evidence],
) -> tuple[RankingQuestion, pd.DataFrame, str]:
    """Build the question for a mix of workloads, with its candidates and the reason to give if there are none."""
    names, shares = zip(*(objective.shares or [(name, 1 / len(workloads)) for name in workloads]), strict=True)
    variants = fastest_variants(allowed, names, named)
    if len(variants) < len(names):
        return (
            RankingQuestion(objective, f"a mix of {', '.join(names)}", names, design, cells),
            allowed.iloc[:0],
            _NO_MIX,
        )
    about = " and ".join(f"{100 * share:.0f}\u202f% {way}" for way, share in zip(variants, shares, strict=True))
    rows, sums = mix_candidates(list(variants.values()), shares, design)
    return RankingQuestion(objective, f"a mix of {about}", names, sums, cells), rows, _NO_MIX


def _allowed(rows: pd.DataFrame, request: RecommendationRequest) -> npt.NDArray[np.bool_]:
    """Return which rows fulfil all constraints of a request."""
    hours_per_million = 1e6 / rows["rate"] / 3600
    values = rows.rename(columns={name: name.removeprefix("option_") for name in option_columns(rows)}).assign(
        throughput_per_s=rows["rate"],
        step_s=rows["batch_global"] / rows["rate"],
        device_hours_per_million=hours_per_million * rows["devices"],
        cost_per_million=hours_per_million * rows["price_per_h"],
        energy_per_sample_j=rows["energy_j"],
    )
    used = {"batch", *(name for constraint in request.constraints for name in constraint.names)}
    return np.array([request.allows(row) for row in values[sorted(used)].to_dict("records")], dtype=np.bool_)


def _evidence(tables: Tables, named: Sequence[str]) -> dict[str, Evidence]:
    """Return the cells as evidence for answers, by cell id."""
    columns = ["configuration", "workload", "batch", *named]
    counts = np.append(tables.design.compositions, 0)[tables.design.places(tables.cells["cell_id"])]
    records = tables.cells[["cell_id", "n_ok", *columns]].assign(compositions=counts).to_dict("records")
    return {
        row["cell_id"]: Evidence(
            cell_id=row["cell_id"],
            words=wording.format_axes(row, columns),
            runs=row["n_ok"],
            compositions=row["compositions"],
        )
        for row in records
    }
