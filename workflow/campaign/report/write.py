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

from campaign.common.paths import SCRIPTS, Results

if TYPE_CHECKING:
    from campaign.analysis.tables.io import Tables
    from campaign.report.figure import Figure, FigureData


def draw_figures(tables: Path, figures: Path, scripts: Path = SCRIPTS, style: Path | None = None) -> None:
    """Draw all figures from tables, on all processors of this machine.

    Raises RecordError if one cannot be written.
    """
    from campaign.analysis.tables.io import read

    forked(_drawing(read(tables), figures, scripts, style))


def write_page(made: Results, out: Path) -> None:
    """Draw the figures of results from their tables, and write the recommendation and the page."""
    from campaign.analysis.tables.io import read

    tables = read(made.tables)
    _draw_all(tables, made)
    _render(tables, made.figures, out)


def _draw_all(tables: Tables, made: Results) -> None:
    forked([partial(_recommend, tables, made.recommendation), *_drawing(tables, made.figures)])


def _drawing(
    tables: Tables, figures: Path, scripts: Path = SCRIPTS, style: Path | None = None
) -> list[Callable[[], None]]:
    """Return one task per figure that draws it and writes its files."""
    from campaign.report.figure import all_figures, data_of

    figures.mkdir(parents=True, exist_ok=True)
    data = data_of(tables, style)
    # In the page's order the largest come early, so that no processor is left with one of them at the end.
    return [partial(_draw, figure, data, figures) for figure in all_figures(scripts).values()]


def forked(parts: Sequence[Callable[[], None]], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Run all tasks on all processors of this machine, in forked processes that inherit imports and data.

    Args:
        tasks: functions to run.
        concurrent_task: function that runs in this process until the tasks end.
    """
    workers = max(1, min(len(parts), len(os.sched_getaffinity(0))))
    gc.freeze()  # objects of the parent stay alive, so the garbage collector can skip them
    with ProcessPoolExecutor(workers, get_context("fork"), _begin, (parts,)) as pool:
        done = pool.map(_run, range(len(parts)))
        meanwhile()
        for _ in done:
            pass


def _draw(figure: Figure, data: FigureData, directory: Path) -> None:
    from campaign.report.figure import write

    with _pdf_beside(directory / figure.name, figure.title, data):
        write(figure, data, directory)


@contextmanager
def _pdf_beside(path: Path, title: str, data: FigureData) -> Iterator[None]:
    """Save a PDF of the figure that is drawn inside the context, unless there are very many cells.

    path: path of the figure's files, without suffix. Raises RecordError if one of them cannot be written.
    """
    from campaign.common.errors import convert_os_error
    from campaign.report.plot import AGAIN_CELLS, PAGE, drawn_for, page

    try:
        path.with_suffix(".pdf").unlink(missing_ok=True)
        with drawn_for(page(path, title) if len(data.cells) <= AGAIN_CELLS else PAGE):
            yield
    except OSError as error:
        raise convert_os_error(error, path.parent) from error


_parts: Sequence[Callable[[], None]]


def _begin(parts: Sequence[Callable[[], None]]) -> None:
    global _parts
    _parts = parts


def _run(number: int) -> None:
    _parts[number]()


def write_recommendation(tables: Path, directory: Path) -> None:
    """Write recommendation.json (`recommendation/2`) from tables. Raises RecordError if that fails."""
    from campaign.analysis.tables.io import read

    _recommend(read(tables), directory)


def _recommend(tables: Tables, directory: Path) -> None:
    from campaign.analysis.recommend.advise import advise
    from campaign.analysis.recommend.objectives import REPORT
    from campaign.common.errors import convert_os_error
    from campaign.report.sections.recommendation import FILE

    words = json.dumps(advise(tables, REPORT).model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_text(words + "\n", encoding="utf-8")
    except OSError as error:
        raise convert_os_error(error, directory) from error


def render_report(tables: Path, figures: Path, out: Path, scripts: Path = SCRIPTS) -> None:
    """Write the page from tables, figures, and the recommendation next to the figures.

    The recommendation is computed if there is none.
    """
    from campaign.analysis.tables.io import read

    _render(read(tables), figures, out, scripts)


def _render(known: Tables, figures: Path, out: Path, scripts: Path = SCRIPTS) -> None:
    from campaign.analysis.published.claims import with_claims
    from campaign.analysis.recommend.advise import advise
    from campaign.analysis.recommend.objectives import REPORT
    from campaign.report.figure import figure_names
    from campaign.report.page import assemble, read_drawings, write_report
    from campaign.report.sections.recommendation import read_recommendation

    drawings = read_drawings((figures / f"{name}.svg", figures / f"{name}.json") for name in figure_names(scripts))
    advice = read_recommendation(figures.parent / "recommendation") or advise(known, REPORT)
    write_report(out, assemble(known.runs, known.cells, known.leases, with_claims(known), drawings, advice))


@contextmanager
def figures_of(results: Results) -> Iterator[Path]:
    """Yield the directory of the figures of results, with the recommendation next to it.

    If there are no figures, as after the extraction of an archive, they are drawn from the tables into a temporary directory.
    """
    if results.figures.is_dir():
        yield results.figures
        return
    from campaign.analysis.tables.io import read

    with TemporaryDirectory(prefix="campaign-report-") as scratch:
        made = Results.from_directory(Path(scratch))
        _draw_all(read(results.tables), made)
        yield made.figures
