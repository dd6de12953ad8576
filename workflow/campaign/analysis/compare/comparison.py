"""Comparison of two campaigns: each cell of both, its outcome, the change of its throughput; and the JSON document."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.compare.campaign_spread import CampaignSpread
from campaign.analysis.compare.gate import (
    STATE,
    RegressionRule,
    RuleViolation,
    find_change_violations,
    find_state_violations,
)
from campaign.analysis.compare.matching import CellMatches, match_cells
from campaign.analysis.statistics import changes, comparisons
from campaign.analysis.statistics.comparable_cells import list_naming_columns
from campaign.analysis.statistics.comparisons import Ratios
from campaign.analysis.statistics.drift import is_adjusted
from campaign.analysis.tables import measured_protocol
from campaign.analysis.tables.columns import MEASURED_COLUMNS, RUNS
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.measured_programs import DESCRIPTIVE_KEYS, read_programs
from campaign.common import intervals, wording
from campaign.common.errors import ConfigError
from campaign.common.intervals import SIGNIFICANCE_LEVEL
from campaign.spec.metric import THROUGHPUT, Metric, read_primary_metric

ALL_CELLS = "all cells"


@dataclass(frozen=True)
class CampaignComparison:
    """Comparison of two campaigns; each change is that of `other` relative to `base`.

    Args:
        rows: one row per matched pair, in the base's order: cell (words), configuration, workload, batch, precision, by,
            differs; base_state, state, base_outcome, outcome; base_mean, mean (of the primary metric), base_n, n; ratio, low,
            high (95 %), p, p_holm, paired, tested, method, least_detectable_pct, says.
        means: one row per workload and one for ALL: cells, ratio, low, high, p, tested of the geometric mean. The mean
            is over the tested cells. If there are none, it is over all cells, without an interval and without a test.
        only_base: cell and state of cells without a counterpart in `other`.
        only_other: cell and state of cells without a counterpart in `base`.
        violations: violations of the rules whose texts are in `rules`.
    """

    base: str
    other: str
    rows: pd.DataFrame
    means: pd.DataFrame
    only_base: pd.DataFrame
    only_other: pd.DataFrame
    context_differences: tuple[ContextDifference, ...]
    metric: Metric = THROUGHPUT
    """The primary metric of both: what the means are of. A ratio above 1 is better, whichever direction of it is."""
    protocols: tuple[str, ...] = ()
    """How the runs of both were measured, base first: one of them where it is the same."""
    rules: tuple[str, ...] = ()
    violations: tuple[RuleViolation, ...] = ()
    untested_violations: tuple[RuleViolation, ...] = ()
    """What is beyond the limit of a rule, but was measured on one composition each, so that it may be chance."""
    program_differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What differs in the program of a workload that both campaigns measured: keys of its file, and input files."""
    spread: CampaignSpread | None = None
    """How much earlier campaigns on the system differ; None where nobody looked at them."""

    @property
    def changed_outcomes(self) -> pd.DataFrame:
        """Matched pairs whose outcome changed."""
        return self.rows[self.rows["base_outcome"] != self.rows["outcome"]]

    @property
    def compared_count(self) -> int:
        """Number of matched pairs with a ratio."""
        return int(self.rows["ratio"].notna().sum())


def compare(
    base: Tables,
    other: Tables,
    rules: Sequence[RegressionRule] = (),
    spread: CampaignSpread | None = None,
    names: tuple[str, str] | None = None,
) -> CampaignComparison:
    """Compare the campaign `other` with the campaign `base`.

    Raises ConfigError if a rule names a quantity that one of the campaigns lacks, or if their primary metrics differ.

    Args:
        base: tables of the baseline campaign.
        other: tables of the other campaign.
        rules: rules of the regression gate.
        spread: spread between earlier campaigns on the system. A change below it is no change. If it is unknown (too few
            campaigns), no change is tested.
        names: names of both sides in texts, base first; None for those of the campaigns.
    """
    names = _distinguish_names(*(names or (base.name, other.name)))
    metric, other_metric = read_primary_metric(base.context), read_primary_metric(other.context)
    if (metric.name, metric.better) != (other_metric.name, other_metric.better):
        raise ConfigError(
            f"The primary metric of campaign {base.name} is {metric.name}, and that of {other.name} is "
            f"{other_metric.name}; set the same `metric` in both campaigns"
        )
    matches = match_cells(base.cells, other.cells)
    rows = _compare_cells(matches, base, other, spread)
    means = _average_ratios(rows, spread)
    comparison = CampaignComparison(
        *names,
        rows,
        means,
        _list_unmatched(matches.only_base),
        _list_unmatched(matches.only_other),
        tuple(compare_contexts(base.context, other.context)),
        metric,
        _describe_protocols(rows, base, other, names),
        tuple(rule.text for rule in rules),
        program_differences={
            name: changed_keys
            for name, keys in _compare_programs(base.context, other.context).items()
            if (changed_keys := tuple(key for key in keys if key not in DESCRIPTIVE_KEYS))
        },
        spread=spread,
    )
    violations = [
        violation
        for rule in rules
        for violation in _find_violations(rule, comparison, matches, (base.runs, other.runs))
    ]
    return replace(
        comparison,
        violations=tuple(violation for violation in violations if violation.tested),
        untested_violations=tuple(violation for violation in violations if not violation.tested),
    )


def _distinguish_names(base: str, other: str) -> tuple[str, str]:
    """Return the names of both campaigns, with (A) and (B) added if they are equal."""
    return (base, other) if base != other else (f"{base} (A)", f"{other} (B)")


def _compare_cells(matches: CellMatches, base: Tables, other: Tables, spread: CampaignSpread | None) -> pd.DataFrame:
    """Compare each matched pair of cells and return one row per pair."""
    base_cells, other_cells = matches.base, matches.other
    # The same cell in two campaigns gets two ids. Otherwise it would be compared with itself.
    compared_cells = other_cells.assign(cell_id="other " + other_cells["cell_id"].astype("str"))
    reference_cells = base_cells.assign(cell_id="base " + base_cells["cell_id"].astype("str"))
    design = comparisons.build_campaign_design(
        _combine_runs(base.runs, other.runs), _combine_protocols(base, other), _combine_references(base, other)
    )
    ratios = comparisons.compute_ratios(compared_cells["cell_id"], reference_cells["cell_id"], design)
    ratios = changes.test_against_other_groups(ratios, base_cells["configuration"])
    ratios = spread.apply_to(ratios) if spread else ratios
    ratio, low, high = ratios.estimate.compute_bounds()
    rows = base_cells[["configuration", "workload", "batch", "precision"]].assign(
        cell=_describe_cells(base_cells),
        cell_id=base_cells["cell_id"],
        other_cell_id=other_cells["cell_id"],
        by=matches.methods,
        differs=matches.differences,
        base_state=base_cells["state"],
        state=other_cells["state"],
        base_outcome=_list_outcomes(base_cells),
        outcome=_list_outcomes(other_cells),
        base_mean=base_cells["mean"],
        mean=other_cells["mean"],
        base_n=base_cells["n_ok"],
        n=other_cells["n_ok"],
        ratio=ratio,
        low=low,
        high=high,
        **{name: column for name, column in ratios.build_test_columns().items() if name != "n_tests"},
        paired=ratios.is_paired,
        n_pairs=ratios.pair_count,
        **ratios.build_basis_columns(base_cells.index),
    )
    return rows.assign(says=[_describe_change(row) for row in rows[_CHANGE_COLUMNS].to_dict("records")])


def _describe_protocols(rows: pd.DataFrame, base: Tables, other: Tables, names: tuple[str, str]) -> tuple[str, ...]:
    """Describe the measuring protocols of both campaigns, in one text if they are the same."""
    descriptions = []
    for tables, ids in ((base, rows["cell_id"]), (other, rows["other_cell_id"])):
        runs, context = tables.runs[tables.runs["cell_id"].isin(ids)], tables.context
        protocol = measured_protocol.describe_measured_protocol(runs, dict(context["campaign"]).get("protocol") or {})
        descriptions.append(
            ". ".join(
                [f"Protocol: {protocol}", *(f"{text[:1].upper()}{text[1:]}" for text in context.get("conditions", ()))]
            )
            + "."
        )
    return (
        (descriptions[0],)
        if descriptions[0] == descriptions[1]
        else tuple(f"{name}: {text}" for name, text in zip(names, descriptions, strict=True))
    )


def _combine_runs(base: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of both campaigns in one table, with cell ids that name the campaign."""
    shared_leases = _find_shared_leases(base, other)
    sides = [
        runs.assign(
            cell_id=f"{name} " + runs["cell_id"].astype("str"),
            campaign=name,
            lease_id=_distinguish_leases(name, runs, shared_leases),
            configuration=f"{name} " + runs["configuration"].astype("str"),
        )
        for name, runs in (("base", base), ("other", other))
    ]
    return pd.concat(sides, ignore_index=True)


def _find_shared_leases(base: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Return the ids of leases from which both campaigns contain the same run.

    The id alone does not suffice, because a campaign that is measured anew reuses the names of its leases.
    """
    run_columns = ["lease_id", "cell_id", "repetition", "started"]
    return list(set(base[run_columns].merge(other[run_columns])["lease_id"]))


def _distinguish_leases(side: str, runs: pd.DataFrame, shared_leases: Sequence[str]) -> pd.Series[str]:
    """Return the lease ids of runs, prefixed by the campaign's side unless both campaigns share the lease."""
    is_exclusive = (runs["lease_id"] != "") & ~runs["lease_id"].isin(shared_leases)
    return runs["lease_id"].where(~is_exclusive, f"{side} " + runs["lease_id"].astype("str"))


def _combine_references(base: Tables, other: Tables) -> pd.DataFrame | None:
    """Return the reference runs of both campaigns in one table.

    Return None unless both campaigns adjust by a reference that ran on devices of the same kinds.
    """
    if not all(is_adjusted(tables.context["campaign"]) and len(tables.reference) for tables in (base, other)):
        return None
    kinds = [set(tables.reference.loc[tables.reference["status"] == "ok", "hardware"]) for tables in (base, other)]
    if not kinds[0] or kinds[0] != kinds[1]:
        return None
    shared_leases = _find_shared_leases(base.runs, other.runs)
    sides = (("base", base.reference), ("other", other.reference))
    return pd.concat(
        [runs.assign(lease_id=_distinguish_leases(name, runs, shared_leases)) for name, runs in sides],
        ignore_index=True,
    ).drop_duplicates(["lease_id", "repetition", "started"], ignore_index=True)


def _combine_protocols(base: Tables, other: Tables) -> dict[str, Any]:
    """Combine the protocols of both campaigns.

    Runs are in blocks, and adjusted by a reference, only if that holds for both campaigns.
    """
    base_campaign, other_campaign = (dict(tables.context["campaign"]) for tables in (base, other))
    sequential = any(
        dict(item.get("protocol") or {}).get("order") == "sequential" for item in (base_campaign, other_campaign)
    )
    earlier_spreads = {
        repr(item): item
        for campaign in (base_campaign, other_campaign)
        for item in campaign.get("earlier_spread") or ()
    }
    return {
        **base_campaign,
        "protocol": {
            "order": "sequential" if sequential else "blocks",
            "reference": {"adjust": _combine_references(base, other) is not None},
        },
        "earlier_spread": list(earlier_spreads.values()),
    }


def _describe_cells(cells: pd.DataFrame) -> list[str]:
    """Describe each cell by its non-empty naming columns."""
    if cells.empty:
        return []
    axes = list_naming_columns(cells)
    empty_axes = [name for name in axes if (cells[name].astype("object") == "").all()]
    used_axes = [name for name in axes if name not in empty_axes]
    return [
        wording.format_axes(row, [name for name in used_axes if row[name] != ""])
        for row in cells[used_axes].to_dict("records")
    ]


def _list_outcomes(cells: pd.DataFrame) -> list[str]:
    """List the outcome of each cell: 'ok', a failure such as 'oom_device', 'implied' or 'missing'."""
    states = zip(cells["state"], cells["failures"], strict=True)
    return [
        "ok" if state == "measured" else _strip_failure_counts(failures) if state == "failed" else state
        for state, failures in states
    ]


def _strip_failure_counts(failures: str) -> str:
    """Remove the counts from a text of failures, such as 'oom_device x3'."""
    return ", ".join(dict.fromkeys(part.partition(" x")[0] for part in failures.split(", "))) or "failed"


_UNTESTED_REASONS = {
    intervals.CONFOUNDED_WITH_HOSTS: "each ran on different hosts",
    intervals.CAMPAIGNS_UNKNOWN: "the spread between campaigns is unknown",
}


_CHANGE_COLUMNS = ["ratio", "low", "high", "tested", "method", "p_holm"]


def _describe_change(row: Mapping[Any, Any]) -> str:
    """Describe the change of a matched pair, for example 'faster' or 'not tested'."""
    if not np.isfinite(row["ratio"]):
        return ""
    if not np.isfinite(row["low"]):
        return "no interval: only one run"
    if not row["tested"]:
        return f"not tested: {_UNTESTED_REASONS.get(row['method'], 'one composition each')}"
    if row["p_holm"] < SIGNIFICANCE_LEVEL:
        return "faster" if row["ratio"] > 1 else "slower"
    largest = max(abs(row["low"] - 1), abs(row["high"] - 1))
    return f"no difference larger than {wording.format_percent(100 * largest)}"


def _average_ratios(rows: pd.DataFrame, spread: CampaignSpread | None = None) -> pd.DataFrame:
    """Compute the geometric mean of the ratios for each workload, and for all cells.

    A mean of cells that are not tested has no interval and no test: their difference may be one of compositions or hosts.
    """
    rows_with_ratio = rows[rows["ratio"].notna()]
    groups = [
        *rows_with_ratio.groupby("workload", sort=False),
        *([(ALL_CELLS, rows_with_ratio)] if rows_with_ratio["workload"].nunique() > 1 else []),
    ]
    records = []
    for name, group in groups:
        is_tested = bool(group["tested"].any())
        cells = group[group["tested"]] if is_tested else group
        log_ratios = changes.average_changes(cells["ratio"], cells["configuration"])
        log_ratios = spread.widen_ratios(log_ratios) if spread and is_tested else log_ratios
        value, low, high = (float(bound[0]) for bound in log_ratios.compute_bounds())
        numbers = {"low": low, "high": high, "p": float(log_ratios.compute_p_values()[0])} if is_tested else {}
        records.append({"workload": name, "cells": len(cells), "ratio": value, "tested": is_tested, **numbers})
    types = {"cells": "int64", **dict.fromkeys(("ratio", "low", "high", "p"), "float64"), "tested": "bool"}
    return pd.DataFrame(records, columns=["workload", *types]).astype(types)


def _list_unmatched(cells: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"cell": _describe_cells(cells), "state": cells["state"].to_numpy()})


def _find_violations(
    rule: RegressionRule, comparison: CampaignComparison, matches: CellMatches, runs: tuple[pd.DataFrame, pd.DataFrame]
) -> Iterable[RuleViolation]:
    """Find the violations of a rule in a comparison."""
    rows = comparison.rows
    if rule.quantity == STATE:
        return find_state_violations(rule, rows)
    cell_names = rows["cell"].tolist()
    metric = comparison.metric
    if rule.quantity in (metric.name, metric.label):
        means = comparison.means[comparison.means["cells"] > 1]
        mean_names = [f"mean over {row['cells']} cells of {row['workload']}" for row in means.to_dict("records")]
        # Cells and means of one rule are one family, so a rule fails by chance in 5 of 100 comparisons.
        family = pd.concat([rows[["ratio", "p"]], means[["ratio", "p"]]])
        # More of a cost is a smaller ratio.
        change = family["ratio"] if metric.is_higher_better else 1 / family["ratio"]
        return find_change_violations(
            rule, [*cell_names, *mean_names], change.to_numpy(), intervals.adjust_p_values(family["p"])
        )
    if rule.quantity == THROUGHPUT.label:
        rule = replace(rule, quantity=THROUGHPUT.name)
    ratios = _compare_by_metric(rule, matches, runs, metric)
    p = intervals.adjust_p_values(ratios.compute_p_values())
    # The ratio of the metric itself: a larger value is a larger cost.
    return find_change_violations(rule, cell_names, 1 / ratios.estimate.ratio, p)


def _compare_by_metric(
    rule: RegressionRule, matches: CellMatches, runs: tuple[pd.DataFrame, pd.DataFrame], metric: Metric
) -> Ratios:
    """Compare the matched cells by a metric of their valid runs, as ratios of cost.

    Raises ConfigError if one of the campaigns has no such metric.
    """
    for table in runs:
        columns = table[table["status"] == "ok"].select_dtypes("number").dropna(axis="columns", how="all").columns
        numeric = [str(name) for name in columns if _is_metric(str(name))]
        if rule.quantity not in numeric:
            suggestions = difflib.get_close_matches(rule.quantity, [metric.label, STATE, *numeric], n=1)
            hint = (
                f"did you mean '{suggestions[0]}'?"
                if suggestions
                else f"allowed quantities: {', '.join([metric.label, STATE, *numeric])}"
            )
            raise ConfigError(
                f"--fail-on '{rule.text}': at least one of the campaigns lacks the quantity '{rule.quantity}'; {hint}"
            )
    design = comparisons.build_design(_combine_runs(*runs), column=rule.quantity, higher_is_better=False)
    compared_cells, reference_cells = (
        "other " + matches.other["cell_id"].astype("str"),
        "base " + matches.base["cell_id"].astype("str"),
    )
    return changes.test_against_other_groups(
        comparisons.compute_ratios(compared_cells, reference_cells, design), matches.base["configuration"]
    )


def _is_metric(column: str) -> bool:
    """Return whether a column of the runs table is a measurement, not a setting or a time of a run."""
    return column in MEASURED_COLUMNS or not (column in RUNS or column.startswith("option_"))


SCHEMA = "comparison/1"


def build_document(comparison: CampaignComparison) -> dict[str, Any]:
    """Build the JSON-serialisable document of a comparison.

    Unknown values are null. Ratios are those of `other` over `base`.
    """
    return {
        "schema_version": SCHEMA,
        "base": comparison.base,
        "other": comparison.other,
        "metric": comparison.metric.document(),
        "cells": _to_plain_records(comparison.rows),
        "means": _to_plain_records(comparison.means),
        "only_base": _to_plain_records(comparison.only_base),
        "only_other": _to_plain_records(comparison.only_other),
        "surroundings": [asdict(item) for item in comparison.context_differences],
        "rules": list(comparison.rules),
        "broken": [_build_violation_document(item) for item in comparison.violations],
        "untested": [_build_violation_document(item) for item in comparison.untested_violations],
    }


def _build_violation_document(violation: RuleViolation) -> dict[str, Any]:
    return {name: value for name, value in asdict(violation).items() if name != "tested"}


def _to_plain_records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): _to_plain_value(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value


# Keys whose values differ between any two hosts and change no measurement.
_HOST_SPECIFIC_KEYS = ("host", "hostname", "schema_version", "collected_s", "uuid", "part_of", "address", "numa_node")
_MAX_TEXT_CHARACTERS = 300


@dataclass(frozen=True)
class ContextDifference:
    """Difference between the contexts of two campaigns. The value is empty if a campaign has none."""

    what: str
    base: str
    other: str


def compare_contexts(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[ContextDifference]:
    """Yield the differences between the context documents of two campaigns (`campaign.report.context_schema`)."""
    base_values, other_values = _collect_values(base), _collect_values(other)
    for label in dict.fromkeys([*base_values, *other_values]):
        base_texts, other_texts = sorted(base_values.get(label, {})), sorted(other_values.get(label, {}))
        if base_texts != other_texts:
            yield ContextDifference(label, _join_values(base_texts), _join_values(other_texts))
    for name, keys in _compare_programs(base, other).items():
        for key, (base_text, other_text) in keys.items():
            yield ContextDifference(
                f"workload {name}: {key.replace('_', ' ')}", _join_values([base_text]), _join_values([other_text])
            )


def _compare_programs(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, str]]]:
    """Compare the programs of workloads with equal names; return the differing keys with the texts of both.

    The text is empty if a campaign does not have the key.
    """
    base_programs, other_programs = read_programs(base), read_programs(other)
    return {
        name: {
            key: texts
            for key in dict.fromkeys([*base_programs[name], *other_programs[name]])
            if (texts := (base_programs[name].get(key, ""), other_programs[name].get(key, "")))[0] != texts[1]
        }
        for name in base_programs
        if name in other_programs
    }


def _join_values(values: list[str]) -> str:
    """Join values into one text, truncated to 300 characters."""
    text = " | ".join(values)
    return text if len(text) <= _MAX_TEXT_CHARACTERS else f"{text[: _MAX_TEXT_CHARACTERS - 3]}..."


def _collect_values(context: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """Collect all values of each key of a context document, because hosts of one campaign may differ."""
    values: dict[str, dict[str, None]] = {}

    def add_value(label: str, value: object) -> None:
        values.setdefault(label, {})[str(value)] = None

    for name, value in context.get("system", {}).items():
        add_value(f"system: {name}", value)
    for name, value in context.get("campaign", {}).get("protocol", {}).items():
        add_value(f"protocol: {name.replace('_', ' ')}", value)
    for name in context.get("launchers", {}):
        add_value("launcher", name)
    for package in context.get("software", ()):
        add_value(f"software: {package['name']}", package["version"])
    for document in context.get("environments", {}).values():
        for label, value in _iterate_leaves(document):
            add_value(label, value)
    return values


def _iterate_leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield path (in words) and value of each leaf of a document, except values that are unique to a host."""
    for name, value in document.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if name in _HOST_SPECIFIC_KEYS:
            continue
        if isinstance(value, Mapping):
            # Versions of packages are listed among the software already.
            yield from () if name == "packages" else _iterate_leaves(value, f"{label}: ")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Mapping):
                    yield from _iterate_leaves(item, f"{label}: ")
                    continue
                yield label, _strip_gpu_identity(str(item)) if name == "gpus" else item
        else:
            yield label, value


def _strip_gpu_identity(gpu: str) -> str:
    """Remove the index and UUID from a line of nvidia-smi."""
    return ", ".join(gpu.split(", ")[2:]) or gpu
