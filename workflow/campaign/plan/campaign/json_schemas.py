"""JSON Schemas (2020-12, closed) of the files that users write and of the documents that programs read."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from campaign.fabrics import FABRICS, load_fabric_kind
from campaign.plan.campaign.import_file import ImportFile
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.fields import to_tuple
from campaign.spec.lease_plan import LeasePlan
from campaign.spec.plan import PlanDocument
from campaign.spec.published_file import ReferenceSet
from campaign.spec.race import RaceDocument
from campaign.spec.record import Record
from campaign.spec.system_file import SystemFile
from campaign.workloads import WORKLOADS, load_workload_class
from campaign.workloads.protocol import Workload

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SUBJECTS: dict[str, tuple[Any, str]] = {
    "campaign": (CampaignFile, "Campaign file (campaign/1)"),
    "system": (SystemFile, "System file (system/1)"),
    "workload": (Workload, "Workload file (workload/1)"),
    "import": (ImportFile, "Import map (import/1)"),
    "record": (Record, "Record of one run (record/1)"),
    "plan": (PlanDocument, "Plan of a campaign (plan/1)"),
    "race": (RaceDocument, "Race for the best configuration (race/1)"),
    "published": (ReferenceSet, "Published claims (published/1)"),
    "lease-plan": (LeasePlan, "Plan of one lease (lease-plan/1)"),
}
NOUNS = tuple(SUBJECTS)


class _SchemaGenerator(GenerateJsonSchema):
    """Schema generator of Pydantic with field descriptions, which also accepts a single value instead of a list of one."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if schema["function"]["function"] is not to_tuple:
            return inner
        return {"anyOf": [inner["items"], inner]}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        model_schema = super().model_schema(schema)
        texts: dict[str, str] = {}
        for model in schema["cls"].__mro__[:-2]:  # BaseModel and object have no field descriptions
            texts = {**_read_field_docstrings(model), **texts}
        for name, field in model_schema.get("properties", {}).items():
            if name in texts:
                field.setdefault("description", texts[name])
        return model_schema


@functools.cache
def _read_field_docstrings(model: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a model.

    Pydantic can read these too, but would do so in every process that imports the models.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(getattr(body, "body", ()))
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def build_schema(noun: str) -> dict[str, Any]:
    """Return the schema of one of `NOUNS`. It is shared and must not be changed."""
    return _build_schema(noun, tuple(WORKLOADS))


@functools.cache
def _build_schema(noun: str, workload_kinds: tuple[str, ...]) -> dict[str, Any]:
    subject, title = SUBJECTS[noun]
    if noun == "workload":  # a workload file may be of any kind
        kinds = tuple(load_workload_class(kind) for kind in workload_kinds)
        subject = Annotated[Union[kinds], Field(discriminator="kind")]  # noqa: UP007
    schema = _generate_schema(subject)
    if noun == "system":
        _close_fabric(schema)
    return {"$schema": DIALECT, "title": title, **schema}


def build_options_schema(fabric: str) -> dict[str, Any]:
    """Return the schema of one fabric adapter's options."""
    return _generate_schema(load_fabric_kind(fabric).options)


def _generate_schema(subject: Any) -> dict[str, Any]:
    schema = TypeAdapter(subject).json_schema(schema_generator=_SchemaGenerator, ref_template="#/$defs/{model}")
    _clean_schema(schema)
    return schema


def _clean_schema(schema: Any) -> None:
    """Remove titles, which are class names, and OpenAPI's `discriminator`; close mappings whose keys have a pattern."""
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if isinstance(schema.get("discriminator"), dict) and "oneOf" in schema:
            del schema["discriminator"]
        if "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _clean_schema(value)
    elif isinstance(schema, list):
        for value in schema:
            _clean_schema(value)


def _close_fabric(schema: dict[str, Any]) -> None:
    """Replace the system's `fabric` by a choice of the adapters, each with its options only."""
    kinds = []
    for name in FABRICS:
        options = build_options_schema(name)
        schema["$defs"].update(options.pop("$defs", {}))
        properties = {"kind": {"const": name, "type": "string", "description": load_fabric_kind(name).summary}}
        options["properties"] = {**properties, **options.get("properties", {})}
        options["required"] = ["kind", *options.get("required", ())]
        kinds.append(options)
    description = schema["properties"]["fabric"].get("description", "")
    schema["properties"]["fabric"] = {"description": description, "oneOf": kinds}
