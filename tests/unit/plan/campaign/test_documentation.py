from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from campaign.common.accelerators import ACCELERATORS
from campaign.common.paths import CONFIG_DIRECTORY
from campaign.fabrics import load_fabric_kinds
from campaign.plan.campaign.json_schemas import NOUNS, SUBJECTS, build_options_schema, build_schema
from campaign.plan.campaign.load import validate
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.cell import AXES
from campaign.spec.yaml_file import parse_yaml, read_yaml
from campaign.workloads import WORKLOADS, load_workload_class
from campaign.workloads.command_template import RUN_VALUES
from campaign.workloads.parsers import PARSERS
from campaign.workloads.trainer.model_catalog import MODELS
from docs import generate
from tests.campaign_files import write_files
from tests.docs.pages import EXAMPLES

SHIPPED = [
    *(
        (path, "campaign")
        for path in [CONFIG_DIRECTORY / "campaign.yaml", *sorted((CONFIG_DIRECTORY / "campaigns").glob("*.yaml"))]
    ),
    *((path, "system") for path in sorted((CONFIG_DIRECTORY / "systems").glob("*.yaml"))),
    *((path, "workload") for path in sorted((CONFIG_DIRECTORY / "workloads").glob("*.yaml"))),
]


def test_generated_files_are_up_to_date() -> None:
    assert generate.main(["--check"]) == 0, f"files are out of date; run: {generate.COMMAND}"


def page(*names: str) -> str:
    """Pages of the reference as they would be made now."""
    return "\n".join(generate.with_parts(generate.REFERENCE / f"{name}.md") for name in names)


KEYS = ("configuration", "campaign-file", "system-file", "fabric-options", "workload-file", "import-map")


@pytest.mark.parametrize(("path", "noun"), SHIPPED, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_shipped_files_are_valid_and_name_their_schema(path: Path, noun: str) -> None:
    validate(read_yaml(path), SUBJECTS[noun][0], None if noun == "campaign" else path.stem)
    jsonschema.Draft202012Validator(build_schema(noun)).validate(yaml.safe_load(path.read_text()))
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve().name == f"{noun}.schema.json"
    assert (path.parent / first.partition("=")[2]).is_file()


@pytest.mark.parametrize("path", [path for path, noun in SHIPPED if noun == "campaign"], ids=lambda path: path.stem)
def test_shipped_campaigns_have_cells(path: Path) -> None:
    assert expand_matrix(load_campaign(path)).cells


def test_schemas_are_schemas_and_closed() -> None:
    for noun in NOUNS:
        schema = build_schema(noun)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        for model in _models(schema):
            assert model["additionalProperties"] is False


def _models(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield schema
        for value in schema.values():
            yield from _models(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _models(value)


@pytest.mark.parametrize(
    "schema",
    [partial(build_schema, noun) for noun in ("campaign", "system", "workload", "plan")]
    + [partial(build_options_schema, name) for name in load_fabric_kinds()],
    ids=lambda schema: schema.args[0],
)
def test_every_key_says_what_it_means(schema: Callable[[], dict[str, Any]]) -> None:
    silent = [
        key
        for model in _models(schema())
        for key, value in model["properties"].items()
        if not value.get("description") and "$ref" not in value
    ]
    assert silent in ([], ["kind"])


@pytest.mark.parametrize(
    "change", [{"batch": 4}, {"batch": [4, 8]}, {"configuration": "1x1-local"}, {"options": {"size": 3}}]
)
def test_a_scalar_and_a_list_are_both_valid_where_either_can_stand(change: dict[str, Any]) -> None:
    document = yaml.safe_load(EXAMPLES["campaign"])
    document["axes"] |= change
    jsonschema.Draft202012Validator(build_schema("campaign")).validate(document)


@pytest.mark.parametrize(
    ("noun", "example"), [*EXAMPLES.items(), *(("workload", load_workload_class(kind).example) for kind in WORKLOADS)]
)
def test_examples_are_valid(noun: str, example: str) -> None:
    file = parse_yaml(example, Path("example.yaml"))
    validate(file, SUBJECTS[noun][0])
    jsonschema.Draft202012Validator(build_schema(noun)).validate(file.data)


def test_the_examples_work_together(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    path.write_text(EXAMPLES["campaign"])
    assert len(expand_matrix(load_campaign(path)).cells) == 4 * (4 - 1)
    examples = {kind: load_workload_class(kind).example for kind in WORKLOADS}
    workloads = {kind: yaml.safe_load(example)["name"] for kind, example in examples.items()}
    for kind, name in workloads.items():
        (tmp_path / "workloads" / f"{name}.yaml").write_text(examples[kind])
    system = yaml.safe_load(EXAMPLES["system"])["name"]
    (tmp_path / "systems" / f"{system}.yaml").write_text(EXAMPLES["system"])
    document = {
        "name": "all",
        "system": system,
        "configurations": [{"attach": ["local", "fabric"]}],
        "axes": {"workload": [*workloads.values()]},
    }
    path.write_text(yaml.safe_dump(document))
    assert len(expand_matrix(load_campaign(path)).cells) == 2 * len(WORKLOADS)


def test_the_reference_names_every_key_model_adapter_and_placeholder() -> None:
    text = page(*KEYS)
    schemas = [build_schema(noun) for noun in ("campaign", "system", "workload")]
    keys = {key for schema in schemas for model in _models(schema) for key in model["properties"]}
    for name in {*keys, *MODELS, *AXES}:
        assert f"`{name}`" in text
    for name in (*AXES, *RUN_VALUES):
        assert f"`{{{name}}}`" in text
    for name in (*load_fabric_kinds(), *WORKLOADS):
        assert re.search(rf"^#+ {name}$", text, re.MULTILINE)


def test_tables_are_whole() -> None:
    lines = page(*KEYS).splitlines()
    for above, line in itertools.pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", above)) == len(re.findall(r"(?<!\\)\|", line)), line


def test_check_fails_and_names_the_command_when_something_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "plan.schema.json"
    monkeypatch.setattr(generate, "pages", lambda: {schema: "new"})
    for text in (None, "old"):
        if text is not None:
            schema.write_text(text)
        assert generate.main(["--check"]) == 1
        assert capsys.readouterr().err == f"{schema} is out of date; run: make docs\n"
        assert generate.main([]) == 0
        assert (schema.read_text(), generate.main(["--check"])) == ("new", 0)


def test_only_what_stands_between_the_marks_of_a_page_is_made(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("Before.\n<!-- begin: parsers -->\nold\n<!-- end: parsers -->\nAfter, `old`.\n")
    made = generate.with_parts(path)
    assert made.startswith("Before.\n<!-- begin: parsers -->\n\n| `parser` | Meaning |\n")
    assert made.endswith("|\n\n<!-- end: parsers -->\nAfter, `old`.\n")


def test_types_of_keys_are_those_of_their_models() -> None:
    text = page(*KEYS)
    assert text.count("one of [the adapters]") == 1  # `fabric` of a system
    assert "| `hosts` | whole number, 1 to 4096; one or a list | `1` |" in text
    assert "| `url` | not given |" in text
    assert "name of a variable → text or `{from: environment}`" in text
    assert not [line for line in text.splitlines() if re.match(r"\| `\w+` \| *`?`? *\|", line)]


def test_the_example_of_the_usage_page_is_the_example_of_the_reference() -> None:
    assert f"```yaml\n{EXAMPLES['campaign']}```" in (CONFIG_DIRECTORY / "README.md").read_text(encoding="utf-8")


def test_the_status_tables_name_every_entry_of_the_registries() -> None:
    fabrics = page("fabrics").splitlines()
    for name, adapter in load_fabric_kinds().items():
        row = next(line for line in fabrics if line.startswith(f"| [`{name}`]"))
        assert adapter.unverified[1:] in row
    accelerators = page("accelerators")
    for kind, each in ACCELERATORS.items():
        assert f"| `{kind}` | {each.title} |" in accelerators
        assert each.unverified[1:] in accelerators
    workloads = page("workloads")
    for name in (*WORKLOADS, *PARSERS, *(path.stem for path in (CONFIG_DIRECTORY / "workloads").glob("*.yaml"))):
        assert f"`{name}`" in workloads
