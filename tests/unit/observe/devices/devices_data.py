"""Made-up checks of devices, healthy by their model's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from campaign.config.system_file import SystemFile
from campaign.observe.devices.document import CheckedDevice, DevicesDocument, DeviceVerdict, StepName, StepResult
from campaign.observe.devices.verdicts import judge
from tests.unit.launch.compositions import system

H200: Mapping[StepName, Mapping[str, float]] = {
    "timers": {"timer_off_pct": 0.01},
    "products": {
        "fp32_tflops": 51.0,
        "tf32_tflops": 390.0,
        "fp16_tflops": 790.0,
        "bf16_tflops": 785.0,
        "fp8_tflops": 1350.0,
    },
    "memory": {"memory_gb_per_s": 4300.0},
    "host link": {"h2d_gb_per_s": 55.0, "d2h_gb_per_s": 54.0},
    "repeatability": {"samples_per_s": 900.0, "cv_pct": 0.3},
    "telemetry": {"look_ms": 2.0, "energy_off_pct": -1.0, "pcie_off_pct": 2.0},
    "memory full": {"memory_gib": 138.0, "memory_again_pct": -0.2},
}
GPUS = system(
    devices={"h200": {"runs_on": "cuda"}},
    hosts=[{"name": "host1", "cores": 4, "devices": [{"model": "h200", "count": 1}]}],
    pool=[],
)
PACED = system(emulation={"pace": {"cpu-rank": {"fp32": 2.0}}})


def gpu(
    changes: Mapping[str, float] | None = None,
    spread_pct: float = 0.5,
    reported: str = "NVIDIA H200",
    steps: Sequence[StepResult] = (),
    uuid: str = "1",
) -> CheckedDevice:
    """A device with these steps in place of, or beside, those of a healthy H200; changes: by quantity."""
    given = {step.step for step in steps}
    made = [
        StepResult(
            step=name,
            values=(found := {quantity: (changes or {}).get(quantity, value) for quantity, value in values.items()}),
            spread_pct={each: spread_pct for each in found if not each.endswith("_pct")},
        )
        for name, values in H200.items()
        if name not in given
    ]
    name = f"gpu{uuid}"
    found = CheckedDevice(name=name, host="host1", fabric_id=name, attach="fabric", model="h200", kind="cuda")
    return found.model_copy(update={"reported": reported, "uuid": uuid, "steps": (*made, *steps)})


def cpu(values: Mapping[str, float], facts: Mapping[str, Any] | None = None, spread_pct: float = 1.0) -> CheckedDevice:
    """A CPU process with one step of products."""
    step = StepResult(
        step="products", values=dict(values), spread_pct=dict.fromkeys(values, spread_pct), facts=dict(facts or {})
    )
    return CheckedDevice(
        name="host1.gpu0",
        host="host1",
        fabric_id="host1/0",
        attach="local",
        model="cpu-rank",
        kind="cpu",
        steps=(step,),
    )


def check(*devices: CheckedDevice, links: Mapping[str, Any] | None = None) -> DevicesDocument:
    return DevicesDocument(
        system="bench", form="full", started=0.0, took_s=1.0, devices=devices, links=dict(links or {})
    )


def bad(
    document: DevicesDocument, of: SystemFile = GPUS, reference: DevicesDocument | None = None
) -> list[DeviceVerdict]:
    """Verdicts that a person has to know."""
    return [each for each in judge(document, of, reference) if each.verdict in ("failed", "low")]
