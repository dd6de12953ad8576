"""What documents and the keys of configuration files are made of."""

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
"""`fp16` and `bf16`: autocast, gradients stay fp32; `fp16-o2`: weights and gradients are fp16 (apex O2), so that half the bytes are
all-reduced."""
# Names become names of files, directories and jobs, and "--" joins them: no separators, no leading dot, single hyphens, and
# short enough for the names that are made of three of them.
NAME_PATTERN = r"^[A-Za-z0-9](-?[A-Za-z0-9._])*$"
HOSTS_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[\d+(-\d+)?(,\d+(-\d+)?)*\])?$"
AXIS_PATTERN = r"^[a-z][a-z0-9_]*$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
TEXT_PATTERN = r"^[^\x00]*$"  # the operating system takes no NUL in arguments
# What a program reads as an operand, and not as an option.
OPERAND_PATTERN = r"^[^\x00-][^\x00]*$"
MODULE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+/@:=-]*$"
PATTERN_WORDS = {
    NAME_PATTERN: "letters, digits, '.', '_' and single '-', starting with a letter or digit",
    HOSTS_PATTERN: "letters, digits, '.', '_' and '-', with numbers such as [1-4] or [1,3-4] at its end for several hosts",
    AXIS_PATTERN: "lower-case letters, digits and '_', starting with a letter",
    VARIABLE_PATTERN: "letters, digits and '_', starting with a letter or '_'",
    TEXT_PATTERN: "any characters except NUL",
    OPERAND_PATTERN: "any characters except NUL, not starting with '-'",
    MODULE_PATTERN: "letters, digits and . _ + / @ : = -, starting with a letter or digit",
}
"""What a text with that pattern consists of, for messages."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=48)]
AxisName = Annotated[str, StringConstraints(pattern=AXIS_PATTERN, max_length=40)]
VariableName = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN, max_length=200)]
Argument = Annotated[str, StringConstraints(pattern=TEXT_PATTERN)]
Label = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
Count = Annotated[int, Field(ge=1, le=4096)]


def as_typed(label: object) -> object:
    """Return a label. Raises ValueError if YAML reads it as a number or truth value and gives it back in another form."""
    text = str(label)
    retyped = text.lower() in ("true", "false")
    with suppress(ValueError):
        float(text)
        retyped = re.fullmatch("0|[1-9][0-9]*", text) is None
    if retyped:
        raise ValueError(
            f"'{text}' is a number or truth value to YAML, which changes how it is written (580.10 becomes 580.1); "
            "add letters, such as driver-580.10"
        )
    return label


FromEnvironment = Annotated[dict[Literal["from"], Literal["environment"]], Field(min_length=1)]
"""Instead of a value: the one that the variable has where the campaign is started."""
_VariableValue = Annotated[
    Annotated[Argument, Tag("text")] | Annotated[FromEnvironment, Tag("reference")],
    # So that a number is told to be no text, and nothing of references.
    Discriminator(lambda value: "reference" if isinstance(value, dict) else "text"),
]
Variables = dict[VariableName, _VariableValue]
"""Environment variables of a program."""
InputFiles = Annotated[
    Annotated[tuple[Argument, ...], Tag("names")] | Annotated[dict[Argument, Label | None], Tag("versions")],
    Discriminator(lambda value: "versions" if isinstance(value, dict) else "names"),
]
"""Names of files, or name -> version."""


class ClosedModel(BaseModel):
    """A document, or a part of one: an unknown key is an error, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class VersionedModel(ClosedModel):
    """A document, or a part of one, that earlier versions wrote with further keys."""

    gone: ClassVar[frozenset[str]] = frozenset()
    """Keys that only earlier versions wrote. They are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_gone_keys(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if name not in cls.gone}


class FileModel(ClosedModel):
    """A part of a file that people write: in addition, its numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


def as_list(value: Any) -> Any:
    """A single value stands for a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


_T = TypeVar("_T")
Many = Annotated[tuple[_T, ...], Field(min_length=1), BeforeValidator(as_list)]
