"""What Slurm users say to Snakemake holds for the campaign's allocations, or is refused in one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from campaign.config.snakemake_config import with_resources
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
