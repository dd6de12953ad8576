"""`campaign reproduce`: an archive's campaign, run again by somebody else, and its claims held against what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from campaign.cli.options import PATH, output_option, results_option
from campaign.cli.terminal import TextTable, say, show, show_rows, warn
from campaign.errors import ConfigError

if TYPE_CHECKING:
    from campaign.config.load import LoadedFile
    from campaign.config.system_file import SystemFile


@click.command()
@click.argument("archive", type=PATH, metavar="ARCHIVE")
@click.option("--system", metavar="NAME|FILE", help="Another system to run on: a name, or the path of a system file.")
@click.option(
    "--against",
    "again",
    type=PATH,
    metavar="CAMPAIGN",
    help="Hold the archive's claims against this campaign (file, archive, or results directory), and write a page.",
)
@results_option
@output_option(
    "Directory of the campaign's files. Default: <campaign>-again. With --against, the page: <archive>.claims.html."
)
def reproduce(archive: Path, system: str | None, again: Path | None, results: Path, output: Path | None) -> None:
    """Make an archive's campaign run here; once it is measured, hold the archive's claims against it.

    Without --against, writes the campaign, system and workload files, and the programs that the archive holds. What
    does not fit the system is left out and listed with the reason. The new campaign has a name of its own, so it
    measures everything.

    With --against, each ratio that the archive's answers state is inside or outside the prediction interval that the
    archive's spread of compositions gives for a repetition, or not comparable, with the reason. Ratios are of cells,
    software options among them, and of speed-ups by batch.

    \b
    campaign reproduce published.zip --system mine
    campaign run published-again/config/campaign.yaml
    campaign reproduce published.zip --against published-again/config/campaign.yaml
    """
    if again is None:
        _write(archive, system, results, output)
    elif system:
        raise ConfigError("--system is of the first step, which writes the campaign; leave it out with --against")
    else:
        _hold(archive, again, results, output or archive.with_suffix(".claims.html"))


def _write(archive: Path, system: str | None, results: Path, output: Path | None) -> None:
    from campaign.archive.read import opened
    from campaign.archive.reproduction import SUFFIX, keep_configurations, write_campaign
    from campaign.plan.dag import read_plan
    from campaign.plan.request import PlanRequest

    theirs = _system(system) if system else None
    with opened(archive) as there:
        path = write_campaign(there, output or Path(f"{there.campaign.name}{SUFFIX}"), theirs)
    plan = read_plan(PlanRequest(path, results), allow_unfit=True)
    fitting = [each.name for each in plan.campaign.configurations if each.name not in plan.unfit]
    left_out = [*plan.unfit.items(), *((each.shape, each.why) for each in plan.impossible)]
    show(
        TextTable("Does not fit, left out", ["configuration", "why"], left_out),
        TextTable(
            "Cells left out", ["rule", "why", "cells"], [(r.rule, r.why, r.cells) for r in plan.removed], ["cells"]
        ),
    )
    if not fitting:
        raise ConfigError(f"{path}: no configuration of the archive fits the system")
    if plan.unfit:
        keep_configurations(path, fitting)
        plan = read_plan(PlanRequest(path, results))
    warn(plan.warnings)
    say(f"{plan.cell_count} cells, {plan.runs} runs in {len(plan.leases)} leases; next: campaign run {path}")


def _system(text: str) -> LoadedFile[SystemFile]:
    """The system file that a name or a path is of."""
    from campaign.config.load import LoadedFile, load_named, validate
    from campaign.config.system_file import SystemFile
    from campaign.config.yaml_file import read_yaml

    if text.endswith((".yaml", ".yml")):
        source = read_yaml(Path(text))
        return LoadedFile(validate(source, SystemFile, Path(text).stem), source)
    return load_named(SystemFile, text, Path("config/campaign.yaml"), "--system")


def _hold(archive: Path, again: Path, results: Path, page: Path) -> None:
    import numpy as np

    from campaign.archive.open_results import tables_from
    from campaign.insight.compare import compare
    from campaign.insight.compare.claims import OUTSIDE, held_against, summary
    from campaign.report.compare_page import CLAIM_HEADINGS, claim_row, compare_page
    from campaign.report.page import write_report

    base, other = tables_from(archive, results), tables_from(again, results)
    held = held_against(base, other)
    held = held.iloc[np.argsort(held["verdict"] != OUTSIDE, kind="stable")]
    write_report(page, compare_page(compare(base, other), held=held))
    rows = [dict(zip(CLAIM_HEADINGS, claim_row(row), strict=True)) for row in held.to_dict("records")]
    show_rows("Claims of the archive", rows)
    say(summary(held))
    click.echo(page)
