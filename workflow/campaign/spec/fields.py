"""Types and base classes of the keys of documents and configuration files."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

Precision = Literal["fp32", "tf32", "fp16", "fp16-o2", "bf16"]
"""Number formats. With `fp16` and `bf16`, autocast is used and gradients stay fp32. With `fp16-o2`, weights and gradients are fp16
(apex O2), which halves the bytes of the all-reduce."""
# Names become names of files, directories and jobs, and "--" joins them. So they have no separators, no leading dot and only
# single hyphens, and are short enough that three of them can be joined.
NAME_PATTERN = r"^[A-Za-z0-9](-?[A-Za-z0-9._])*$"
HOSTS_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[\d+(-\d+)?(,\d+(-\d+)?)*\])?$"
AXIS_PATTERN = r"^[a-z][a-z0-9_]*$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
TEXT_PATTERN = r"^[^\x00]*$"  # The operating system does not accept NUL in arguments.
# Texts that programs do not take for an option.
OPERAND_PATTERN = r"^[^\x00-][^\x00]*$"
MODULE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+/@:=-]*$"
PATTERN_WORDS = {
    NAME_PATTERN: "letters, digits, '.', '_' and single '-', starting with a letter or digit",
    HOSTS_PATTERN: "letters, digits, '.', '_' and '-', with a range such as [1-4] or [1,3-4] at the end for several hosts",
    AXIS_PATTERN: "lower-case letters, digits and '_', starting with a letter",
    VARIABLE_PATTERN: "letters, digits and '_', starting with a letter or '_'",
    TEXT_PATTERN: "any characters except NUL",
    OPERAND_PATTERN: "any characters except NUL, not starting with '-'",
    MODULE_PATTERN: "letters, digits and . _ + / @ : = -, starting with a letter or digit",
}
"""Descriptions of the texts that match each pattern, for messages."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=48)]
AxisName = Annotated[str, StringConstraints(pattern=AXIS_PATTERN, max_length=40)]
VariableName = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, max_length=200)]
Argument = Annotated[str, StringConstraints(pattern=TEXT_PATTERN)]
Label = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
Count = Annotated[int, Field(ge=1, le=4096)]


def check_label_spelling(label: object) -> object:
    """Return a label unchanged. Raises ValueError if YAML reads it as a number or boolean, whose spelling may change."""
    text = str(label)
    is_respelled = text.lower() in ("true", "false")
    with suppress(ValueError):
        float(text)
        is_respelled = re.fullmatch("0|[1-9][0-9]*", text) is None
    if is_respelled:
        raise ValueError(
            f"YAML reads '{text}' as a number or boolean, whose spelling may change (580.10 becomes 580.1); "
            "add letters, such as driver-580.10"
        )
    return label


FromEnvironment = Annotated[dict[Literal["from"], Literal["environment"]], Field(min_length=1)]
"""Placeholder for the value that the variable has in the environment in which the campaign is started."""
_VariableValue = Annotated[
    Annotated[Argument, Tag("text")] | Annotated[FromEnvironment, Tag("reference")],
    # With a discriminator, the message about a number mentions only texts and not references as well.
    Discriminator(lambda value: "reference" if isinstance(value, dict) else "text"),
]
Variables = dict[VariableName, _VariableValue]
"""Environment variables of a program."""
InputFiles = Annotated[
    Annotated[tuple[Argument, ...], Tag("names")] | Annotated[dict[Argument, Label | None], Tag("versions")],
    Discriminator(lambda value: "versions" if isinstance(value, dict) else "names"),
]
"""Names of files, or versions by file name."""


class ClosedModel(BaseModel):
    """Immutable document, or part of one, in which an unknown key is an error."""

    # A process uses few of all models. Those of the others are never built.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class VersionedModel(ClosedModel):
    """Document, or part of one, that had further keys in earlier versions."""

    gone: ClassVar[frozenset[str]] = frozenset()
    """Keys that only earlier versions wrote, which are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_gone_keys(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if name not in cls.gone}


class FileModel(ClosedModel):
    """Part of a file that users write. In addition, its numbers must be finite."""

    model_config = ConfigDict(allow_inf_nan=False)


def to_tuple(value: Any) -> Any:
    """Return a list as a tuple, and any other value as a tuple with this value."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


_T = TypeVar("_T")
OneOrMore = Annotated[tuple[_T, ...], Field(min_length=1), BeforeValidator(to_tuple)]
