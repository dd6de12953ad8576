"""What Slurm users say to Snakemake holds for the campaign's allocations, or is refused in one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.cli import get_argument_parser, parse_config

from campaign.config.snakemake_config import with_resources, with_typed_texts
from campaign.errors import ConfigError


def given(words: str, *, config: dict[str, Any] | None = None, **defaults: object) -> dict[str, Any]:
    """The configuration for a command line, as Snakemake parses it."""
    arguments = words.split()
    by_rule: dict[str, dict[str, Any]] = {}
    for word in arguments:
        if ":" in word:
            rule, _, resource = word.partition(":")
            name, _, value = resource.partition("=")
            by_rule.setdefault(rule, {})[name] = SimpleNamespace(raw=value)
    settings = SimpleNamespace(
        default_resources={name: SimpleNamespace(raw=value) for name, value in defaults.items()} or None,
        overwrite_resources=by_rule,
    )
    return with_resources(settings, ["snakemake", *arguments], {}, config or {})


def test_resources_of_the_slurm_executor_are_options_of_allocations() -> None:
    words = "--profile slurm --default-resources slurm_account=abc slurm_partition=gpu runtime=90 -n"
    found = given(words, slurm_account="abc", slurm_partition="gpu", runtime=90)
    # The option replaces the profile's default resources, which say who launches.
    assert found == {"launcher": "slurm", "slurm": {"account": "abc", "partition": "gpu", "time_min": 90}}
    assert given("--profile slurm", launcher="slurm", config={"slurm": {}}) == {"launcher": "slurm", "slurm": {}}
    assert given("--profile=/a/slurm/ --default-resources", mem_mb="max(1000, 2)") == {"launcher": "slurm"}
    assert given("--profile local") == {}
    by_rule = given(
        "--set-resources one_measure:slurm_partition=wide", config={"slurm": {"account": "b", "partition": "c"}}
    )
    assert by_rule == {"slurm": {"account": "b", "partition": "wide"}}
    assert given("--set-resources tables:my_own=3 measure:at_once=2") == {}


@pytest.mark.parametrize(
    ("words", "defaults", "says"),
    [
        (
            "--default-resources slurm_extra=x",
            {"slurm_extra": "x"},
            "--default-resources slurm_extra: allocations follow",
        ),
        ("--profile mine", {"mem_mb": 4000}, "--default-resources mem_mb: allocations follow from the composition"),
        ("--default-resources runtime=1h", {"runtime": "1h"}, "runtime: '1h' is not a number of minutes, such as 90"),
        ("--set-resources tables:slurm_partition=x", {}, "tables:slurm_partition: only 'measure' uses allocations"),
        ("--set-resources measure:nodes=2", {}, "--set-resources measure: nodes: allocations follow"),
        ("--executor slurm", {}, "--executor slurm: the campaign requests allocations itself"),
        ("--executor=slurm -n", {}, "--executor slurm: the campaign requests allocations itself"),
        ("-e cluster-generic", {}, "--executor cluster-generic: the campaign requests allocations itself"),
    ],
)
def test_what_would_be_ignored_is_refused_in_one_sentence(words: str, defaults: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(words, **defaults)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["535_104", "010", "007", "1_0.5", "1e3", "nan", "True", "580", "driver-580.10", "a=b"]
)
def test_a_value_of_config_is_what_was_typed(text: str) -> None:
    """Snakemake reads 010 as 10."""
    entries = get_argument_parser().parse_args(["--config", f"version={text}", "where=batch == 1"]).config
    assert with_typed_texts(parse_config(entries), entries) == {"version": text, "where": "batch == 1"}
    # A workflow that has this one as a module may give another value.
    assert with_typed_texts({"version": 3}, entries) == {"version": 3}
    assert with_typed_texts({"version": 3}, None) == {"version": 3}


@pytest.mark.parametrize(
    "words",
    [
        "--default-resources slurm_account=010 slurm_partition=1_0",
        "--set-resources measure:slurm_account=010 measure:slurm_partition=1_0",
        "--default-resources=slurm_account=010 --set-resources=measure:slurm_partition=1_0",
    ],
)
def test_a_resource_is_what_was_typed(words: str) -> None:
    """Snakemake reads both as 10."""
    parsed = get_argument_parser().parse_args(words.split())
    settings = SimpleNamespace(
        default_resources=dict(parsed.default_resources) if parsed.default_resources else None,
        overwrite_resources=parsed.set_resources,
    )
    assert with_resources(settings, words.split(), {}, {}) == {"slurm": {"account": "010", "partition": "1_0"}}
