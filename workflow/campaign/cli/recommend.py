"""`campaign recommend`: what to build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from campaign.cli.options import cells_option, format_option, results_option, tables_argument

if TYPE_CHECKING:
    from campaign.insight.recommend.document import Answer, Choice, RecommendationDocument


@click.command()
@tables_argument
@results_option
@cells_option
@click.option(
    "--objective",
    "objectives",
    metavar="OBJECTIVE",
    multiple=True,
    help="throughput, time, throughput-per-device-hour, throughput-per-joule, cheapest-within:5% (of the fastest), or "
    "mix:a=0.7,b=0.3 (shares of time of workloads a and b). May be repeated. Default: those of the report.",
)
@click.option(
    "--constraint",
    "constraints",
    metavar="EXPRESSION",
    multiple=True,
    help='Condition on the shape and its results, e.g. "devices <= 8 and hosts == 1", "memory fits", "not extrapolated", '
    '"throughput_per_s >= 1000". May be repeated.',
)
@click.option("--workload", "workloads", metavar="NAME", multiple=True, help="Only this workload. May be repeated.")
@format_option("table", "json")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write what the report shows into this directory: recommendation.json, and predicted against measured as .svg and .csv. "
    "The source must then be a results directory; objectives and constraints are those of the report.",
)
def recommend(
    source: Path,
    results: Path,
    where: str | None,
    objectives: tuple[str, ...],
    constraints: tuple[str, ...],
    workloads: tuple[str, ...],
    style: str,
    output: Path | None,
) -> None:
    """Recommend what to build, from measured cells and from model predictions for other shapes of the same pool.

    Each answer lists ties, extrapolation, and the cells that support it.

    \b
    campaign recommend --objective cheapest-within:5% --constraint "hosts == 1"
    campaign recommend demo.zip --objective mix:bert-nano=0.7,resnet50w16=0.3 --constraint "devices <= 4"
    """
    if output:
        from campaign.errors import ConfigError
        from campaign.report.write import write_recommendation

        if where or objectives or constraints or workloads or not (source / "tables").is_dir():
            raise ConfigError(
                f"{source}: --output takes a results directory with tables/, and no option that narrows it"
            )
        write_recommendation(source / "tables", output)
        return
    from campaign.archive.open_results import tables_from
    from campaign.insight.recommend import advise, asked
    from campaign.statistics.comparable_cells import option_columns

    tables = tables_from(source, results, where)
    measured = tables.cells.loc[tables.cells["n_ok"] > 0, "workload"].unique()
    options = [name.removeprefix("option_") for name in option_columns(tables.cells)]
    advice = advise(tables, asked(objectives, constraints, workloads, [str(name) for name in measured], options))
    if style == "json":
        click.echo(advice.document.model_dump_json(indent=1))
    else:
        show_recommendation(advice.document)


def show_recommendation(document: RecommendationDocument) -> None:
    """Print every answer with what it rests on, then how accurate the models are."""
    from campaign.cli.terminal import Table, say, show

    for objective in dict.fromkeys(answer.objective for answer in document.answers):
        answers = [answer for answer in document.answers if answer.objective == objective]
        title = f"{objective}: {answers[0].meaning}"
        show(Table(title, ["For", "Build", "Gives", "Tied with", "Rests on"], list(map(_row, answers)), ruled=True))
    if document.constraints:
        say(f"Constraints: {', '.join(document.constraints)}.")
    for model in document.models:
        say(f"Model of {model.sentence}")
    for sentence in document.basis:
        say(sentence, "dim")


def _row(answer: Answer) -> tuple[str, ...]:
    beyond = answer.beyond
    further = (
        f"Beyond what was measured: {_built(beyond)}, {beyond.said}. Extrapolated: {beyond.extrapolated}"
        if beyond
        else ""
    )
    if answer.choice is None:
        return answer.about, "no answer", "\n".join([answer.sentences[0], *([further] if further else [])]), "", ""
    choice = answer.choice
    how = "measured" if choice.measured else "predicted, not measured"
    memory = "; whether the batch fits into memory is unknown" if choice.memory == "unknown" else ""
    said = f"{choice.said}, {how}{memory}"
    return (
        answer.about,
        _built(choice),
        f"{said}\n{further}" if further else said,
        answer.tied_words(),
        _evidence(choice),
    )


def _built(choice: Choice) -> str:
    return f"{choice.configuration} ({choice.words}), {choice.batches}"


def _evidence(choice: Choice) -> str:
    from campaign import wording

    shown = "; ".join(
        f"{each.words} ({each.cell_id[:8]}, {wording.plural(each.runs, 'run')})" for each in choice.evidence
    )
    rest = choice.evidence_total - len(choice.evidence)
    return f"{shown}; {rest} more" if rest > 0 else shown
