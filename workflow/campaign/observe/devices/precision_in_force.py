"""The precision that is really in force when one is asked for, with and without torch.compile. Needs torch."""

from __future__ import annotations

from campaign.observe.devices.bench import Bench
from campaign.observe.devices.document import StepResult
from campaign.observe.devices.products import PRECISIONS
from campaign.workloads.trainer import precision
from campaign.workloads.trainer.training_session import compiler_problem


def measure(bench: Bench) -> StepResult:
    """What each precision of the device was found to be, by computing."""
    why = _not_compiled(bench)
    found: dict[str, str] = {}
    faults = []
    for name in PRECISIONS:
        # A CPU that computes a precision in fp32 rounds as it is asked to; how slowly does not matter here.
        if precision.unsupported_reason(name, bench.device, allow_emulation=True):
            continue
        precision.switch_on(name)
        # On a CPU one says as much as all: there the compiler takes ten seconds for each.
        for compiled in (False, True) if not why and (name == "bf16" or not bench.on_cpu) else (False,):
            how = f"{name} with compile" if compiled else name
            found[how] = precision.in_force(name, bench.device, compiled=compiled)
            if found[how] != name:
                faults.append(f"{how} is asked for, and {found[how]} is in force")
    precision.switch_on("fp32")
    return StepResult(
        step="precision", facts={"in force": found, **({"not compiled": why} if why else {})}, faults=tuple(faults)
    )


def _not_compiled(bench: Bench) -> str:
    """Why nothing is tried with torch.compile, or empty."""
    if bench.spec.form == "short":
        return "the short form leaves it out"
    if bench.own.pace:
        return "a compiled model cannot be held to an emulated device's pace"
    return (compiler_problem() or "") if bench.on_cpu else ""
