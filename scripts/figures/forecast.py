"""Figure: what each lease was expected to take, and what it took."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign import wording
from campaign.report import columns, plot
from campaign.report.expected_and_actual import LEVEL_PCT, coverage, lines, picture
from campaign.report.figure import APPARATUS, Drawing, FigureData, nothing

TITLE = "Forecast and actual duration"
SECTION = "How long was each lease expected to take, and how long did it take, from the request to the release?"
RESTS_ON = ("fabric",)
PART = APPARATUS
PLACE = 200
UNITS = {"runs_expected": "", "uses": ""}

_MOST = 40
_COLUMNS = ["lease", "configuration", "runs_expected", "runs", "uses", "expected_s", "low_s", "high_s", "basis", "resumed",
            "actual_s"]  # fmt: skip


def draw(data: FigureData) -> Drawing:
    rows = pd.DataFrame(list(data.context.get("forecast", ())), columns=_COLUMNS)
    if rows.empty:
        return nothing("no lease was measured with a forecast")
    for name in ("expected_s", "low_s", "high_s", "actual_s"):
        rows[name] = rows[name].astype("float64")
    if rows["expected_s"].isna().all():
        return nothing("nothing was known of the duration of any lease before it was measured")
    # What was begun by a process that was killed, composed twice or left incomplete took other than what was forecast.
    rows["judged"] = (rows["runs"] == rows["runs_expected"]) & (rows["uses"] == 1) & ~rows["resumed"].astype(bool)
    rows["error_pct"] = 100 * (rows["actual_s"] / rows["expected_s"].where(rows["expected_s"] > 0) - 1)
    inside = (rows["low_s"] <= rows["actual_s"]) & (rows["actual_s"] <= rows["high_s"])
    rows["inside"] = inside.astype("object").where(rows["low_s"].notna(), None)
    rows["longest"] = rows["expected_s"].fillna(rows["actual_s"])
    rows = rows.sort_values(["longest", "lease"], ascending=[False, True], kind="stable", ignore_index=True).drop(
        columns="longest"
    )
    apart = int((~rows["judged"]).sum())
    marked = f" {wording.plural(apart, 'lease')} marked *: resumed, composed again or incomplete, not judged."
    caption = (
        f"Expected duration with its {LEVEL_PCT} % prediction interval (line) and actual duration (open) of "
        f"{wording.plural(len(rows), 'lease')}, the longest first.{marked if apart else ''}"
        f"{f' {len(rows) - _MOST} more in the table.' if len(rows) > _MOST else ''}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: picture(lines(rows.head(_MOST), _label), "duration of the lease (s)", "lease"),
        {
            "Lease": columns.text("lease"),
            "Runs": columns.count("runs"),
            "Expected": columns.seconds("expected_s"),
            "95 % interval": lambda row: (
                ("unknown" if pd.isna(row["expected_s"]) else "assumed")
                if pd.isna(row["low_s"])
                else wording.between(row["low_s"], row["high_s"], wording.seconds)
            ),
            "Actual": columns.seconds("actual_s"),
            "Error": columns.percent("error_pct", 0),
            "Expected from": columns.text("basis"),
        },
        caption=caption,
        findings=_findings(rows),
        coverage=coverage(data, rows.loc[rows["expected_s"].notna(), "lease"], "were measured with a forecast"),
    )


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    judged = rows[rows["judged"]]
    if judged.empty:
        return ("No lease was measured without interruption, so no forecast can be judged.",)
    unknown = judged["expected_s"].isna()
    assumed = judged["low_s"].isna() & ~unknown
    learned = judged[~assumed & ~unknown]
    said = []
    if len(learned):
        inside = int(learned["inside"].astype(bool).sum())
        error = float(learned["error_pct"].abs().median())
        said.append(
            f"{inside} of {wording.plural(len(learned), 'forecast')} correct: the actual duration is within the {LEVEL_PCT} % "
            f"interval. Median error: {wording.percent(error, 0)} of the expected duration."
        )
    if assumed.any():
        said.append(
            f"No earlier runs were available for {wording.plural(int(assumed.sum()), 'lease')}, so durations were assumed. "
            f"Median error: {wording.percent(float(judged[assumed]['error_pct'].abs().median()), 0)}."
        )
    if unknown.any():
        said.append(
            f"Nothing was known of the duration of {wording.plural(int(unknown.sum()), 'lease')} before they were measured."
        )
    return tuple(said)


def _label(row: Mapping[Any, Any]) -> str:
    return f"{row['lease']} ({wording.plural(int(row['runs']), 'run')}){'' if row['judged'] else ' *'}"
