from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from campaign.cli.options import add_request_options
from campaign.common.errors import ConfigError
from campaign.plan.request import DEFAULT_CAMPAIGN, OPTIONS, PlanRequest, list_key_meanings, request_from_config
from campaign.spec.system_file import SlurmOptions

REQUESTS = [
    PlanRequest(Path(DEFAULT_CAMPAIGN), Path("results")),
    PlanRequest(
        Path("a.yaml"), Path("there"), "workload == 'bert' and 'x'", "driver-580", "host[1-2],host5", None, "slurm",
        SlurmOptions(partition="gpu"), True, "best", (Path(), Path("/tmp")),
    ),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_survives_the_command_line_and_the_keys_of_config(request_: PlanRequest) -> None:
    keys = dict(text.split("=", 1) for text in request_.to_snakemake_config())
    found = request_from_config(keys)
    where = request_.where and f"({request_.where})"  # Snakemake takes quotes away from the ends of a value
    assert found == PlanRequest(**{**vars(request_), "where": where})
    asked = []
    command = click.command()(add_request_options("selection", "costs", "allocations")(asked.append))
    run = CliRunner().invoke(command, request_.to_arguments())
    assert run.exit_code == 0, run.output
    assert asked == [request_]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "campain",
            "x",
            "campain: there is no such key; the keys are: campaign: Path of the campaign file. Default: ",
        ),
        ("until", "fast", "--until: 'fast' is not allowed; the only value is best"),
        ("launcher", "pbs", "launcher: 'pbs' is not allowed; use local or slurm"),
        ("skip_implied", "maybe", "skip_implied: 'maybe' is not allowed; use yes or no"),
        ("results", 7, "results: YAML reads the value in the config file as 7, a number or truth value"),
        ("where", True, "where: YAML reads the value in the config file as True"),
        ("learn_from", 1.5, "learn_from: YAML reads the value in the config file as 1.5"),
        ("slurm", "{", "--slurm: '{' is not JSON"),
        ("slurm", {"partitoin": "x"}, "the allowed keys are: partition, account"),
    ],
)
def test_what_snakemake_is_given_is_typed_at_the_door(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        request_from_config({key: value})
    assert words in str(told.value)


def test_nothing_and_yes_leave_it_to_the_campaign() -> None:
    nothing = PlanRequest(Path(DEFAULT_CAMPAIGN), Path("results"))
    assert (
        request_from_config({key: None for key, _ in list_key_meanings()} | {"skip_implied": "yes", "where": ""})
        == nothing
    )
    assert request_from_config({"learn_from": ["a", "b"]}).learn_from == (Path("a"), Path("b"))
    assert all(option.meaning.endswith(".") for option in OPTIONS.values())
