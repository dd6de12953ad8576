"""What processes on devices are asked (`CheckSpec`) and leave (a `CheckedDevice` each), and the document of one check. Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from campaign.accelerators import Kind
from campaign.documents.fields import ClosedModel

Form = Literal["short", "full"]
StepName = Literal[
    "state", "timers", "products", "memory", "host link", "between devices", "repeatability", "telemetry", "precision",
    "memory full", "clean",
]  # fmt: skip
VerdictWord = Literal["ok", "low", "failed", "rate", "skipped"]
"""low: a remark; rate: measured, and nobody says what it should be."""


class StepResult(ClosedModel):
    """One step on one device. Quantities end in their unit.

    spread_pct: standard deviation of the repeats, in percent; faults: what is wrong whatever the numbers are; skipped: why nothing
    was measured.
    """

    step: StepName
    values: dict[str, float] = Field(default_factory=dict)
    spread_pct: dict[str, float] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    faults: tuple[str, ...] = ()
    skipped: str = ""
    took_s: float = 0.0


class CheckedDevice(ClosedModel):
    """One device. name: for people; model: the system file's; reported, uuid: as torch has them; pace: GFLOP/s by precision.

    Before it was looked at, `uuid` is what the composition says, where it knows. Only emulated devices have a pace.
    """

    name: str
    host: str
    fabric_id: str
    attach: Literal["local", "fabric"]
    model: str
    kind: Kind
    pace: dict[str, float] = Field(default_factory=dict)
    reported: str = ""
    uuid: str = ""
    torch_version: str = ""
    steps: tuple[StepResult, ...] = ()

    def step(self, name: StepName) -> StepResult | None:
        return next((step for step in self.steps if step.step == name), None)


class CheckSpec(ClosedModel):
    """What one start of processes does. devices: by rank; mark: beginning of CAMPAIGN_RUN of all processes of this check;
    seconds: of one timing; training_s: of one training."""

    steps: tuple[StepName, ...]
    form: Form
    devices: tuple[CheckedDevice, ...]
    mark: str
    seconds: float = Field(gt=0)
    training_s: float = Field(gt=0)


class DeviceVerdict(ClosedModel):
    """One quantity of one device, or of the devices of a host. source: who says what is expected."""

    device: str
    step: StepName
    quantity: str = ""
    value: float | None = None
    expected: float | None = None
    verdict: VerdictWord
    words: str = ""
    source: str = ""


class DevicesDocument(ClosedModel):
    """One check of the devices of one composition. reference: hash of what it was compared with; verdicts: as they were then."""

    schema_version: Literal["devices/1"] = "devices/1"
    system: str
    form: Form
    started: float
    took_s: float
    devices: tuple[CheckedDevice, ...]
    links: dict[str, dict[str, Any]] = Field(default_factory=dict, description="links/1, by host")
    reference: str = ""
    verdicts: tuple[DeviceVerdict, ...] = ()

    @property
    def failed(self) -> tuple[DeviceVerdict, ...]:
        return tuple(each for each in self.verdicts if each.verdict == "failed")
