"""Requests of one run of a service, as columns: a record holds them, and the table `requests` has a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from campaign.credentials import masked
from campaign.documents.fields import ClosedModel

_Numbers = tuple[float | None, ...]


class Requests(ClosedModel):
    """One entry a request in each column. Seconds are from the start of the load; null where it did not come to that."""

    intended_s: tuple[float, ...] = Field(description="when it was to start")
    sent_s: _Numbers = Field(description="when it was sent")
    first_s: _Numbers = Field(description="when its first token came")
    last_s: _Numbers = Field(description="when its last token came")
    prompt_tokens: tuple[int | None, ...] = Field(description="tokens of its prompt")
    output_tokens: tuple[int | None, ...] = Field(description="tokens of its answer")
    error: tuple[str | None, ...] = Field(description="why it has no complete answer")
    in_window: tuple[bool, ...] = Field(description="whether it was to start in the window, so that it counts")

    @model_validator(mode="after")
    def _equally_long(self) -> Requests:
        if len({len(getattr(self, name)) for name in type(self).model_fields}) > 1:
            raise ValueError("columns of requests have different lengths")
        return self

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], window_s: tuple[float, float]) -> Requests:
        """Requests from columns, perhaps more than these; a request is in the window if it was intended to start there."""
        begin, end = window_s
        inside = tuple(begin <= intended_s < end for intended_s in columns["intended_s"])
        mine = {name: columns[name] for name in cls.model_fields if name in columns}
        rounded = {name: tuple(map(_to_microseconds, values)) for name, values in mine.items()}
        rounded["error"] = tuple(
            error and masked(error) for error in rounded["error"]
        )  # servers repeat keys that they refuse
        return cls(**rounded, in_window=inside)

    @property
    def counted(self) -> list[str | None]:
        """The error, or None, of each request in the window."""
        return [error for error, inside in zip(self.error, self.in_window, strict=True) if inside]


def _to_microseconds(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
