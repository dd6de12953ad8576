"""Writing of the files that people read: figures, the recommendation and the report page."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from campaign.common.paths import SCRIPTS, Results, find_figure_files

if TYPE_CHECKING:
    from campaign.analysis.tables.io import Tables
    from campaign.report.cell_runs import ResultFiles
    from campaign.report.figure import Figure, FigureData


def draw_figures(tables: Path, figures: Path, scripts: Path = SCRIPTS, style: Path | None = None) -> None:
    """Draw all figures from tables, on all processors of this machine.

    Raises RecordError if one cannot be written.
    """
    from campaign.analysis.tables.io import read_tables

    run_in_processes(_list_drawing_tasks(read_tables(tables), figures, scripts, style))


def write_figures_and_page(results: Results, out: Path, files: ResultFiles | None = None) -> None:
    """Draw the figures of results from their tables, and write the recommendation and the page.

    For arguments see `render_report`.
    """
    from campaign.analysis.tables.io import read_tables

    tables = read_tables(results.tables)
    _draw_figures_and_recommendation(tables, results)
    _render_page(tables, results.figures, out, files=files)


def _draw_figures_and_recommendation(tables: Tables, results: Results) -> None:
    run_in_processes(
        [partial(_save_recommendation, tables, results.recommendation), *_list_drawing_tasks(tables, results.figures)]
    )


def _list_drawing_tasks(
    tables: Tables, figures: Path, scripts: Path = SCRIPTS, style: Path | None = None
) -> list[Callable[[], None]]:
    """Return one task per figure that draws it and writes its files."""
    from campaign.report.figure import build_figure_data, load_all_figures

    figures.mkdir(parents=True, exist_ok=True)
    data = build_figure_data(tables, style)
    _ = tables.design  # Built before the processes start, so that all of them inherit it.
    # In the order of the page, the largest figures come early, so that all processors finish at about the same time.
    return [partial(_draw_figure, figure, data, figures) for figure in load_all_figures(scripts).values()]


def run_in_processes(tasks: Sequence[Callable[[], None]], concurrent_task: Callable[[], object] = lambda: None) -> None:
    """Run all tasks on all processors of this machine, in forked processes that inherit imports and data.

    Args:
        tasks: functions to run.
        concurrent_task: function that runs in this process until the tasks end.
    """
    workers = max(1, min(len(tasks), len(os.sched_getaffinity(0))))
    gc.freeze()  # Objects of the parent stay alive, so the garbage collector can skip them.
    with ProcessPoolExecutor(workers, get_context("fork"), _set_tasks, (tasks,)) as pool:
        task_results = pool.map(_run_task, range(len(tasks)))
        concurrent_task()
        for _ in task_results:
            pass


def _draw_figure(figure: Figure, data: FigureData, directory: Path) -> None:
    from campaign.report.figure import write_figure

    with _save_pdf(directory / figure.name, figure.title, data):
        write_figure(figure, data, directory)


@contextmanager
def _save_pdf(path: Path, title: str, data: FigureData) -> Iterator[None]:
    """Save a PDF of the figure that is drawn inside the context, unless there are very many cells.

    Raises RecordError if a file cannot be written.

    Args:
        path: path of the figure's files, without suffix.
        title: title of the figure.
        data: data of the figure.
    """
    from campaign.common.errors import convert_os_error
    from campaign.report.plot import MAX_CELLS_TO_REDRAW, PAGE, build_page_medium, use_medium

    try:
        path.with_suffix(".pdf").unlink(missing_ok=True)
        with use_medium(build_page_medium(path, title) if len(data.cells) <= MAX_CELLS_TO_REDRAW else PAGE):
            yield
    except OSError as error:
        raise convert_os_error(error, path.parent) from error


_tasks: Sequence[Callable[[], None]]


def _set_tasks(tasks: Sequence[Callable[[], None]]) -> None:
    global _tasks
    _tasks = tasks


def _run_task(number: int) -> None:
    _tasks[number]()


def write_recommendation(tables: Path, directory: Path) -> None:
    """Write recommendation.json (`recommendation/2`) from tables. Raises RecordError if that fails."""
    from campaign.analysis.tables.io import read_tables

    _save_recommendation(read_tables(tables), directory)


def _save_recommendation(tables: Tables, directory: Path) -> None:
    from campaign.analysis.recommend.advise import build_recommendation
    from campaign.analysis.recommend.objectives import REPORT_REQUEST
    from campaign.common.errors import convert_os_error
    from campaign.report.sections.recommendation import RECOMMENDATION_FILE

    words = json.dumps(
        build_recommendation(tables, REPORT_REQUEST).model_dump(mode="json"),
        indent=1,
        sort_keys=True,
        ensure_ascii=False,
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / RECOMMENDATION_FILE).write_text(words + "\n", encoding="utf-8")
    except OSError as error:
        raise convert_os_error(error, directory) from error


def render_report(
    tables: Path, figures: Path, out: Path, scripts: Path = SCRIPTS, files: ResultFiles | None = None
) -> None:
    """Write the page from tables, figures, and the recommendation next to the figures.

    The recommendation is computed if there is none.

    Args:
        tables: directory of the tables.
        figures: directory of the figures.
        out: HTML file to write.
        scripts: directory of the modules of the figures.
        files: logs and records that the page names; None for a page without them.
    """
    from campaign.analysis.tables.io import read_tables

    _render_page(read_tables(tables), figures, out, scripts, files)


def _render_page(
    tables: Tables, figures: Path, out: Path, scripts: Path = SCRIPTS, files: ResultFiles | None = None
) -> None:
    from campaign.analysis.published.claims import add_evaluated_claims
    from campaign.analysis.recommend.advise import build_recommendation
    from campaign.analysis.recommend.objectives import REPORT_REQUEST
    from campaign.report.figure import list_figure_names
    from campaign.report.page import read_drawings, render_report_page, write_report
    from campaign.report.sections.recommendation import read_recommendation

    drawings = read_drawings((figures / f"{name}.svg", figures / f"{name}.json") for name in list_figure_names(scripts))
    advice = read_recommendation(figures.parent / "recommendation") or build_recommendation(tables, REPORT_REQUEST)
    write_report(
        out,
        render_report_page(
            tables.runs,
            tables.cells,
            tables.leases,
            add_evaluated_claims(tables),
            drawings,
            advice,
            tables.design,
            tables.steps,
            files,
        ),
    )


@contextmanager
def provide_figures(results: Results) -> Iterator[Path]:
    """Yield the directory of the figures of results, with the recommendation next to it.

    If there are none, as after the extraction of an archive, or if an earlier version drew fewer, they are drawn from the tables
    into a temporary directory.
    """
    if find_figure_files().keys() <= {path.stem for path in results.figures.glob("*.json")}:
        yield results.figures
        return
    from campaign.analysis.tables.io import read_tables

    with TemporaryDirectory(prefix="campaign-report-") as scratch:
        drawn_results = Results.from_directory(Path(scratch))
        _draw_figures_and_recommendation(read_tables(results.tables), drawn_results)
        yield drawn_results.figures
