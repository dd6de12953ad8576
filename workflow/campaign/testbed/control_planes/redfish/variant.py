"""How one emulated Redfish service differs from the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Quirk = Literal[
    "text_reserved",  # CompositionStatus.Reserved is the text "false" or "true"
    "linked_members",  # blocks and zones list their Members under Links
    "scalar_types",  # ResourceBlockType is one word
    "bare_answers",  # changes are answered by 200 and a bare number, refusals by a bare JSON string, neither with a Location
    "no_description",  # a system with a Description is refused
    "composes_nothing",  # composing answers as if, stores the system, and moves nothing
    "unused_while_composed",  # blocks say Unused whatever they are
    "deletes_nothing",  # DELETE of a system answers 204 and does nothing
]


@dataclass(frozen=True)
class Variant:
    """hosts: `compute` blocks that are composed, or `physical` systems that are expanded. task_polls: looks at a task before it is
    done, 0: no tasks. etags: `given` are compared where a client sends one, `required` must be sent. page: members a page.
    limits: `@Redfish.ResourceBlockLimits`. powered_off: systems that are on are not changed. composes: False has no
    CompositionService, only blocks. sleep_s: Retry-After of tasks."""

    user: str = "campaign"
    password: str = "learn-2-compose"
    auth: bool = True
    hosts: Literal["compute", "physical"] = "compute"
    constrained: bool = False
    actions: bool = False
    task_polls: int = 0
    sleep_s: int = 0
    etags: Literal["none", "given", "required"] = "given"
    page: int | None = None
    expand: bool = True
    sessions_max: int = 16
    limits: Mapping[str, int] = field(default_factory=dict)
    powered_off: bool = False
    composes: bool = True
    sharing: int = 1
    quirks: frozenset[Quirk] = frozenset()
