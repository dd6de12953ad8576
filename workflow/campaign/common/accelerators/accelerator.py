"""What the package has to know of a kind of device. Pure: tools are named and their text is parsed, nothing is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Peaks = tuple[str, str, Mapping[str, float]]
"""Patterns of a model and of its form, and TFLOP/s by precision; see `peak_tflops`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One device as its host lists it. identity, model: empty if unknown; address: its PCI address, where the tool gives it."""

    identity: str = ""
    model: str = ""
    address: str = ""


def peaks(
    fp32: float | None = None, tf32: float | None = None, fp16: float | None = None, bf16: float | None = None
) -> Mapping[str, float]:
    """Dense peaks in TFLOP/s, those that are known."""
    given = {"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16}
    return {precision: peak for precision, peak in given.items() if peak is not None}


def identity_and_model(lines: Iterable[str]) -> tuple[Seen, ...]:
    """Devices from lines `identity, model`; a model may have commas."""
    pairs = (line.partition(",") for line in lines if line.strip())
    return tuple(Seen(identity.strip(), model.strip()) for identity, _, model in pairs)


def nothing_visible(_: Sequence[str]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of device.

    title: for people; torch_type, backend: device type and process group of torch; torch_build: the name in `torch.version`
    that builds for it set; masks: environment variables that hide devices from a process; visible: these variables for some
    devices by their names on the host, {} where a mask cannot name them; mask_per_rank: whether every rank gets a mask of its
    own; list_command, parse: how a host lists its devices; describe_command: the same with what can change a number;
    container_option: what has Apptainer pass the driver in; out_of_memory: patterns of messages, the first of which is believed
    whatever the exit code; communication_errors: likewise; unavailable: patterns of messages that no device could be used at
    all; device_faults: that a device failed; device_suspicions: that it did, or that the program is wrong; fallbacks: patterns
    by which a framework reports that work ran on the CPU; peaks: vendor's figures; telemetry: how it is read, in words;
    unverified: what has not been tried on hardware, empty for nothing.
    """

    kind: str
    title: str
    torch_type: str
    backend: str
    torch_build: str = ""
    masks: tuple[str, ...] = ()
    visible: Callable[[Sequence[str]], Mapping[str, str]] = nothing_visible
    mask_per_rank: bool = False
    list_command: tuple[str, ...] = ()
    parse: Callable[[Iterable[str]], tuple[Seen, ...]] = identity_and_model
    describe_command: tuple[str, ...] = ()
    container_option: str = ""
    out_of_memory: tuple[str, ...] = ()
    communication_errors: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    device_faults: tuple[str, ...] = ()
    device_suspicions: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    peaks: tuple[Peaks, ...] = ()
    telemetry: str = ""
    unverified: str = ""


CPU = Accelerator("cpu", "process on a CPU core that stands for a device", "cpu", "gloo", telemetry="of the host only")
