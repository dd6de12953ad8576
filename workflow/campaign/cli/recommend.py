"""The command `campaign recommend`: which configuration to build."""

from __future__ import annotations

import json
from pathlib import Path

import click

from campaign.analysis.recommend.advise import answer_question
from campaign.analysis.recommend.document import RecommendationAnswer, RecommendationDocument
from campaign.cli.options import build_format_option, build_output_option, cells_option, results_option, tables_argument
from campaign.cli.terminal import TextTable, print_tables, print_text
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.report.write import write_recommendation

_MAX_NAMES = 40


@click.command()
@tables_argument
@results_option
@cells_option
@click.option(
    "--objective",
    "objectives",
    metavar="OBJECTIVE",
    multiple=True,
    help="What to optimise: throughput, time, throughput-per-device-hour, throughput-per-joule, cheapest-within:5% (of the "
    "fastest), or mix:a=0.7,b=0.3 (shares of time of workloads a and b). May be repeated. Default: the report's objectives.",
)
@click.option(
    "--constraint",
    "constraints",
    metavar="EXPRESSION",
    multiple=True,
    help='Condition on the shape and its results, e.g. "devices <= 8 and hosts == 1" or "throughput_per_s >= 1000". May be '
    "repeated.",
)
@click.option("--workload", "workloads", metavar="NAME", multiple=True, help="Only this workload. May be repeated.")
@build_format_option("table", "json")
@build_output_option(
    "Directory into which the report's recommendation is written as recommendation.json. CAMPAIGN must then be a results "
    "directory, and objectives and constraints are those of the report.",
    file_okay=False,
)
def recommend(
    source: Path, results: Path, where: str | None, style: str, output: Path | None, **filters: tuple[str, ...]
) -> None:
    """Recommend what to build, from measured cells.

    Each answer lists ties, indistinguishable shapes, and the cells that support it. Shapes that the system allows but that were
    not measured are listed by name only.

    \b
    campaign recommend --objective cheapest-within:5% --constraint "hosts == 1"
    campaign recommend demo.zip --objective mix:bert-nano=0.7,resnet50w16=0.3 --constraint "devices <= 4"
    """
    if output:
        if where or any(filters.values()) or not (source / "tables").is_dir():
            raise ConfigError(
                f"{source}: --output needs a results directory with tables/, and no --where or other filter"
            )
        write_recommendation(source / "tables", output)
        return
    from campaign.report.sources import load_tables  # Imported late, because --output needs no campaign file.

    tables = load_tables(source, results, where)
    document = answer_question(tables, filters["objectives"], filters["constraints"], filters["workloads"])
    if style == "json":
        click.echo(json.dumps(json.loads(document.model_dump_json()), indent=1))
    else:
        _print_answers(document)


def _print_answers(document: RecommendationDocument) -> None:
    """Print all answers with the cells that support them, the unmeasured shapes, and the basis of the answers."""
    for objective in dict.fromkeys(answer.objective for answer in document.answers):
        answers = [answer for answer in document.answers if answer.objective == objective]
        title = f"{objective}: {answers[0].meaning}"
        print_tables(
            TextTable(
                title,
                ["For", "Build", "Result", "Equally good, or perhaps", "Evidence"],
                list(map(_format_answer, answers)),
                has_row_lines=True,
            )
        )
    if document.constraints:
        print_text(f"Constraints: {', '.join(document.constraints)}.")
    if names := document.unmeasured:
        more_text = f" and {len(names) - _MAX_NAMES} more (--format json)" if len(names) > _MAX_NAMES else ""
        print_text(
            f"The hosts and the pool also suffice for these unmeasured shapes: {', '.join(names[:_MAX_NAMES])}{more_text}."
        )
    for sentence in document.basis:
        print_text(sentence, "dim")


def _format_answer(answer: RecommendationAnswer) -> tuple[str, ...]:
    """Format an answer as a table row.

    Its cells are the question, the shape to build, its result, indistinguishable shapes, and the evidence.
    """
    if (choice := answer.choice) is None:
        return answer.about, "no answer", answer.sentences[0], "", ""
    evidence = [f"{item.words} ({item.cell_id[:8]}, {wording.pluralize(item.runs, 'run')})" for item in choice.evidence]
    return answer.about, choice.full_name, choice.said, answer.describe_alternatives(), "; ".join(evidence)
