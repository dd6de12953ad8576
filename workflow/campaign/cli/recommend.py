"""`campaign recommend`: what to build."""

from __future__ import annotations

from pathlib import Path

import click

from campaign import wording
from campaign.cli.options import cells_option, format_option, output_option, results_option, tables_argument
from campaign.cli.terminal import TextTable, say, show
from campaign.errors import ConfigError
from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.document import RecommendationAnswer, RecommendationDocument, RecommendedChoice
from campaign.insight.recommend.objectives import asked
from campaign.report.write import write_recommendation
from campaign.statistics.comparable_cells import option_columns


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
@output_option(
    "Write what the report shows into this directory: recommendation.json, and predicted against measured as .svg, .pdf and .csv. "
    "The source must then be a results directory; objectives and constraints are those of the report.",
    file_okay=False,
)
def recommend(
    source: Path, results: Path, where: str | None, style: str, output: Path | None, **narrowed: tuple[str, ...]
) -> None:
    """Recommend what to build, from measured cells and from model predictions for other shapes of the same pool.

    Each answer lists ties, what is not told apart, extrapolation, and the cells that support it.

    \b
    campaign recommend --objective cheapest-within:5% --constraint "hosts == 1"
    campaign recommend demo.zip --objective mix:bert-nano=0.7,resnet50w16=0.3 --constraint "devices <= 4"
    """
    if output:
        if where or any(narrowed.values()) or not (source / "tables").is_dir():
            raise ConfigError(
                f"{source}: --output takes a results directory with tables/, and no option that narrows it"
            )
        write_recommendation(source / "tables", output)
        return
    from campaign.archive.open_results import tables_from  # a report needs no campaign file

    tables = tables_from(source, results, where)
    measured = tables.cells.loc[tables.cells["n_ok"] > 0, "workload"].unique()
    options = [name.removeprefix("option_") for name in option_columns(tables.cells)]
    wishes = narrowed["objectives"], narrowed["constraints"], narrowed["workloads"]
    advice = advise(tables, asked(*wishes, [str(name) for name in measured], options))
    if style == "json":
        click.echo(advice.document.model_dump_json(indent=1))
    else:
        _show(advice.document)


def _show(document: RecommendationDocument) -> None:
    """Print every answer with what it rests on, then how accurate the models are."""
    for objective in dict.fromkeys(answer.objective for answer in document.answers):
        answers = [answer for answer in document.answers if answer.objective == objective]
        title = f"{objective}: {answers[0].meaning}"
        show(
            TextTable(
                title,
                ["For", "Build", "Gives", "As good, or perhaps", "Rests on"],
                list(map(_row, answers)),
                ruled=True,
            )
        )
    beyond = [each.beyond for each in document.answers if each.beyond]
    for said in dict.fromkeys(f"{each.configuration} ({each.words}): {each.extrapolated}" for each in beyond):
        say(f"Beyond what was measured, {said}.")
    if document.constraints:
        say(f"Constraints: {', '.join(document.constraints)}.")
    for model in document.models:
        say(f"Model of {model.sentence}")
    for sentence in document.basis:
        say(sentence, "dim")


def _row(answer: RecommendationAnswer) -> tuple[str, ...]:
    further = ""
    if beyond := answer.beyond:
        further = f"\nBeyond what was measured: {beyond.short}"
    if (choice := answer.choice) is None:
        return answer.about, "no answer", f"{answer.sentences[0]}{further}", "", ""
    how = choice.how if choice.measured else "predicted, not measured"
    memory = "; whether the batch fits into memory is unknown" if choice.memory == "unknown" else ""
    evidence = [f"{e.words} ({e.cell_id[:8]}, {wording.plural(e.runs, 'run')})" for e in choice.evidence]
    if (rest := choice.evidence_total - len(evidence)) > 0:
        evidence.append(f"{rest} more")
    said = f"{choice.said}, {how}{memory}{further}"
    return answer.about, _built(choice), said, answer.beside(), "; ".join(evidence)


def _built(choice: RecommendedChoice) -> str:
    return f"{choice.configuration} ({choice.words}), {choice.batches}"
