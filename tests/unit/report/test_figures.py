"""Every figure: shows what is there, says what is not, and is the same byte for byte."""

from __future__ import annotations

import copy
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as MplFigure
from matplotlib.text import Text
from scipy.stats import binomtest

from campaign.analysis.statistics.step_times import NOT_STEADY, TOO_SHORT
from campaign.analysis.tables import io as tableset
from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.leases import build_leases_table, build_operations_table
from campaign.analysis.tables.runs import build_runs_table, build_step_times_table
from campaign.common.errors import RecordError
from campaign.common.paths import SCRIPTS
from campaign.report import figure, plot
from campaign.report import write as outputs
from campaign.report.figure import Drawing, Figure, FigureData, load_all_figures
from tests.unit.observe.links import links_data
from tests.unit.report import report_data as synthetic
from tests.unit.report.figure_columns import UNPAINTED, check, with_pictures

FIGURES = load_all_figures()
# Figures whose numbers are no throughput: they have no interval of one.
OF_NO_RATE = (
    "composition_times",
    "memory_frontier",
    "link_matrices",
    "allreduce",
    "operation_times",
    "fabric_failures",
)
# Figures of what this campaign has none of: options, sizes, a reference ..; they are drawn in tests of their own.
OF_OTHER_DATA = (
    "software_options",
    "overhead_by_size",
    "transfer_rates",
    "time_series",
    "workload_characteristics",
    "software_stack",
    "forecast",
    "reference",
    "latencies",
    "systems",
)
SHOWN = [name for name in FIGURES if name not in OF_OTHER_DATA]


def data(plan: list[CellPlan], records: list, leases: list | None = None, links: Any = ()) -> FigureData:
    runs = build_runs_table(records)
    protocol = synthetic.context_document()["campaign"]["protocol"]
    cells = build_cells_table(plan, runs)
    steps = build_step_times_table(records)
    return FigureData(
        runs, cells, build_leases_table(leases or []), synthetic.BASELINE, protocol, tuple(links),
        steps=steps, operations=build_operations_table(leases or []),
    )  # fmt: skip


@pytest.fixture(scope="module")
def campaign() -> FigureData:
    """Two workloads or three batches would take twice the time of every test here and show nothing else."""
    plan = [entry for entry in synthetic.planned() if entry.cell.workload == "bert" and entry.cell.batch != 16]
    return data(plan, list(synthetic.records(plan)), synthetic.leases(), links_data.links())


@pytest.fixture(scope="module")
def small() -> FigureData:
    """The same at one batch, where the number of panels is not the subject."""
    plan = [entry for entry in synthetic.planned() if (entry.cell.workload, entry.cell.batch) == ("bert", 8)]
    return data(plan, list(synthetic.records(plan)))


@pytest.fixture(scope="module")
def painted(campaign: FigureData) -> dict[str, tuple[Drawing, list[MplFigure]]]:
    return {name: with_pictures(FIGURES[name], campaign) for name in SHOWN}


@pytest.fixture(scope="module")
def drawn(painted: dict[str, tuple[Drawing, list[MplFigure]]]) -> dict[str, Drawing]:
    return {name: drawing for name, (drawing, _) in painted.items()}


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of captions and tables."""
    monkeypatch.setattr(plot, "to_svg", lambda _: UNPAINTED)


def test_every_file_is_a_figure_with_a_place_of_its_own() -> None:
    files = {path.stem for path in (SCRIPTS / "figures").glob("*.py")} - {"__init__"}
    assert files == set(FIGURES)
    assert len({each.place for each in FIGURES.values()}) == len(FIGURES)


@pytest.mark.parametrize("name", SHOWN)
def test_a_figure_has_words_a_table_data_with_units_and_a_picture_that_follows_the_page(
    name: str, painted: dict[str, tuple[Drawing, list[MplFigure]]]
) -> None:
    drawing, pictures = painted[name]
    assert drawing.svg
    assert len(drawing.rows) == len(drawing.data)
    check(FIGURES[name], drawing, pictures)


@pytest.mark.parametrize("name", [name for name in SHOWN if name not in OF_NO_RATE])
def test_a_caption_is_short_and_states_runs_and_interval(name: str, drawn: dict[str, Drawing]) -> None:
    caption = drawn[name].caption
    assert "(4 runs" in caption
    assert "95\u202f% interval" in caption
    assert len(caption.split()) <= 40


def test_operations_show_their_distribution_beside_what_was_recorded_elsewhere(campaign: FigureData) -> None:
    recorded = {"operation": "attach", "count": 251, "low_s": 9.0, "median_s": 15.0, "high_s": 16.6}
    told = {"system": {"times": {"source": "logs of two boxes", "operations": [recorded]}}}
    (drawing, alone) = (FIGURES["operation_times"].draw(replace(campaign, context=each)) for each in (told, {}))
    rows = drawing.data.set_index("operation")
    attached = campaign.operations.loc[campaign.operations["operation"] == "attach", "seconds"]
    assert rows.loc["attach", "operations"] == len(attached) > 20
    assert rows.loc["attach", ["low_s", "median_s", "high_s"]].tolist() == pytest.approx(
        [attached.quantile(0.05), attached.median(), attached.quantile(0.95)]
    )
    assert rows.loc["attach", "recorded_median_s"] == 15
    assert pd.isna(rows.loc["detach", "recorded_median_s"])
    assert "Grey: recorded elsewhere (logs of two boxes)." in drawing.caption
    assert "Grey" not in alone.caption
    assert drawing.findings[0].startswith("Attaching a device takes ")
    assert FIGURES["operation_times"].draw(replace(campaign, operations=campaign.operations.head(0))).empty_reason


@pytest.mark.usefixtures("unpainted")
def test_recomposing_pays_from_a_job_length_on(small: FigureData) -> None:
    leases = [document for each in (0, 1, 2) for document in synthetic.leases(each)]
    drawing = FIGURES["break_even"].draw(replace(small, leases=build_leases_table(leases)))
    rows = drawing.data
    assert 0 < np.isfinite(rows["break_even_s"]).sum() < len(rows)
    # Each configuration with fabric devices is compared with the most devices at hand that are fewer, over all cells.
    fabric_rows = rows[(rows["attach"] != "local") & (rows["against_devices"] < rows["devices"])]
    quoted = fabric_rows.sort_values("against_devices").drop_duplicates("configuration", keep="last")
    pairs = re.findall(
        r"Composing (\S+) instead of (\S+) (?:pays|never pays|may never pay)", " ".join(drawing.findings)
    )
    assert set(pairs) <= set(zip(quoted["configuration"], quoted["against_configuration"], strict=True))
    assert len(pairs) == len(drawing.findings) == min(3, len(quoted))
    for (composed, at_hand), finding in zip(pairs, drawing.findings, strict=True):
        cells = rows[(rows["configuration"] == composed) & (rows["against_configuration"] == at_hand)]
        assert len(cells) == 1 or f"mean of {len(cells)} cells" in finding
    texts = dict(zip(drawing.headings, zip(*drawing.rows, strict=True), strict=True))
    never = np.isinf(rows["break_even_s"])
    assert [text == "never" for text in texts["Pays from"]] == never.tolist()
    assert {text for text, is_never in zip(texts["Saved per hour"], never, strict=True) if is_never} == {"–"}
    once = FIGURES["break_even"].draw(replace(small, leases=build_leases_table(synthetic.leases())))
    assert "(composed once, not tested; " in once.findings[0]
    assert FIGURES["break_even"].draw(small).empty_reason.startswith("no configuration with known composition times")


@pytest.mark.usefixtures("unpainted")
def test_failures_of_the_fabric_are_said_per_thousand_with_an_interval(campaign: FigureData) -> None:
    documents = synthetic.leases()
    failed = {"time_s": 1.0, "operation": "compose", "error": "PartialFailure", "message": "no link"}
    documents[0] = {**documents[0], "faults": [failed, failed, {**failed, "operation": "allocation"}], "retries": 3}
    told = replace(campaign, leases=build_leases_table(documents), operations=build_operations_table(documents))
    rows = FIGURES["fabric_failures"].draw(told).data.set_index("event")
    attached = int((told.operations["operation"] == "attach").sum())
    assert rows.loc["attachment failed", ["operations", "failures"]].tolist() == [attached + 2, 2]
    interval = binomtest(2, attached + 2).proportion_ci(method="exact")
    assert rows.loc[
        "attachment failed", ["per_thousand", "per_thousand_low", "per_thousand_high"]
    ].tolist() == pytest.approx([2000 / (attached + 2), 1000 * interval.low, 1000 * interval.high])
    assert rows.loc["operation repeated", "failures"] == sum(document["retries"] for document in documents)
    drawing = FIGURES["fabric_failures"].draw(told)
    assert re.fullmatch(
        rf"2 of {attached + 2} attachments failed: \S+ per thousand \[\S+ to \S+\]\.", drawing.findings[0]
    )
    none = FIGURES["fabric_failures"].draw(campaign)
    assert re.fullmatch(
        rf"None of {attached} attachments failed: at most \S+ per thousand \(95 %\)\.", none.findings[0]
    )
    assert (
        FIGURES["fabric_failures"]
        .draw(replace(campaign, leases=campaign.leases.head(0), operations=none.data.head(0)))
        .empty_reason
    )


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("name", ["precision", "overhead", "scaling", "step_times"])
def test_a_caption_and_a_table_show_what_measured_windows_suffer_from(name: str, small: FigureData) -> None:
    def drawn_with(mark: str) -> Drawing:
        return FIGURES[name].draw(replace(small, cells=small.cells.assign(window=mark)))

    marked, plain = drawn_with(f"{NOT_STEADY}, {TOO_SHORT}"), drawn_with("")
    assert f"Measured window {NOT_STEADY}: " in marked.limits[-1]
    assert f"Measured window {TOO_SHORT}: " in marked.limits[-1]
    assert "measured window" not in " ".join(plain.limits)
    if name != "step_times":  # its rows say it of the runs themselves
        assert marked.headings == (*plain.headings, "Measured window")
        assert {row[-1] for row in marked.rows} == {f"{NOT_STEADY}, {TOO_SHORT}"}


def test_hosts_that_nobody_looks_at_are_said_not_to_be_looked_at(campaign: FigureData) -> None:
    leases = campaign.leases.assign(visible_s=float("nan"))
    drawing = FIGURES["composition_times"].draw(replace(campaign, leases=leases))
    assert {row[3] for row in drawing.rows} == {"not checked"}
    assert "host sees devices" not in drawing.svg


@pytest.mark.parametrize("name", ["node_spread", "composition_times", "overhead"])
def test_the_same_input_gives_the_same_bytes(name: str, campaign: FigureData, drawn: dict[str, Drawing]) -> None:
    again = FIGURES[name].draw(campaign)
    assert again.svg == drawn[name].svg
    assert again.rows == drawn[name].rows


@pytest.mark.parametrize("name", SHOWN)
def test_every_figure_says_how_much_of_what_it_is_about_was_measured(name: str, drawn: dict[str, Drawing]) -> None:
    assert re.match(r"\d+ of \d+ (planned cells? were measured|leases? (became|had|have))", drawn[name].coverage)


@pytest.mark.parametrize("name", ["scaling", "speedup_by_batch", "node_spread", "part_of_host", "variance", "precision",
                                  "memory_frontier", "work_per_step", "utilisation", "energy", "pareto"])  # fmt: skip
def test_a_cell_out_of_memory_lowers_the_coverage(name: str, drawn: dict[str, Drawing]) -> None:
    measured, planned, failed = map(
        int, re.match(r"(\d+) of (\d+) planned cells were measured \((\d+) failed", drawn[name].coverage).groups()
    )
    assert measured + failed + (", 1 missing" in drawn[name].coverage) == planned
    assert failed > 0


@pytest.mark.usefixtures("unpainted")
def test_a_link_far_below_its_like_is_said_first() -> None:
    every = links_data.links()
    slow = copy.deepcopy(every)
    document = slow[0]["document"]
    bandwidths = document["matrices"]["unidirectional_gb_per_s"]
    out, to = next((o, t) for o, row in enumerate(bandwidths) for t, each in enumerate(row) if each)
    bandwidths[out][to] *= 0.3
    said = FIGURES["link_matrices"].draw(data([], [], links=slow)).findings
    assert said[0].startswith("The slowest link for its type")


def test_findings_state_the_known_effects(drawn: dict[str, Drawing]) -> None:
    largest = re.search(r"(\d+\.\d)\u202f% \([^)]*4 devices, 4 hosts\)", drawn["node_spread"].alt)
    assert float(largest[1]) == pytest.approx(13, abs=1)
    overhead = re.search(r"The overhead of fabric, storage local is (\d+\.\d)", drawn["overhead"].alt)
    assert float(overhead[1]) == pytest.approx(60, abs=3)
    assert re.match(r"fp16 reaches 1\.[89]", drawn["precision"].alt)


SEVERAL = ("precision", "overhead", "node_spread", "speedup_by_batch", "scaling")


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_cells_only_the_mean_has_an_interval(drawn: dict[str, Drawing], name: str) -> None:
    said = [finding for finding in drawn[name].findings if ". Single " in finding]
    assert said
    for finding in said:
        mean, estimates = finding.split(". Single ")
        assert re.search(r" \[.* to .*\].* on average over \d+ (cells|lines)$", mean), finding
        assert "[" not in estimates
    assert not re.search("best for|worst for|Largest|Smallest", " ".join(said))


def test_of_cells_without_a_significant_difference_only_the_mean_is_quoted(drawn: dict[str, Drawing]) -> None:
    said = drawn["part_of_host"].findings[0]
    start = "No significant effect of idle devices in the host on throughput in any of "
    assert re.fullmatch(
        start + r"\d+ cells: the mean is \S+\s% \[.*\], and differences above \S+\s% are ruled out\.", said
    )


@pytest.mark.parametrize("name", ["scaling", "node_spread", "precision", "overhead"])
def test_a_headline_has_the_numbers_of_the_small_picture(
    campaign: FigureData, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shown: list[float] = []
    monkeypatch.setattr(plot, "to_svg", lambda _: UNPAINTED)
    monkeypatch.setattr(plot, "draw_glance_dots", lambda dots, *_: shown.extend(dot[1] for dot in dots))
    monkeypatch.setattr(plot, "draw_glance_lines", lambda lines, *_, **__: shown.extend(line[2][-1] for line in lines))
    drawing = FIGURES[name].draw_function(campaign)
    assert len(shown) in (1, 2, 3, 4)
    said = [float(number.replace("−", "-")) for number in re.findall(r"(−?\d+\.\d+)(?:×|\s%)", drawing.headline)]
    assert said[0] == pytest.approx(min(shown), abs=0.06)
    assert len(shown) == 1 or said[1] == pytest.approx(max(shown), abs=0.06)
    assert len(shown) > 1 or " [" in drawing.headline


def test_idle_devices_are_a_minor_answer_unless_they_slow_a_run_down(drawn: dict[str, Drawing]) -> None:
    assert drawn["part_of_host"].minor
    plan = [entry for entry in synthetic.planned() if entry.cell.workload == "bert" and entry.cell.batch == 8]
    partly = {e.cell.id for e in plan if e.cell.configuration.devices_used < e.cell.configuration.devices_per_host}
    slowed = [
        record.model_copy(update={"throughput_per_s": record.throughput_per_s * 0.5})
        if record.cell_id in partly and record.throughput_per_s
        else record
        for record in synthetic.records(plan)
    ]
    assert not FIGURES["part_of_host"].draw(data(plan, slowed)).minor


def test_of_several_lines_no_model_is_quoted_with_its_interval(campaign: FigureData, drawn: dict[str, Drawing]) -> None:
    several = [finding for finding in drawn["scaling"].findings if "serial" in finding or "compute" in finding]
    assert not several
    assert any(" follow " in finding for finding in drawn["scaling"].findings)
    cells = campaign.cells
    line = cells[["workload", "precision", "batch", "attach", "storage"]]
    one = cells[(line == line[cells["hosts"] > 1].iloc[0]).all(axis=1)].reset_index(drop=True)
    said = FIGURES["scaling"].draw(replace(campaign, cells=one)).findings
    assert not any(" lines follow " in finding for finding in said)


def test_a_cell_out_of_memory_is_a_gap_with_its_class(drawn: dict[str, Drawing]) -> None:
    assert "out of memory, 4 runs" in drawn["precision"].svg
    assert "out of memory, 4 runs" in " ".join(drawn["precision"].findings)
    plan = [entry for entry in synthetic.planned() if entry.cell.workload == "bert" and entry.cell.precision == "fp32"]
    assert "out of memory" in FIGURES["speedup_by_batch"].draw(data(plan, list(synthetic.records(plan)))).svg
    assert any("oom_device x4" in row for row in drawn["precision"].rows)


def test_the_cell_that_was_never_run_is_said_to_be_missing() -> None:
    plan = synthetic.planned()[-6:]
    drawing = FIGURES["precision"].draw(data(plan, list(synthetic.records(plan))))
    assert ">missing<" in drawing.svg


def test_words_about_a_gap_stand_apart_from_intervals(campaign: FigureData, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plot, "to_svg", lambda figure, *words: figures.append(figure) or "<svg></svg>")
    cells = campaign.cells.copy()
    gone = (cells["configuration"] == "fabric-4") & (cells["batch"] == 32)
    cells.loc[gone, ["n_ok", "mean", "failures", "state"]] = [0, float("nan"), "oom_device x4", "failed"]
    FIGURES["overhead"].draw(replace(campaign, cells=cells))
    assert {words.get_text() for axes in figures[0].axes for words in axes.texts} == {"out of memory, 4 runs"}
    renderer = FigureCanvasAgg(figures[0]).get_renderer()
    figures[0].draw_without_rendering()
    for axes in figures[0].axes:
        low = axes.get_xlim()[0]
        highest = max(
            (line.get_xdata().max() for line in axes.lines if line.get_transform() == axes.transData), default=low
        )
        for words in axes.texts:
            assert words.get_ha() == "right"
            drawn = words.get_window_extent(renderer).transformed(axes.transData.inverted())
            assert drawn.x0 > highest


def test_one_way_to_attach_stands_on_its_line(campaign: FigureData) -> None:
    cells = campaign.cells
    kept = (cells["hosts"] == 1) & ((cells["attach"] != "hybrid") | (cells["precision"] == "fp16"))
    kept &= (cells["precision"] == "fp16") | (cells["storage"] == "local")
    figures = with_pictures(FIGURES["overhead"], replace(campaign, cells=cells[kept].reset_index(drop=True)))[1]
    alone = [axes for axes in figures[0].axes if axes.get_title(loc="left").startswith("fp32")]
    assert alone
    for axes in alone:
        marks = [line.get_ydata()[0] for line in axes.lines if line.get_marker() not in ("None", "", None)]
        assert marks == [round(place) for place in marks]


def test_of_too_many_panels_those_like_the_baseline_and_the_largest_are_drawn() -> None:
    shapes = [synthetic.configuration(each=n) for n in range(1, 14)] + [synthetic.configuration(attach="local")]
    plan = [CellPlan(synthetic.cell(at, precision=digits), 2, "l") for at in shapes for digits in ("fp32", "fp16")]
    drawing = FIGURES["precision"].draw(data(plan, list(synthetic.records(plan))))
    assert "Drawn: compositions like the baseline, then the largest." in drawing.limits
    assert "2 further panels are only in the data." in drawing.limits
    titles = re.findall(r">(\d+) devices?, (\w+)<", drawing.svg)
    assert titles[:3] == [("4", "local"), ("13", "fabric"), ("12", "fabric")]
    assert ("1", "fabric") not in titles


@pytest.fixture(scope="module")
def without_runs() -> list[FigureData]:
    only = synthetic.cell(synthetic.configuration())
    return [data(plan, []) for plan in ([], [CellPlan(only, 2, "l")])]


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_to_show_is_said_with_a_reason(name: str, without_runs: list[FigureData]) -> None:
    for given in without_runs:
        drawing = FIGURES[name].draw(given)
        assert drawing.svg is None
        assert len(drawing.empty_reason) > 20


def whole(workload: str, repetitions: int, **noise: float) -> FigureData:
    """All small cells of a workload, none of which is missing or out of memory."""
    cells = [each for each in synthetic.planned(repetitions) if each.cell.workload == workload and each.cell.batch < 32]
    plan = [replace(each, missing={}) for each in cells]
    return data(plan, list(synthetic.records(plan, **noise)))


@pytest.fixture(scope="module")
def one_run_a_cell() -> FigureData:
    return whole("resnet", 1)


@pytest.mark.parametrize(
    "name", [name for name in SHOWN if name not in (*OF_NO_RATE, "variance", "roofline", "break_even")]
)
def test_one_run_a_cell_is_drawn_without_an_interval(
    name: str, one_run_a_cell: FigureData, request: pytest.FixtureRequest
) -> None:
    if name not in ("scaling", "precision"):  # all draw their intervals alike
        request.getfixturevalue("unpainted")
    drawing = FIGURES[name].draw(one_run_a_cell)
    assert drawing.svg
    assert "(1 run, so no interval)" in drawing.caption or "(1 run per cell)" in drawing.caption
    assert "nan" not in drawing.alt.split()


@pytest.mark.parametrize("name", ["node_spread", "precision"])
def test_hostile_names_are_text(name: str) -> None:
    drawing = FIGURES[name].draw(data(synthetic.hostile_plan(), synthetic.hostile_records()))
    ElementTree.fromstring(drawing.svg)
    assert "<script" not in drawing.svg
    assert "<b>" not in drawing.svg


@pytest.mark.usefixtures("unpainted")
def test_panels_beyond_what_is_readable_are_left_to_the_table() -> None:
    shapes = (synthetic.configuration(each=2), synthetic.configuration(hosts=2, each=1))
    plan = [CellPlan(synthetic.cell(at, seed=n), 2, "l") for at in shapes for n in range(plot.MAX_PANELS + 3)]
    drawing = FIGURES["node_spread"].draw(data(plan, list(synthetic.records(plan))))
    assert "3 further panels are only in the data." in drawing.limits
    assert len(drawing.rows) == 2 * (plot.MAX_PANELS + 3)


@pytest.mark.parametrize(
    ("column", "noun", "most"),
    [("batch", "values of batch", plot.MAX_SERIES), ("ranks", "numbers of devices", 2 * plot.MAX_SERIES)],
)
def test_of_very_many_series_some_are_drawn_from_the_smallest_to_the_largest(column: str, noun: str, most: int) -> None:
    rows = pd.DataFrame({"workload": "w", column: [n for n in range(1, 101) for _ in range(2)]})
    panels = plot.split_into_panels(rows, ["workload"], series=[column])
    drawn = sorted(panels.shown[0].rows[column].unique())
    assert len(drawn) == plot.MAX_SERIES
    assert (drawn[0], drawn[-1]) == (1, 100)
    assert len(panels.shown[0].rows) == 2 * plot.MAX_SERIES
    assert panels.list_limits()[1].startswith(f"Drawn: {plot.MAX_SERIES} of 100 {noun};")
    assert not any(plot.split_into_panels(rows[rows[column] <= most], ["workload"], series=[column]).list_limits())


@pytest.mark.parametrize(("most", "power"), [(5e7, "1e7"), (50.0, "")])
def test_a_title_stands_above_the_power_of_ten_of_its_axis(most: float, power: str) -> None:
    with plot.use_style(figure.REPORTS / "style.mplstyle"):
        drawn, ((axes,),) = plot.create_grid(1)
        plot.set_panel_title(axes, "a panel")
        axes.plot([1, 2], [0.0, most])
        plot.to_svg(drawn)
        FigureCanvasAgg(drawn).draw()
        (title,) = drawn.findobj(lambda artist: isinstance(artist, Text) and artist.get_text() == "a panel")
        of_power = axes.yaxis.get_offset_text()
    assert of_power.get_text() == power
    assert title.get_window_extent().ymin > (of_power if power else axes).get_window_extent().ymax


def test_series_differ_without_colour() -> None:
    looks = [plot.choose_series_look(position) for position in range(36)]
    assert len({(each.colour, each.marker) for each in looks}) == 36
    assert len({(each.colour, each.dashes) for each in looks[:24]}) == 24
    assert len({each.hatch for each in looks[:6]}) == len({each.marker for each in looks[:6]}) == 6


def test_files_in_files_out(campaign: FigureData, drawn: dict[str, Drawing], tmp_path: Path) -> None:
    outputs = write(tmp_path, campaign, FIGURES["node_spread"])
    document = json.loads(outputs["json"].read_text())
    assert (document["shown"], document["anchor"]) == (True, "node-spread")
    assert document["findings"] == list(drawn["node_spread"].findings)
    assert outputs["svg"].read_text().endswith(drawn["node_spread"].svg)
    assert len(pd.read_csv(outputs["csv"])) == len(drawn["node_spread"].data)


def test_a_figure_with_nothing_to_show_is_a_document_that_says_why(tmp_path: Path) -> None:
    outputs = write(tmp_path, data([], []), FIGURES["overhead"])
    document = json.loads(outputs["json"].read_text())
    assert not document["shown"]
    assert "not part of the plan" in document["reason"]
    assert not outputs["svg"].exists()
    assert not outputs["csv"].exists()


def write(tmp_path: Path, given: FigureData, shown: Figure) -> dict[str, Path]:
    figure.write_figure(shown, given, tmp_path)
    return {kind: tmp_path / f"{shown.name}.{kind}" for kind in ("svg", "csv", "json")}


def test_figures_are_drawn_from_the_tables_of_a_directory(tmp_path: Path) -> None:
    plan = [entry for entry in synthetic.planned(2) if entry.cell.workload == "bert"][:6]
    runs = build_runs_table(synthetic.records(plan))
    context = synthetic.context_document()
    tableset.write_all_tables(
        Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], context), tmp_path / "tables"
    )
    outputs.draw_figures(tmp_path / "tables", tmp_path / "figures")
    for name in FIGURES:
        assert json.loads((tmp_path / "figures" / f"{name}.json").read_text())["anchor"] == FIGURES[name].anchor
    outputs.render_report(tmp_path / "tables", tmp_path / "figures", tmp_path / "report.html")
    assert "composition-times" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("most_cells", "kinds"), [(6, {"svg", "csv", "json", "pdf"}), (5, {"svg", "csv", "json"})])
def test_a_figure_has_a_pdf_beside_unless_there_are_very_many_cells(
    most_cells: int, kinds: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [entry for entry in synthetic.planned(2) if entry.cell.workload == "bert"][:6]
    runs = build_runs_table(synthetic.records(plan))
    tableset.write_all_tables(
        Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document()),
        tmp_path / "tables",
    )
    scripts, figures = tmp_path / "scripts", tmp_path / "figures"
    (scripts / "figures").mkdir(parents=True)
    shutil.copy(SCRIPTS / "figures" / "composition_times.py", scripts / "figures")
    figures.mkdir()
    (figures / "composition_times.pdf").write_text("of fewer cells")
    monkeypatch.setattr(plot, "MAX_CELLS_TO_REDRAW", most_cells)
    outputs.draw_figures(tmp_path / "tables", figures, scripts)
    assert {path.suffix[1:] for path in figures.iterdir()} == kinds
    if "pdf" in kinds:
        assert (figures / "composition_times.pdf").read_bytes().startswith(b"%PDF")


def test_tables_that_cannot_be_read_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"tables: cannot be read .* delete them and run the command again"):
        outputs.draw_figures(tmp_path / "tables", tmp_path / "figures")


@pytest.fixture(scope="module")
def two_noisy_runs() -> FigureData:
    return whole("bert", 2, noise=0.4)


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("name", ["scaling", "node_spread", "precision", "overhead", "speedup_by_batch"])
def test_huge_intervals_of_two_noisy_runs_do_not_flatten_the_values(name: str, two_noisy_runs: FigureData) -> None:
    drawing = FIGURES[name].draw(two_noisy_runs)
    assert "Very wide intervals are cut off in the picture." in drawing.limits


def test_the_range_drawn_holds_all_values_and_intervals_that_are_not_huge() -> None:
    rows = pd.DataFrame({"mean": [10.0, 20.0], "ci_low": [9.0, -500.0], "ci_high": [11.0, 540.0]})
    assert plot.compute_range(rows, plot.RATE) == (-2.0, 32.0)
    assert plot.compute_range(rows.iloc[:1], plot.RATE) == (9.0, 11.0)
    assert plot.compute_range(rows.assign(ci_low=float("nan"), ci_high=float("nan")), plot.RATE) == (10.0, 20.0)


def test_work_per_step_is_what_the_runs_counted(campaign: FigureData, drawn: dict[str, Drawing]) -> None:
    of = campaign.runs.dropna(subset=["achieved_tflops"]).groupby("cell_id")
    rows = drawn["work_per_step"].data.set_index("cell_id")
    assert rows["mean"].to_dict() == pytest.approx((1e3 * of["achieved_tflops"].mean()).to_dict())
    assert rows["mfu_pct"].to_dict() == pytest.approx(of["mfu_pct"].first().to_dict())
    assert (rows["ci_low"] < rows["mean"]).all()
