"""Properties of a kind of device that the package needs.

Pure: tools are named and their output is parsed, but nothing is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

PeakRow = tuple[str, str, Mapping[str, float]]
"""Patterns of a model and of its form, and TFLOP/s by precision; see `get_peak_tflops`."""


@dataclass(frozen=True, slots=True)
class DetectedDevice:
    """Device as its host lists it.

    Attributes:
        identity: UUID or serial number, empty if unknown.
        model: name of the model, empty if unknown.
        address: PCI address, if the tool reports it.
    """

    identity: str = ""
    model: str = ""
    address: str = ""


def make_peaks(
    fp32: float | None = None, tf32: float | None = None, fp16: float | None = None, bf16: float | None = None
) -> Mapping[str, float]:
    """Collect the known dense peaks in TFLOP/s by precision."""
    candidates = {"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16}
    return {precision: peak for precision, peak in candidates.items() if peak is not None}


def parse_identity_and_model(lines: Iterable[str]) -> tuple[DetectedDevice, ...]:
    """Parse devices from lines of the form `identity, model`. A model may contain commas."""
    pairs = (line.partition(",") for line in lines if line.strip())
    return tuple(DetectedDevice(identity.strip(), model.strip()) for identity, _, model in pairs)


def make_no_mask(_: Sequence[str]) -> Mapping[str, str]:
    """Return an empty mask, for kinds of devices that cannot be masked."""
    return {}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Properties of a kind of device.

    Attributes:
        kind: name of the kind in a system file.
        title: name in the report.
        torch_type: device type of torch.
        backend: process group of torch.
        torch_build: attribute of `torch.version` that is set in builds for this kind.
        mask_variables: environment variables that hide devices from a process.
        make_mask: function that returns these variables for devices by their names on the host, or {} if a mask cannot name
            them.
        mask_per_rank: True if every rank gets a separate mask.
        list_command: command by which a host lists its devices.
        parse_devices: parser of the output of that command.
        describe_command: command that also lists properties which can change a measured value.
        container_option: option by which Apptainer makes the driver available.
        out_of_memory: patterns of messages. The first pattern is believed whatever the exit code is.
        communication_errors: patterns of messages, used likewise.
        unavailable: patterns of messages that no device could be used at all.
        device_faults: patterns of messages that a device failed.
        device_suspicions: patterns of messages that a device failed or that the program is wrong.
        fallbacks: patterns by which a framework reports that work ran on the CPU.
        peaks: peak rates from the vendor.
        telemetry: source of the telemetry, in words.
        unverified: parts that were never tried on hardware, or an empty string.
    """

    kind: str
    title: str
    torch_type: str
    backend: str
    torch_build: str = ""
    mask_variables: tuple[str, ...] = ()
    make_mask: Callable[[Sequence[str]], Mapping[str, str]] = make_no_mask
    mask_per_rank: bool = False
    list_command: tuple[str, ...] = ()
    parse_devices: Callable[[Iterable[str]], tuple[DetectedDevice, ...]] = parse_identity_and_model
    describe_command: tuple[str, ...] = ()
    container_option: str = ""
    out_of_memory: tuple[str, ...] = ()
    communication_errors: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    device_faults: tuple[str, ...] = ()
    device_suspicions: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    peaks: tuple[PeakRow, ...] = ()
    telemetry: str = ""
    unverified: str = ""


CPU = Accelerator("cpu", "process on a CPU core that stands for a device", "cpu", "gloo", telemetry="of the host only")
