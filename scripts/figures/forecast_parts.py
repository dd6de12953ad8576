"""Figure: what each part of the leases was expected to take, and what it took."""

import pandas as pd

from campaign import wording
from campaign.report import columns, plot
from campaign.report.expected_and_actual import LEVEL_PCT, coverage, lines, picture
from campaign.report.figure import APPARATUS, Drawing, FigureData, nothing

TITLE = "Forecast and actual duration by part"
SECTION = "Which part of the leases took longer than planned, and how many device-hours and host-hours were held?"
PART = APPARATUS
METHOD = (
    "lines of parts of leases span the sums of the lower and of the upper ends of their intervals, wider than an interval of the "
    "sum; device-hours count all devices held"
)
PLACE = 205
UNITS = {"leases": "", "inside": "", "with_interval": ""}

_NAMES = {name: name for name in ("composing", "queue", "start", "runs")}
_NAMES |= {"between": "between runs", "release": "release"}


def draw(data: FigureData) -> Drawing:
    whole = [
        row
        for row in data.context.get("forecast", ())
        if row["parts"] and row["runs"] == row["runs_expected"] and row["uses"] == 1 and not row["resumed"]
    ]
    # Of leases of unknown duration there is nothing to compare; where there are no others, they still say what was held.
    judged = [row for row in whole if row["expected_s"] is not None] or whole
    found = [
        {"lease": row["lease"], "number": number, **part} for number, row in enumerate(judged) for part in row["parts"]
    ]
    if not found:
        return nothing("no lease was measured in one go with a forecast by part")
    each = pd.DataFrame(found).astype(dict.fromkeys(("expected_s", "low_s", "high_s", "actual_s"), "float64"))
    leases, unknown = each["number"].nunique(), len(whole) - len(judged)
    rows = pd.DataFrame([_part(name, of) for name in _NAMES if len(of := each[each["part"] == name])])
    unjudged = f" Without {wording.plural(unknown, 'other')} of unknown duration." if unknown else ""
    caption = (
        f"Sums over {wording.plural(leases, 'lease')} that were measured in one go: expected (filled) and actual (open), on a "
        f"logarithmic axis.{unjudged}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: picture(
            lines(rows, lambda row: _NAMES[row["part"]]), "time of all leases together (s)", "part of a lease"
        ),
        {
            "Part": lambda row: _NAMES[row["part"]],
            "Expected": columns.seconds("expected_s"),
            "Intervals together": columns.between("low_s", "high_s", wording.seconds),
            "Actual": columns.seconds("actual_s"),
            "Error": columns.percent("error_pct", 0),
            "Leases inside": lambda row: f"{row['inside']} of {row['with_interval']}" if row["with_interval"] else "–",
            "Device-hours held": lambda row: _held(row, "device"),
            "Host-hours held": lambda row: _held(row, "host"),
        },
        caption=caption,
        findings=_findings(rows),
        coverage=coverage(data, each["lease"], "were measured in one go with a forecast by part"),
    )


def _held(row: pd.Series, what: str) -> str:
    """'4.1 (expected 3.9)'."""
    expected, actual = (wording.number(row[f"{when}_{what}_s"] / 3600) for when in ("expected", "actual"))
    return f"{actual} (expected {expected})"


def _part(name: str, rows: pd.DataFrame) -> dict[str, object]:
    """The sums of one part over all leases; not a number where one of them is not known."""
    expected, actual = rows["expected_s"].sum(skipna=False), rows["actual_s"].sum(skipna=False)
    bounded = rows[rows["high_s"] > 0]
    held = {
        f"{when}_{what}_s": (rows[f"{when}_s"] * rows[f"{what}s"]).sum(skipna=False)
        for what in ("device", "host")
        for when in ("expected", "actual")
    }
    return {
        "part": name,
        "leases": len(rows),
        "expected_s": expected,
        "low_s": rows["low_s"].sum(skipna=False),
        "high_s": rows["high_s"].sum(skipna=False),
        "actual_s": actual,
        "error_pct": 100 * (actual / expected - 1) if expected > 0 else float("nan"),
        "inside": int(bounded["actual_s"].between(bounded["low_s"], bounded["high_s"]).sum()),
        "with_interval": len(bounded),
        **held,
    }


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    said = []
    inside, bounded = int(rows["inside"].sum()), int(rows["with_interval"].sum())
    if bounded:
        said.append(
            f"{inside} of {wording.plural(bounded, 'part')} of leases took a time within the {LEVEL_PCT} % interval."
        )
    held = [wording.number(rows[f"actual_{name}_s"].sum() / 3600) for name in ("device", "host")]
    expected = [wording.number(rows[f"expected_{name}_s"].sum(skipna=False) / 3600) for name in ("device", "host")]
    known = wording.NONE not in expected
    beside = f"expected were {' and '.join(expected)}" if known else "not every part was known beforehand"
    return (*said, f"Held: {held[0]} device-hours and {held[1]} host-hours; {beside}.")
