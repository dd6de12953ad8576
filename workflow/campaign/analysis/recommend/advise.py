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

from campaign.analysis.recommend.candidates import add_results, build_candidates, build_energy_design
from campaign.analysis.recommend.choice import TIE_PCT, RankingQuestion, choose_configuration
from campaign.analysis.recommend.document import Evidence, RecommendationDocument
from campaign.analysis.recommend.objectives import (
    DEFAULT_OBJECTIVES,
    MIX,
    PER_JOULE,
    PER_PRICE,
    RecommendationObjective,
    RecommendationRequest,
    parse_request,
)
from campaign.analysis.recommend.objectives import THROUGHPUT as BEST
from campaign.analysis.recommend.unmeasured_shapes import list_unmeasured_shapes
from campaign.analysis.recommend.workload_mix import build_mix_candidates, select_fastest_variants
from campaign.analysis.statistics.comparable_cells import list_option_columns
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import system_from_document
from campaign.spec.cell import SHAPE_AXES
from campaign.spec.metric import THROUGHPUT, Metric, read_primary_metric
from campaign.spec.system_file import SystemFile

_NO_CANDIDATE = "no configuration fulfils the constraints"
_NO_CANDIDATE_REASONS = {
    PER_JOULE: "power was not sampled in any cell",
    PER_PRICE: "the system file has no prices; set `compute_price_per_h` of its devices",
}
_NO_MIX = "no configuration ran every workload of the mix with its fastest precision and options; select others with --constraint"
_NO_MEASUREMENT = "No cell was measured, so there is nothing to recommend."
_NO_SYSTEM = "Shapes that were not measured are not listed, because the hosts and the pool of the system are unknown."
_BASIS_SENTENCES = (
    "Measured cells are ranked by the mean of their runs; nothing is predicted. The interval of each first answer accounts "
    "for its selection.",
    "A configuration ties with the best if no test shows it to be worse, and two one-sided tests show a difference below "
    f"{TIE_PCT:.0f}\u202f%. The tests are t-tests on logarithms with the spread of compositions. Tests of differences are "
    "adjusted (Holm) over all pairs of shapes. A configuration that is neither worse nor tied is listed as indistinguishable. "
    "Ties are unknown if each configuration was measured on one composition. Of tied configurations, the one with the fewest "
    "devices and hosts is named first. A mix compares all shapes with the precision and options with which each workload is "
    "fastest. Configurations that failed are not candidates. Configurations that never shared hosts are compared together with "
    "their hosts, and never tie.",
)


def build_recommendation(tables: Tables, request: RecommendationRequest) -> RecommendationDocument:
    """Answer a request from the tables of a campaign.

    Raises ConfigError if an objective or a constraint cannot be applied.
    """
    request = _apply_metric(request, read_primary_metric(tables.context))
    name_columns = ["precision", *list_option_columns(tables.cells)]
    energy = build_energy_design(tables)
    rows = build_candidates(tables, energy, name_columns, request.workloads)
    system = _read_system(tables.context)
    limits = [item for item in request.constraints if item.names <= SHAPE_AXES.keys()]
    basis = [*_BASIS_SENTENCES, *([] if system else [_NO_SYSTEM])] if len(rows) else [_NO_MEASUREMENT]
    return RecommendationDocument(
        basis=tuple(basis),
        constraints=tuple(item.text for item in request.constraints),
        answers=tuple(
            choose_configuration(*item) for item in _list_questions(tables, energy, name_columns, rows, request)
        )
        if len(rows)
        else (),
        unmeasured=tuple(list_unmeasured_shapes(system, tables.cells, limits)) if system else (),
    )


def answer_question(
    tables: Tables, objectives: Sequence[str], constraints: Sequence[str], workloads: Sequence[str]
) -> RecommendationDocument:
    """Answer a request that a person wrote. `parse_request` describes the texts.

    Raises ConfigError if a text is invalid or cannot be applied.
    """
    measured_workloads = tables.cells.loc[tables.cells["n_ok"] > 0, "workload"].unique()
    options = [name.removeprefix("option_") for name in list_option_columns(tables.cells)]
    names = [str(name) for name in measured_workloads]
    return build_recommendation(tables, parse_request(objectives, constraints, workloads, names, options))


def _apply_metric(request: RecommendationRequest, metric: Metric) -> RecommendationRequest:
    """Apply the campaign's primary metric to the objectives of a request.

    Raises ConfigError if an objective needs throughput and the campaign has another primary metric.
    """
    if metric == THROUGHPUT:
        return request
    objectives = (RecommendationObjective(BEST),) if request.objectives is DEFAULT_OBJECTIVES else request.objectives
    if unsupported_objectives := [objective.command_line_text for objective in objectives if objective.name != BEST]:
        raise ConfigError(
            f"--objective {unsupported_objectives[0]} needs throughput, but the primary metric of the campaign is {metric.name}; "
            f"use '{BEST}', which then means the best {metric.label}"
        )
    return replace(request, objectives=tuple(replace(objective, metric=metric) for objective in objectives))


def _read_system(context: Mapping[str, Any]) -> SystemFile | None:
    """Read the campaign's system file; None if the tables hold several or no readable one."""
    try:
        document = yaml.load(context.get("campaign_yaml", ""), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
        return system_from_document(document["system"])
    except (yaml.YAMLError, TypeError, KeyError, ValidationError):
        return None


def _list_questions(
    tables: Tables, energy: Design, name_columns: Sequence[str], rows: pd.DataFrame, request: RecommendationRequest
) -> Iterator[tuple[RankingQuestion, pd.DataFrame, str]]:
    """Yield each question of a request with its candidates and the reason to give if there are none.

    Objectives of the report are left out if the campaign has no data for them.
    """
    is_default = request.objectives is DEFAULT_OBJECTIVES
    currency = str(tables.context.get("system", {}).get("currency", ""))
    allowed_rows, cells = rows[_fulfils_constraints(rows, request)], _collect_evidence(tables, name_columns)
    workloads = tuple(dict.fromkeys(rows["workload"]))
    unavailable = {
        PER_JOULE: not len(energy.cells),
        PER_PRICE: rows["price_per_h"].isna().all(),
        MIX: len(workloads) < 2,
    }
    for objective in request.objectives:
        if is_default and unavailable.get(objective.name):
            continue
        if objective.name == MIX:
            yield _build_mix_question(objective, workloads, allowed_rows, name_columns, tables.design, cells)
            continue
        objective_with_currency, design, question_rows = (
            replace(objective, currency=currency),
            tables.design,
            allowed_rows,
        )
        if objective.name == PER_JOULE:
            design, question_rows = energy, add_results(allowed_rows, energy)
        group_columns = ["workload", *name_columns]
        candidates, allowed_groups = (
            dict(list(rows_of_group.groupby(group_columns, sort=False)))
            for rows_of_group in (question_rows, allowed_rows)
        )
        for key, _ in rows.groupby(group_columns, sort=False):
            label = wording.format_axes(dict(zip(group_columns, key, strict=True)), group_columns)
            why_none = (
                _NO_CANDIDATE_REASONS.get(objective.name, _NO_CANDIDATE) if key in allowed_groups else _NO_CANDIDATE
            )
            yield (
                RankingQuestion(objective_with_currency, label, (str(key[0]),), design, cells),
                candidates.get(key, question_rows.iloc[:0]),
                why_none,
            )


def _build_mix_question(
    objective: RecommendationObjective,
    workloads: Sequence[str],
    allowed_rows: pd.DataFrame,
    name_columns: Sequence[str],
    design: Design,
    cells: Mapping[str, Evidence],
) -> tuple[RankingQuestion, pd.DataFrame, str]:
    """Build the question for a mix of workloads, with its candidates and the reason to give if there are none."""
    names, shares = zip(*(objective.shares or [(name, 1 / len(workloads)) for name in workloads]), strict=True)
    variants = select_fastest_variants(allowed_rows, names, name_columns)
    if len(variants) < len(names):
        return (
            RankingQuestion(objective, f"a mix of {', '.join(names)}", names, design, cells),
            allowed_rows.iloc[:0],
            _NO_MIX,
        )
    label = " and ".join(f"{100 * share:.0f}\u202f% {variant}" for variant, share in zip(variants, shares, strict=True))
    rows, sums = build_mix_candidates(list(variants.values()), shares, design)
    return RankingQuestion(objective, f"a mix of {label}", names, sums, cells), rows, _NO_MIX


def _fulfils_constraints(rows: pd.DataFrame, request: RecommendationRequest) -> npt.NDArray[np.bool_]:
    """Return for each row whether it fulfils all constraints of a request."""
    hours_per_million = 1e6 / rows["rate"] / 3600
    values = rows.rename(columns={name: name.removeprefix("option_") for name in list_option_columns(rows)}).assign(
        throughput_per_s=rows["rate"],
        step_s=rows["batch_global"] / rows["rate"],
        device_hours_per_million=hours_per_million * rows["devices"],
        cost_per_million=hours_per_million * rows["price_per_h"],
        energy_per_sample_j=rows["energy_j"],
    )
    used_columns = {"batch", *(name for constraint in request.constraints for name in constraint.names)}
    return np.array([request.allows(row) for row in values[sorted(used_columns)].to_dict("records")], dtype=np.bool_)


def _collect_evidence(tables: Tables, name_columns: Sequence[str]) -> dict[str, Evidence]:
    """Collect the cells that serve as evidence for answers, by cell id."""
    columns = ["configuration", "workload", "batch", *name_columns]
    counts = np.append(tables.design.compositions, 0)[tables.design.find_cell_indices(tables.cells["cell_id"])]
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
