"""`campaign predict`: what a campaign would measure, simulated."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from campaign import wording
from campaign.cli.options import cells_option, format_option, output_option, source_options
from campaign.cli.terminal import TextTable, say, show
from campaign.errors import unwritable
from campaign.paths import Results

if TYPE_CHECKING:  # it brings pandas
    from campaign.insight.prediction import PredictedCell

_COLUMNS = ("configuration", "workload", "batch", "precision", "samples/s", "80 %", "step", "memory", "fits")
_RIGHT = ("batch", "samples/s", "step", "memory")


@click.command()
@source_options()
@cells_option
@click.option(
    "--as-replay",
    is_flag=True,
    help="Predict what a replay on this machine would measure: rings, emulated links, and no cost beside both.",
)
@click.option("--no-report", is_flag=True, help="Only print the table; write nothing.")
@output_option("Directory for tables/, figures/ and report.html. Default: predicted/ in the campaign's results.")
@format_option("table", "json", "tsv")
def predict(
    campaign: Path,
    results: Path,
    where: str | None,
    as_replay: bool,
    no_report: bool,
    output: Path | None,
    style: str,
) -> None:
    """Predict what a campaign would measure, without a device, and write the report as if it had been measured.

    A model of a training step simulates every cell. The table has the median and the interval that holds 80 % of what may come
    out, as far as the inputs are known: compute times, rates of links, and costs beside both. It also says whether a batch fits
    into memory. Programs of unknown inside have no prediction.

    \b
    campaign predict config/campaigns/falcon-predicted.yaml
    campaign predict --where 'ranks == 8' --no-report --format tsv
    """
    from campaign.config.resolve import load_campaign
    from campaign.insight import prediction  # loads pandas

    loaded = load_campaign(campaign, results=results)
    predicted = prediction.predict(loaded, where, replayed=as_replay)
    if style == "table":
        _show(predicted.cells, predicted.assumed)
    elif style == "json":
        click.echo(json.dumps({"campaign": loaded.name, "cells": list(map(_document, predicted.cells))}, indent=1))
    else:
        click.echo("\n".join("\t".join(row) for row in (_COLUMNS, *map(_row, predicted.cells))))
    if no_report:
        return
    from campaign.report.write import write_page
    from campaign.tables.io import write

    made = Results.at(output or Results(results, loaded.name).directory / "predicted")
    try:
        write(predicted.tables, made.tables)
    except OSError as error:
        raise unwritable(error, made.tables) from error
    write_page(made, made.report)
    click.echo(made.report, err=style != "table")


def _show(cells: Sequence[PredictedCell], assumed: Mapping[str, float]) -> None:
    """Print a row for each cell, how many the model does not know, and what makes the intervals wide."""
    show(TextTable("Predicted", list(_COLUMNS), list(map(_row, cells)), list(_RIGHT)), most=None)
    known = [each for each in cells if each.throughput_per_s]
    untold = dict.fromkeys(each.cell.configuration.device for each in known if each.memory_limit_mib is None)
    full = sum(each.lacks_memory for each in known)
    words = [f"{wording.plural(len(known), 'cell')} predicted, none measured"]
    words += [f"{full} probably do not fit into memory"] if full else []
    words += [f"{len(cells) - len(known)} of programs that the model does not know"] if len(known) < len(cells) else []
    say(f"{'; '.join(words)}.")
    if untold:
        say(f"Whether batches fit is unknown: the system file has no memory_gib of {wording.some(untold)}.")
    for factor in sorted(set(assumed.values())):
        named = wording.some([name for name, each in assumed.items() if each == factor], 4)
        say(f"Nobody measured how long these compute; it is known up to a factor of {factor:g}: {named}.")
    if assumed:
        peak = ", and so does peak_tflops of its device in the system file" if max(assumed.values()) > 10 else ""
        say(f"A trace of a workload makes that narrower{peak}.")


def _row(each: PredictedCell) -> tuple[str, ...]:
    cell = each.cell
    options = "".join(f", {name}: {value}" for name, value in cell.options.items())
    named = (cell.configuration.name, f"{cell.workload}{options}", str(cell.batch), cell.precision)
    if each.throughput_per_s is None or each.step_s is None:
        return (*named, "unknown", "", "", "", "")
    rate, low, high = each.throughput_per_s
    return (
        *named,
        wording.number(rate, 4),
        f"{wording.number(low, 3)} to {wording.number(high, 3)}",
        f"{wording.number(1e3 * each.step_s[0], 4)} ms",
        "" if math.isnan(each.memory_mib) else f"{each.memory_mib / 1024:.1f} GiB",
        _fits(each.fits),
    )


def _fits(share: float | None) -> str:
    """Whether a batch fits: 'yes', 'no', 'unknown', or the share of what may come out in which it does."""
    if share is None:
        return "unknown"
    return "yes" if share > 0.95 else "no" if share < 0.05 else f"{100 * share:.0f} %"


def _document(each: PredictedCell) -> Mapping[str, Any]:
    nothing, parts = (None, None, None), ("", "_low", "_high")
    return {
        "cell_id": each.cell.id,
        **{name: value for name, value in each.cell.axes().items() if name != "layout"},
        **{
            f"throughput_per_s{part}": value
            for part, value in zip(parts, each.throughput_per_s or nothing, strict=True)
        },
        **{f"step_s{part}": value for part, value in zip(parts, each.step_s or nothing, strict=True)},
        "memory_mib": None if math.isnan(each.memory_mib) else each.memory_mib,
        "memory_limit_mib": each.memory_limit_mib,
        "fits": each.fits,
    }
