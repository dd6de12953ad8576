"""Scaling curves of a campaign with fitted models and dips, as columns beside `comparable_cells.compare_device_counts`.

A curve is a line of the figure: cells that differ only in the number of devices, each with the fewest hosts.
`campaign.analysis.statistics.scaling_models` defines the models and the test for dips. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.analysis.statistics import scaling_models
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.statistics.scaling_models import AMDAHL, GUSTAFSON, LATENCY, ScalingCurves, ScalingFit
from campaign.common import wording

# Columns of each model's parameters, with the factor from the model's unit; each has _low and _high beside it.
PARAMETERS: Mapping[str, Sequence[tuple[str, float]]] = {
    AMDAHL: (("amdahl_one_device_per_s", 1.0), ("amdahl_serial_pct", 100.0)),
    GUSTAFSON: (("gustafson_one_device_per_s", 1.0), ("gustafson_serial_pct", 100.0)),
    LATENCY: (("compute_ms", 1e3), ("alpha_us", 1e6), ("bytes_over_b_ms", 1e3)),
}


def add_empty_model_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns of `add_model_columns` with no models or dips, for points that are not rates."""
    prefixes = ("dip_", "fit_per_s", "fit_residual_", "aicc_", "effective_")
    parameters = tuple(name for columns in PARAMETERS.values() for name, _ in columns)
    numbers = [str(name) for name in rows.columns if str(name).startswith((*prefixes, *parameters))]
    return rows.assign(fit="", fit_misses=False, fit_holds=False, dip=False, **dict.fromkeys(numbers, np.nan))


def add_model_columns(rows: pd.DataFrame, series: Sequence[str], design: Design, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the fitted models and the dips of each curve to the rows of `comparable_cells.compare_device_counts`.

    Per curve: fit is the name of the model with the smallest AICc; fit_misses is whether the points deviate from it;
    fit_residual_pct; fit_holds is whether it describes them (`scaling_models.ScalingFit.is_valid`); the parameters of all models
    (`PARAMETERS`) and aicc_*; effective_gb_per_s is B, if the bytes of a step are known. Per point: fit_per_s, and against its
    neighbours dip_expected_per_s, dip_pct (positive: below them) with _low and _high, dip_p, dip_p_holm, dip.

    Args:
        rows: comparisons of device counts.
        series: columns that are equal within a curve, among them workload and batch.
        design: design of the campaign.
        runs: runs table.
    """
    points = rows[rows["compact"] & (rows["n_ok"] > 0)].sort_values([*series, "ranks"], kind="stable")
    curve = points.groupby(list(series), sort=False).ngroup().to_numpy().astype(np.int64)
    place = points.groupby(curve, sort=False).cumcount().to_numpy().astype(np.int64)
    curves, has_composition_variance = _build_curves(points, curve, place, design)
    dips = scaling_models.find_dips(curves, np.where(has_composition_variance, 0.0, np.nan))
    # Dips are excluded from the fit, because they would distort the models.
    fits = scaling_models.fit_models(replace(curves, n_runs=np.where(dips.is_dip, 0.0, curves.n_runs)))
    best = scaling_models.select_best_models(fits)
    curve_columns = pd.DataFrame({"fit": pd.Series(best, dtype="str"), **_list_parameter_columns(fits)})
    curve_columns["fit_misses"] = [
        bool(name) and bool(fits[name].is_rejected[index]) for index, name in enumerate(best)
    ]
    curve_columns["fit_holds"] = [bool(name) and bool(fits[name].is_valid[index]) for index, name in enumerate(best)]
    residual = [float(fits[name].residual_pct[index]) if name else np.nan for index, name in enumerate(best)]
    curve_columns["fit_residual_pct"] = residual
    fitted_rates = np.array(
        [
            fits[name].expected[index] if name else np.full(curves.devices.shape[1], np.nan)
            for index, name in enumerate(best)
        ]
    )
    point_columns = {
        "fit_per_s": fitted_rates,
        "dip_expected_per_s": dips.expected,
        "dip_pct": dips.drop_pct,
        "dip_low": dips.low_pct,
        "dip_high": dips.high_pct,
        "dip_p": dips.p,
        "dip_p_holm": dips.p_holm,
    }
    point_table = pd.DataFrame(
        {name: values[curve, place] for name, values in point_columns.items()}, index=points.index
    )
    keys = points.groupby(curve, sort=False)[list(series)].first().reset_index(drop=True)
    result = rows.merge(
        pd.concat([keys, curve_columns], axis="columns"), on=list(series), how="left", validate="many_to_one"
    )
    result.index = rows.index
    result = result.join(point_table)
    result["fit"] = result["fit"].fillna("")
    for name in ("fit_misses", "fit_holds"):
        result[name] = result[name].eq(True)
    result["dip"] = scaling_models.is_dip(result["dip_p_holm"], result["dip_low"])
    return _add_bandwidth_column(result, series, runs)


def _build_curves(
    points: pd.DataFrame, curve: npt.NDArray[np.int64], place: npt.NDArray[np.int64], design: Design
) -> tuple[ScalingCurves, npt.NDArray[np.bool_]]:
    """Build the curves, and return whether each curve's errors include the spread of compositions."""
    shape = (int(curve.max()) + 1, int(place.max()) + 1)

    def arrange_by_curve(values: Any, missing: float) -> npt.NDArray[np.float64]:
        found = np.full(shape, missing)
        found[curve, place] = np.asarray(values, dtype=np.float64)
        return found

    errors = design.estimate_errors(points["cell_id"], curve)
    runs = points["n_ok"].to_numpy(dtype=np.float64)
    columns = {name: arrange_by_curve(points[name], np.nan) for name in ("ranks", "hosts", "mean", "batch")}
    sd = arrange_by_curve(points["mean"] * np.sqrt(errors.variance * runs), np.nan)
    freedom = np.full(shape[0], np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(freedom, curve, errors.freedom)
    has_composition_variance = np.ones(shape[0], dtype=np.bool_)
    np.logical_and.at(has_composition_variance, curve, errors.has_composition_variance)
    batch = columns["batch"][:, 0]
    return ScalingCurves(
        columns["ranks"], columns["hosts"], columns["mean"], sd, arrange_by_curve(runs, 0.0), batch, freedom
    ), has_composition_variance


def _list_parameter_columns(fits: Mapping[str, ScalingFit]) -> dict[str, npt.NDArray[np.float64]]:
    """Build the columns of the parameters of all models, with their intervals and AICc."""
    columns = {}
    for model, fit in fits.items():
        for position, (name, factor) in enumerate(PARAMETERS[model]):
            for ending, values in (("", fit.parameters), ("_low", fit.low), ("_high", fit.high)):
                columns[f"{name}{ending}"] = factor * values[:, position]
        columns[f"aicc_{model.lower().replace('-', '_')}"] = fit.aicc
    return columns


def _add_bandwidth_column(rows: pd.DataFrame, series: Sequence[str], runs: pd.DataFrame) -> pd.DataFrame:
    """Add the effective bandwidth B, computed from bytes / B, if the runs report the bytes that a step reduces."""
    curve_bytes = np.full(len(rows), np.nan)
    if "allreduce_bytes_per_step" in runs.columns:
        bytes_per_step = rows["cell_id"].map(runs.groupby("cell_id")["allreduce_bytes_per_step"].median())
        curve_bytes = (
            bytes_per_step.groupby([rows[key] for key in series], sort=False, dropna=False)
            .transform("median")
            .to_numpy(dtype=np.float64)
        )
    ends = (("", ""), ("_low", "_high"), ("_high", "_low"))
    with np.errstate(divide="ignore"):
        columns = {
            f"effective_gb_per_s{ending}": curve_bytes / rows[f"bytes_over_b_ms{source_ending}"] / 1e6
            for ending, source_ending in ends
        }
    return rows.assign(**columns)


def predict_throughput(row: Mapping[str, Any], devices: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Predict the throughput at any number of devices from the best model of a row's curve."""
    model = str(row["fit"])
    values = [row[name] / factor for name, factor in PARAMETERS[model]]
    return scaling_models.predict_throughput(model, values, devices, float(row["batch"]))


def describe_fit(row: Mapping[str, Any]) -> str:
    """Describe the best model of a row's curve in a sentence, with its main parameter and the 95 % interval."""
    names = {AMDAHL: ("amdahl_serial_pct", "Amdahl's law"), GUSTAFSON: ("gustafson_serial_pct", "Gustafson's law")}
    if row["fit"] in names:
        name, law = names[row["fit"]]
        bounds = (row[name], row[f"{name}_low"], row[f"{name}_high"])
        share = wording.format_with_interval(*bounds, wording.format_percent)
        return f"The line follows {law}: {share} of the work does not scale."
    latency = wording.format_with_interval(row["alpha_us"], row["alpha_us_low"], row["alpha_us_high"])
    return f"The line follows the latency-bandwidth model with a latency of {latency} \u00b5s."
