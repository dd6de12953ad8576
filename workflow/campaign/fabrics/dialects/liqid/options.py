"""Options of a Liqid Matrix."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from campaign.fabrics.control_plane.options import Controlled
from campaign.fabrics.protocol import AttachMode

RESERVED_LABELS = ("slurm",)


class Options(Controlled):
    """A Liqid Matrix. `hosts` says which compute device a host is, where it is not named like the host."""

    group: str = Field(
        default="campaign", min_length=1, description="the group that machines are made in; nobody else should use it"
    )
    create_group: bool = Field(default=False, description="make the group where the Matrix has none of that name")
    label: str = Field(
        default="composable-campaign",
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="label of the session (digest); logging in ends an older session of the same label",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="seconds between two polls of an operation that the Matrix has not finished"
    )
    attach_mode: AttachMode = Field(
        default="hot",
        description="`hot`: hosts keep running; `reboot`: a host is rebooted when its devices are attached; `powered_off`: it is "
        "started when they are, and shut down before they are taken away",
    )

    @field_validator("label")
    @classmethod
    def _not_reserved(cls, label: str) -> str:
        if label.lower() in RESERVED_LABELS:
            raise ValueError(
                f"the label {label!r} is reserved for Liqid's own Slurm plugin, whose session would be ended; choose another"
            )
        return label
