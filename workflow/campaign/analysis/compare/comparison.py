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
from campaign.analysis.compare.gate import STATE, Broken, Rule, broken_by_changes, broken_by_states
from campaign.analysis.compare.matching import Matched, match
from campaign.analysis.statistics import changes, comparisons
from campaign.analysis.statistics.comparable_cells import naming_columns
from campaign.analysis.statistics.comparisons import Ratios
from campaign.analysis.statistics.drift import is_adjusted
from campaign.analysis.tables import measured_protocol
from campaign.analysis.tables.columns import MEASURED, RUNS
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.measured_programs import WORDS, read_programs
from campaign.common import intervals, wording
from campaign.common.errors import ConfigError
from campaign.common.intervals import SIGNIFICANCE_LEVEL
from campaign.spec.metric import THROUGHPUT, Metric, metric_of

ALL = "all cells"


@dataclass(frozen=True)
class Comparison:
    """Comparison of two campaigns; each change is that of `other` relative to `base`.

    Args:
        rows: one row per matched pair, in the base's order: cell (words), configuration, workload, batch, precision, by,
            differs;
            base_state, state, base_outcome, outcome; base_mean, mean (of the primary metric), base_n, n; ratio, low, high (95
            %),
            p, p_holm, paired, tested, method, least_detectable_pct, says.
        means: one row per workload and one for ALL: cells, ratio, low, high, p, tested of the geometric mean. The mean is over
            the
            tested cells. If there are none, it is over all cells, without an interval and without a test.
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
    surroundings: tuple[Difference, ...]
    metric: Metric = THROUGHPUT
    """The primary metric of both: what the means are of. A ratio above 1 is better, whichever direction of it is."""
    measured: tuple[str, ...] = ()
    """How the runs of both were measured, base first: one of them where it is the same."""
    rules: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()
    untested: tuple[Broken, ...] = ()
    """What is beyond the limit of a rule, but was measured on one composition each, so that it may be chance."""
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What differs in the program of a workload that both campaigns measured: keys of its file, and input files."""
    spread: CampaignSpread | None = None
    """How much earlier campaigns on the system differ; None where nobody looked at them."""

    @property
    def changed(self) -> pd.DataFrame:
        """Matched pairs whose outcome changed."""
        return self.rows[self.rows["base_outcome"] != self.rows["outcome"]]

    @property
    def compared(self) -> int:
        """Number of matched pairs with a ratio."""
        return int(self.rows["ratio"].notna().sum())


def compare(
    base: Tables, other: Tables, rules: Sequence[Rule] = (), spread: CampaignSpread | None = None
) -> Comparison:
    """Compare the campaign `other` with the campaign `base`.

    Raises ConfigError if a rule names a quantity that one of the campaigns lacks, or if their primary metrics differ.

    Args:
        base: tables of the baseline campaign.
        other: tables of the other campaign.
        rules: rules of the regression gate.
        spread: spread between earlier campaigns on the system. A change below it is no change. If it is unknown (too few
            campaigns), no change is tested.
    """
    metric, others = metric_of(base.context), metric_of(other.context)
    if (metric.name, metric.better) != (others.name, others.better):
        raise ConfigError(
            f"{base.name} is compared by {metric.name} and {other.name} by {others.name}; give both campaigns the same `metric`"
        )
    matched = match(base.cells, other.cells)
    rows = _rows(matched, base, other, spread)
    means = _means(rows, spread)
    comparison = Comparison(
        *_names(base.name, other.name),
        rows,
        means,
        _alone(matched.only_base),
        _alone(matched.only_other),
        tuple(differences(base.context, other.context)),
        metric,
        _measured(rows, base, other),
        tuple(rule.text for rule in rules),
        programs={
            name: changed
            for name, keys in _compare_programs(base.context, other.context).items()
            if (changed := tuple(key for key in keys if key not in WORDS))
        },
        spread=spread,
    )
    found = [each for rule in rules for each in _broken(rule, comparison, matched, (base.runs, other.runs))]
    return replace(
        comparison,
        broken=tuple(each for each in found if each.tested),
        untested=tuple(each for each in found if not each.tested),
    )


def _names(base: str, other: str) -> tuple[str, str]:
    """Return the names of both campaigns, with (A) and (B) added if they are equal."""
    return (base, other) if base != other else (f"{base} (A)", f"{other} (B)")


def _rows(matched: Matched, base: Tables, other: Tables, spread: CampaignSpread | None) -> pd.DataFrame:
    """Compare each matched pair of cells and return one row per pair."""
    one, two = matched.base, matched.other
    # The same cell in two campaigns gets two ids. Otherwise it would be compared with itself.
    a = two.assign(cell_id="other " + two["cell_id"].astype("str"))
    b = one.assign(cell_id="base " + one["cell_id"].astype("str"))
    by = comparisons.of_campaign(_both(base.runs, other.runs), _protocol(base, other), _both_references(base, other))
    found = comparisons.ratios(a["cell_id"], b["cell_id"], by)
    found = changes.judge_by_other_groups(found, one["configuration"])
    found = spread.apply(found) if spread else found
    ratio, low, high = found.of.bounds()
    rows = one[["configuration", "workload", "batch", "precision"]].assign(
        cell=_words(one),
        cell_id=one["cell_id"],
        other_cell_id=two["cell_id"],
        by=matched.by,
        differs=matched.differs,
        base_state=one["state"],
        state=two["state"],
        base_outcome=_outcomes(one),
        outcome=_outcomes(two),
        base_mean=one["mean"],
        mean=two["mean"],
        base_n=one["n_ok"],
        n=two["n_ok"],
        ratio=ratio,
        low=low,
        high=high,
        **{name: column for name, column in found.tests().items() if name != "n_tests"},
        paired=found.paired,
        n_pairs=found.pairs,
        **found.basis(one.index),
    )
    return rows.assign(says=[_says(row) for row in rows.to_dict("records")])


def _measured(rows: pd.DataFrame, base: Tables, other: Tables) -> tuple[str, ...]:
    """Describe how the runs of both campaigns were measured, in one text if both protocols are the same."""
    told = []
    for tables, ids in ((base, rows["cell_id"]), (other, rows["other_cell_id"])):
        runs, context = tables.runs[tables.runs["cell_id"].isin(ids)], tables.context
        how = measured_protocol.said(runs, dict(context["campaign"]).get("protocol") or {})
        told.append(
            ". ".join(
                [f"Protocol: {how}", *(f"{each[:1].upper()}{each[1:]}" for each in context.get("conditions", ()))]
            )
            + "."
        )
    names = _names(base.name, other.name)
    return (
        (told[0],) if told[0] == told[1] else tuple(f"{name}: {each}" for name, each in zip(names, told, strict=True))
    )


def _both(base: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of both campaigns in one table, with cell ids that name the campaign."""
    shared = _shared_leases(base, other)
    sides = [
        runs.assign(
            cell_id=f"{name} " + runs["cell_id"].astype("str"),
            campaign=name,
            lease_id=_leases(name, runs, shared),
            configuration=f"{name} " + runs["configuration"].astype("str"),
        )
        for name, runs in (("base", base), ("other", other))
    ]
    return pd.concat(sides, ignore_index=True)


def _shared_leases(base: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Return the ids of leases of which both campaigns hold the same run.

    The id alone is no identity: a campaign that is measured again from the start reuses the names of its leases.
    """
    one_run = ["lease_id", "cell_id", "repetition", "started"]
    return list(set(base[one_run].merge(other[one_run])["lease_id"]))


def _leases(side: str, runs: pd.DataFrame, shared: Sequence[str]) -> pd.Series[str]:
    """Return the lease ids of runs, prefixed by the campaign's side unless both campaigns share the lease."""
    own = (runs["lease_id"] != "") & ~runs["lease_id"].isin(shared)
    return runs["lease_id"].where(~own, f"{side} " + runs["lease_id"].astype("str"))


def _both_references(base: Tables, other: Tables) -> pd.DataFrame | None:
    """Return the reference runs of both campaigns in one table.

    Return None unless both campaigns adjust by a reference that ran on devices of the same kinds.
    """
    if not all(is_adjusted(each.context["campaign"]) and len(each.reference) for each in (base, other)):
        return None
    kinds = [set(each.reference.loc[each.reference["status"] == "ok", "hardware"]) for each in (base, other)]
    if not kinds[0] or kinds[0] != kinds[1]:
        return None
    shared = _shared_leases(base.runs, other.runs)
    sides = (("base", base.reference), ("other", other.reference))
    return pd.concat(
        [runs.assign(lease_id=_leases(name, runs, shared)) for name, runs in sides], ignore_index=True
    ).drop_duplicates(["lease_id", "repetition", "started"], ignore_index=True)


def _protocol(base: Tables, other: Tables) -> dict[str, Any]:
    """Combine the protocols of both campaigns.

    Runs are in blocks, and adjusted by a reference, only if that holds for both campaigns.
    """
    one, two = (dict(tables.context["campaign"]) for tables in (base, other))
    sequential = any(dict(each.get("protocol") or {}).get("order") == "sequential" for each in (one, two))
    lent = {repr(each): each for campaign in (one, two) for each in campaign.get("earlier_spread") or ()}
    return {
        **one,
        "protocol": {
            "order": "sequential" if sequential else "blocks",
            "reference": {"adjust": _both_references(base, other) is not None},
        },
        "earlier_spread": list(lent.values()),
    }


def _words(cells: pd.DataFrame) -> list[str]:
    """Describe each cell by the columns that name it, without empty ones."""
    if cells.empty:
        return []
    axes = naming_columns(cells)
    empty = [name for name in axes if (cells[name].astype("object") == "").all()]
    kept = [name for name in axes if name not in empty]
    return [wording.format_axes(row, [name for name in kept if row[name] != ""]) for row in cells.to_dict("records")]


def _outcomes(cells: pd.DataFrame) -> list[str]:
    """Return the outcome of each cell, which is 'ok', the failure ('oom_device'), 'implied' or 'missing'."""
    states = zip(cells["state"], cells["failures"], strict=True)
    return [
        "ok" if state == "measured" else _kinds(failures) if state == "failed" else state for state, failures in states
    ]


def _kinds(failures: str) -> str:
    """Remove the counts from a text of failures, such as 'oom_device x3'."""
    return ", ".join(dict.fromkeys(part.partition(" x")[0] for part in failures.split(", "))) or "failed"


_NOT_TESTED = {
    intervals.CONFOUNDED_WITH_HOSTS: "each on hosts of its own",
    intervals.CAMPAIGNS_UNKNOWN: "the spread between campaigns is unknown",
}


def _says(row: Mapping[Any, Any]) -> str:
    """Describe the change of a matched pair, for example 'faster' or 'not tested'."""
    if not np.isfinite(row["ratio"]):
        return ""
    if not np.isfinite(row["low"]):
        return "one run, no interval"
    if not row["tested"]:
        return f"not tested: {_NOT_TESTED.get(row['method'], 'one composition each')}"
    if row["p_holm"] < SIGNIFICANCE_LEVEL:
        return "faster" if row["ratio"] > 1 else "slower"
    most = max(abs(row["low"] - 1), abs(row["high"] - 1))
    return f"no difference larger than {wording.format_percent(100 * most)}"


def _means(rows: pd.DataFrame, spread: CampaignSpread | None = None) -> pd.DataFrame:
    """Return the geometric mean of the ratios of each workload, and of all cells.

    A mean of cells that are not tested has no interval and no test: their difference may be one of compositions or hosts.
    """
    known = rows[rows["ratio"].notna()]
    groups = [*known.groupby("workload", sort=False), *([(ALL, known)] if known["workload"].nunique() > 1 else [])]
    told = []
    for name, group in groups:
        tested = bool(group["tested"].any())
        cells = group[group["tested"]] if tested else group
        of = changes.average_changes(cells["ratio"], cells["configuration"])
        of = spread.widen(of) if spread and tested else of
        value, low, high = (float(each[0]) for each in of.bounds())
        numbers = {"low": low, "high": high, "p": float(of.p()[0])} if tested else {}
        told.append({"workload": name, "cells": len(cells), "ratio": value, "tested": tested, **numbers})
    types = {"cells": "int64", **dict.fromkeys(("ratio", "low", "high", "p"), "float64"), "tested": "bool"}
    return pd.DataFrame(told, columns=["workload", *types]).astype(types)


def _alone(cells: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"cell": _words(cells), "state": cells["state"].to_numpy()})


def _broken(
    rule: Rule, comparison: Comparison, matched: Matched, runs: tuple[pd.DataFrame, pd.DataFrame]
) -> Iterable[Broken]:
    """Return the violations of a rule in a comparison."""
    rows = comparison.rows
    if rule.quantity == STATE:
        return broken_by_states(rule, rows)
    words = rows["cell"].tolist()
    metric = comparison.metric
    if rule.quantity in (metric.name, metric.label):
        means = comparison.means[comparison.means["cells"] > 1]
        named = [f"mean over {row['cells']} cells of {row['workload']}" for row in means.to_dict("records")]
        # Cells and means of one rule are one family, so a rule fails by chance in 5 of 100 comparisons.
        both = pd.concat([rows[["ratio", "p"]], means[["ratio", "p"]]])
        # More of a cost is a smaller ratio.
        change = both["ratio"] if metric.higher else 1 / both["ratio"]
        return broken_by_changes(rule, [*words, *named], change.to_numpy(), intervals.adjust_p_values(both["p"]))
    if rule.quantity == THROUGHPUT.label:
        rule = replace(rule, quantity=THROUGHPUT.name)
    ratios = _metric_ratios(rule, matched, runs, metric)
    p = intervals.adjust_p_values(ratios.p())
    # The ratio of the metric itself: a larger value is a larger cost.
    return broken_by_changes(rule, words, 1 / ratios.of.ratio, p)


def _metric_ratios(rule: Rule, matched: Matched, runs: tuple[pd.DataFrame, pd.DataFrame], metric: Metric) -> Ratios:
    """Compare the matched cells by a metric of their valid runs, as ratios of cost.

    Raises ConfigError if one of the campaigns has no such metric.
    """
    for each in runs:
        known = each[each["status"] == "ok"].select_dtypes("number").dropna(axis="columns", how="all").columns
        numeric = [str(name) for name in known if _is_metric(str(name))]
        if rule.quantity not in numeric:
            near = difflib.get_close_matches(rule.quantity, [metric.label, STATE, *numeric], n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join([metric.label, STATE, *numeric])}"
            raise ConfigError(
                f"--fail-on '{rule.text}': not both campaigns have the quantity '{rule.quantity}'; {hint}"
            )
    by = comparisons.design(_both(*runs), column=rule.quantity, higher=False)
    of, to = ("other " + matched.other["cell_id"].astype("str"), "base " + matched.base["cell_id"].astype("str"))
    return changes.judge_by_other_groups(comparisons.ratios(of, to, by), matched.base["configuration"])


def _is_metric(column: str) -> bool:
    """Return whether a column of the runs table is a measurement, not a setting or a time of a run."""
    return column in MEASURED or not (column in RUNS or column.startswith("option_"))


SCHEMA = "comparison/1"


def document(comparison: Comparison) -> dict[str, Any]:
    """Build the JSON-serialisable document of a comparison.

    Unknown values are null. Ratios are those of `other` over `base`.
    """
    return {
        "schema_version": SCHEMA,
        "base": comparison.base,
        "other": comparison.other,
        "metric": comparison.metric.document(),
        "cells": _records(comparison.rows),
        "means": _records(comparison.means),
        "only_base": _records(comparison.only_base),
        "only_other": _records(comparison.only_other),
        "surroundings": [asdict(each) for each in comparison.surroundings],
        "rules": list(comparison.rules),
        "broken": [_rule(each) for each in comparison.broken],
        "untested": [_rule(each) for each in comparison.untested],
    }


def _rule(each: Broken) -> dict[str, Any]:
    return {name: value for name, value in asdict(each).items() if name != "tested"}


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value


# Keys whose values differ between any two hosts and change no measurement.
_OF_ITS_OWN = ("host", "hostname", "schema_version", "collected_s", "uuid", "part_of", "address", "numa_node")
_LONGEST = 300


@dataclass(frozen=True)
class Difference:
    """Difference between the contexts of two campaigns; '' for a campaign without a value."""

    what: str
    base: str
    other: str


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences between the context documents of two campaigns (`campaign.report.context_schema`)."""
    one, two = _flat(base), _flat(other)
    for what in dict.fromkeys([*one, *two]):
        a, b = sorted(one.get(what, {})), sorted(two.get(what, {}))
        if a != b:
            yield Difference(what, _short(a), _short(b))
    for name, keys in _compare_programs(base, other).items():
        for key, (text, of_other) in keys.items():
            yield Difference(f"workload {name}: {key.replace('_', ' ')}", _short([text]), _short([of_other]))


def _compare_programs(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the keys that differ in workloads of the same name, with the texts of both campaigns.

    The text is '' if a campaign lacks the key.
    """
    ours, theirs = read_programs(base), read_programs(other)
    return {
        name: {
            key: texts
            for key in dict.fromkeys([*ours[name], *theirs[name]])
            if (texts := (ours[name].get(key, ""), theirs[name].get(key, "")))[0] != texts[1]
        }
        for name in ours
        if name in theirs
    }


def _short(values: list[str]) -> str:
    """Join values to one text and cut it after 300 characters."""
    text = " | ".join(values)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _flat(context: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """Collect all values of each key of a context document; hosts of one campaign may differ from each other."""
    found: dict[str, dict[str, None]] = {}

    def put(what: str, value: object) -> None:
        found.setdefault(what, {})[str(value)] = None

    for name, value in context.get("system", {}).items():
        put(f"system: {name}", value)
    for name, value in context.get("campaign", {}).get("protocol", {}).items():
        put(f"protocol: {name.replace('_', ' ')}", value)
    for name in context.get("launchers", {}):
        put("launcher", name)
    for each in context.get("software", ()):
        put(f"software: {each['name']}", each["version"])
    for document in context.get("environments", {}).values():
        for what, value in _leaves(document):
            put(what, value)
    return found


def _leaves(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the path (in words) and the value of each leaf of a document, without those that differ between any two hosts."""
    for name, value in document.items():
        what = f"{above}{name.replace('_', ' ')}"
        if name in _OF_ITS_OWN:
            continue
        if isinstance(value, Mapping):
            # Versions of packages are listed among the software already.
            yield from () if name == "packages" else _leaves(value, f"{what}: ")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Mapping):
                    yield from _leaves(item, f"{what}: ")
                    continue
                yield what, _without_identity(str(item)) if name == "gpus" else item
        else:
            yield what, value


def _without_identity(gpu: str) -> str:
    """Remove the index and UUID from a line of nvidia-smi."""
    return ", ".join(gpu.split(", ")[2:]) or gpu
