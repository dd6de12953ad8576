"""Figure: time to compose a configuration, phase by phase, and to release it."""

from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from campaign.analysis.tables.leases import summarize_composition_times
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    APPARATUS,
    Drawing,
    FigureData,
    describe_lease_coverage,
    describe_undrawn,
    nothing,
)

TITLE = "Composition times"
SECTION = "How long does it take until requested hardware can be used?"
RESTS_ON = ("fabric",)
PART = APPARATUS
PLACE = 190

_PHASES = {
    "fabric_s": "fabric",
    "visible_s": "host sees devices",
    "readying_s": "ready for runs",
    "release_s": "release",
}
_MAX_BARS = 40


def draw(data: FigureData) -> Drawing:
    """Draw the mean time of each phase of composing and releasing, by configuration."""
    rows = summarize_composition_times(data.leases)
    if rows.empty:
        return nothing("no lease recorded when its composition was ready")
    leases, ready = int(rows["leases"].sum()), data.leases["compose_s"].notna()
    caption = (
        f"Mean time of each phase over {wording.pluralize(leases, 'lease')}. Each dot is one composition; the line spans the "
        f"shortest to the longest.{describe_undrawn(len(rows) - _MAX_BARS, 'configuration', 'table')}"
        f"{'' if ready.all() else ' Leases that never became ready are left out.'}"
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_phases(rows.head(_MAX_BARS), data.leases),
        {
            "Configuration": columns.text_column("configuration"),
            "Leases": columns.count_column("leases"),
            "Fabric": columns.duration_column("fabric_s"),
            "Host sees devices": lambda row: (
                wording.format_seconds(row["visible_s"]) if row["visible_s"] >= 0 else "not checked"
            ),
            "Ready for runs": columns.duration_column("readying_s"),
            "Time to compose": columns.duration_column("compose_s"),
            "Shortest to longest": columns.interval_column("compose_min_s", "compose_max_s", wording.format_seconds),
            "Time held": columns.duration_column("held_s"),
            "Release": columns.duration_column("release_s"),
            "Operations": columns.number_column("operations"),
            "Retries": columns.number_column("retries"),
        },
        caption=caption,
        findings=_describe_slowest_and_fastest(rows),
        coverage=describe_lease_coverage(data.leases, data.leases.loc[ready, "lease_id"], "became ready"),
    )


def _describe_slowest_and_fastest(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence on the slowest and the fastest configuration, and on the phase that takes most of the time."""
    ranking = rows.sort_values("compose_s", kind="stable")
    slow, fast = ranking.iloc[-1], ranking.iloc[0]
    sentence = f"Composing takes {wording.format_seconds(slow['compose_s'])} on average for {slow['configuration']}"
    if len(rows) > 1:
        sentence += (
            f" (the slowest) and {wording.format_seconds(fast['compose_s'])} for {fast['configuration']} (the fastest)"
        )
    largest = max(list(_PHASES)[:3], key=lambda phase: float(rows[phase].sum()))
    share = 100 * rows[largest].sum() / rows["compose_s"].sum()
    return (
        f"{sentence}. The phase “{_PHASES[largest]}” takes {wording.format_percent(share, 0)} of the composition time.",
    )


def _draw_phases(rows: pd.DataFrame, leases: pd.DataFrame) -> str:
    """Draw a bar per configuration with its phases, and a dot per composition. Return SVG."""
    durations = {name: group.dropna() for name, group in leases.groupby("configuration")["compose_s"]}
    looks = {phase: plot.choose_series_look(position) for position, phase in enumerate(_PHASES)}
    phases = [phase for phase in _PHASES if rows[phase].notna().any()]
    figure, [[axes]] = plot.create_grid(1, height_in=0.9 + 0.36 * max(2, len(rows)))
    for place, row in enumerate(rows.to_dict("records")):
        start = 0.0
        for phase in phases:
            if pd.isna(row[phase]):
                continue
            is_release = phase == "release_s"
            # The release is not part of composing, so it has a bar of its own below.
            y, height, start_s = (place + 0.33, 0.14, 0.0) if is_release else (place, 0.46, start)
            axes.barh(y, row[phase], height, left=start_s, **_build_bar_style(looks[phase]))
            start += 0.0 if is_release else row[phase]
        if row["leases"] > 1:
            ends = [row["compose_min_s"], row["compose_max_s"]]
            axes.plot(ends, [place - 0.34] * 2, color=plot.INK, marker="", linewidth=0.8)
            values = durations[row["configuration"]]
            dots = {"color": plot.INK, "marker": "o", "markersize": 2.5, "linestyle": "", "alpha": 0.7}
            axes.plot(values, [place - 0.34] * len(values), **dots)
    plot.label_panel_lines(axes, [f"{row['configuration']} (n = {row['leases']})" for row in rows.to_dict("records")])
    axes.set_xlabel("time (s)")
    axes.set_ylabel("configuration (n: leases)")
    handles = [Patch(label=_PHASES[phase], **_build_bar_style(looks[phase])) for phase in phases]
    plot.add_legend(figure, handles)
    return plot.to_svg(figure)


def _build_bar_style(look: plot.SeriesLook) -> dict[str, Any]:
    """Return the bar style for a look."""
    return {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": plot.INK, "linewidth": 0.7}
