"""Commands that make knowledge of measurements: `campaign recommend` and `campaign compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from campaign.cli.options import cells_option, format_option, results_option, tables_argument

if TYPE_CHECKING:
    from campaign.config.published_file import ReferenceSet
    from campaign.tables.io import Tables

_SHOWN = 20  # what breaks a rule, on the terminal


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
    "mix:a=0.7,b=0.3 (shares of time of workloads a and b). May be given several times. Default: those of the report.",
)
@click.option(
    "--constraint",
    "constraints",
    metavar="EXPRESSION",
    multiple=True,
    help='Over the shape and what it gives, e.g. "devices <= 8 and hosts == 1", "memory fits", "not extrapolated", '
    '"throughput_per_s >= 1000". May be given several times.',
)
@click.option(
    "--workload", "workloads", metavar="NAME", multiple=True, help="Only this one. May be given several times."
)
@format_option("table", "json")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for what the report shows of it: recommendation.json, and predicted against measured as .svg and .csv. "
    "SOURCE is then a results directory, and objectives and constraints are those of the report.",
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
    """Say what to build: of what was measured, and of what a model predicts for other shapes of the same pool.

    Each answer names its ties, what is extrapolated, and the cells that it rests on.

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
    from campaign.archive.source import tables_from
    from campaign.cli.print_recommendation import print_recommendation
    from campaign.insight.recommend import advise, asked
    from campaign.statistics.comparable_cells import option_columns

    tables = tables_from(source, results, where)
    measured = tables.cells.loc[tables.cells["n_ok"] > 0, "workload"].unique()
    options = [name.removeprefix("option_") for name in option_columns(tables.cells)]
    advice = advise(tables, asked(objectives, constraints, workloads, [str(name) for name in measured], options))
    if style == "json":
        click.echo(advice.document.model_dump_json(indent=1))
    else:
        print_recommendation(advice.document)


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@results_option
@click.option("--baseline", metavar="NAME", help="Which of the two the other is held against. Default: A.")
@click.option(
    "--fail-on",
    "rules",
    metavar="RULE",
    multiple=True,
    help="Exit with 1 where this holds: 'throughput < -5%', any metric such as 'energy_per_sample_j > 10%', or 'state' (no longer "
    "measured); with published claims: 'differs' (what differs under other conditions or with another program is told and does "
    "not count). May be given several times.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write a page (HTML).")
@format_option("table", "json")
def compare(
    first: str,
    second: str,
    results: Path,
    baseline: str | None,
    rules: tuple[str, ...],
    output: Path | None,
    style: str,
) -> None:
    """Hold campaign B against campaign A, or a campaign against published claims.

    A and B: campaign files, archives, or results directories; one of them may be a set of published claims (falcon, faster,
    bitfusion, or the path of such a file). Cells are matched by what they are: shape, workload, batch, precision and options;
    only what is left by names, and that is said. Changes come with 95 % intervals, paired by block where runs share one, and
    p-values adjusted by Holm over all cells.

    \b
    campaign compare before.zip after.zip --fail-on "throughput < -5%" --fail-on state --output changes.html
    campaign compare demo.zip falcon
    """
    from campaign.errors import ConfigError

    one, two = _compared(first, results), _compared(second, results)
    if not isinstance(one, tuple):
        one, two, first, second = two, one, second, first
    if not isinstance(one, tuple):
        raise ConfigError(f"{first} and {second} are both published; one of the two has to be measured")
    if not isinstance(two, tuple):
        _beside_published(one[0], two, rules, output, style)
        return
    if baseline is not None and baseline not in (known := ("A", first, one[0].name)):
        if baseline not in ("B", second, two[0].name):
            raise ConfigError(
                f"--baseline {baseline}: is neither of the two; there are: {', '.join((*known, 'B', second))}"
            )
        one, two = two, one
    _held(one[0], two[0], rules, output, style)


def _compared(text: str, results: Path) -> tuple[Tables] | ReferenceSet:
    """The tables of a source, or the set of published claims that a text names."""
    from campaign.archive.source import tables_from
    from campaign.config.published_file import is_set, load
    from campaign.config.yaml_file import read_yaml

    path = Path(text)
    of_claims = path.suffix in (".yaml", ".yml") and path.is_file() and "claims" in read_yaml(path).data
    if (not path.exists() and is_set(text)) or of_claims:
        return load(text)
    return (tables_from(path, results),)


def _held(base: Tables, other: Tables, rules: tuple[str, ...], output: Path | None, style: str) -> None:
    from campaign.cli.print_comparison import print_comparison
    from campaign.insight.compare import compare as held_against
    from campaign.insight.compare import document, parse_rule
    from campaign.report.compare_page import compare_page

    comparison = held_against(base, other, [parse_rule(rule) for rule in rules])
    if output:
        _write(output, compare_page(comparison))
    if style == "json":
        click.echo(json.dumps(document(comparison), indent=1))
    else:
        print_comparison(comparison)
    if not rules:
        return
    for each in comparison.broken[:_SHOWN]:
        click.secho(f"fails: {each.rule}: {each.where}: {each.change}", err=True, fg="red")
    if len(comparison.broken) > _SHOWN:
        click.secho(f"fails: {len(comparison.broken) - _SHOWN} more times", err=True, fg="red")
    if not comparison.compared and not comparison.broken:
        click.secho("fails: no cell was measured in both, so there is nothing that could pass", err=True, fg="red")
    if comparison.broken or not comparison.compared:
        raise click.exceptions.Exit(1)


def _beside_published(
    tables: Tables, names: ReferenceSet, rules: tuple[str, ...], output: Path | None, style: str
) -> None:
    from campaign.cli.print_comparison import print_claims
    from campaign.errors import ConfigError
    from campaign.insight.published.claims import held_against
    from campaign.report.compare_page import claims_page

    if unknown := [rule for rule in rules if rule.strip() != "differs"]:
        raise ConfigError(f"--fail-on '{unknown[0]}': with published claims there is one rule: 'differs'")
    said = held_against([names], tables)
    if output:
        _write(output, claims_page(tables.name, said))
    if style == "json":
        click.echo(json.dumps(said, indent=1, ensure_ascii=False))
    else:
        print_claims(said)
    if rules:
        _gate_of_claims(said["claims"])


def _gate_of_claims(claims: Sequence[Mapping[str, Any]]) -> None:
    """Exit with 1 where a claim differs under the document's own conditions; say what differs under others and does not count."""
    from campaign.wording import plural

    differing = [claim for claim in claims if claim["verdict"] == "differs"]
    broken = [claim for claim in differing if not claim["other"]]
    for claim in broken:
        click.secho(f"fails: differs: {claim['id']}: {claim['says']}: {claim['here']}", err=True, fg="red")
    if elsewhere := len(differing) - len(broken):
        one = elsewhere == 1
        click.echo(
            f"{plural(elsewhere, 'claim')} {'differs' if one else 'differ'} under other conditions or with another program, which "
            f"{'does' if one else 'do'} not count for --fail-on differs",
            err=True,
        )
    if broken:
        raise click.exceptions.Exit(1)


def _write(output: Path, page: str) -> None:
    from campaign.report.page import write_report

    write_report(output, page)
    click.echo(output, err=True)
