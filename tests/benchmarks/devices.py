"""False alarms and planted faults of `campaign check --devices`: on real CPU processes, and by simulation of a GPU's noise.

    python -m tests.benchmarks.devices [--checks 25] [--devices 4] [--simulated 10000]

Real: short checks of CPU processes, half of them with a pace, compared with the first of their kind. Simulated: a healthy H200 with
normal noise in every rate, compared with a reference that has the same noise; and each of its rates at half.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from campaign.config.system_file import SystemFile
from campaign.launch.local import LocalLauncher
from campaign.observe.devices.document import DevicesDocument
from campaign.observe.devices.stage import DeviceBench, check_devices
from campaign.observe.devices.verdicts import in_words, judge
from tests.unit.launch.compositions import composition, system
from tests.unit.observe.devices.devices_data import GPUS, H200, check, gpu


def real_checks(of: SystemFile, count: int, devices: int) -> Iterator[DevicesDocument]:
    """Short checks, one after the other, without emulated links."""
    here = composition((devices, 0))
    with tempfile.TemporaryDirectory(prefix="campaign-bench-") as scratch:
        launcher = LocalLauncher(of.model_copy(update={"emulation": None}), here)
        try:
            for _ in range(count):
                bench = DeviceBench(launcher, here, Path(scratch), "bench-devices/", Path(scratch) / "log")
                yield check_devices(bench, of, "short")
        finally:
            launcher.close()


def of_real(name: str, of: SystemFile, count: int, devices: int, twice_as_fast: SystemFile | None = None) -> None:
    """Print counts of healthy checks; with a system file of devices that are twice as fast, of how many are found slow."""
    verdicts, slow, first = Counter[str](), Counter[str](), None
    for document in real_checks(of, count, devices):
        found = judge(document, of, first)
        first = first or document
        verdicts.update(each.verdict for each in found)
        busy = sum("too busy" in each.words for each in found)
        verdicts.update({"too busy to judge": busy})
        for each in found:
            if each.verdict in ("failed", "low"):
                print(f"  {each.verdict} {each.device}: {each.step}: {in_words(each)}", flush=True)
        if twice_as_fast is not None:
            rates = [each for each in judge(document, twice_as_fast) if each.quantity == "fp32_gflops"]
            slow.update("too busy to judge" if "too busy" in each.words else each.verdict for each in rates)
    print(f"{name}: {count * devices} checks of a device: {dict(verdicts)}", flush=True)
    if slow:
        print(f"{name}, against a system file that says twice the rate: {dict(slow)}", flush=True)


def simulated(count: int, noise_pct: float, seed: int = 11) -> None:
    """Print false alarms, and the smallest share of planted halves that was found."""
    random, alarms, missed = np.random.default_rng(seed), Counter[str](), 0
    rates = [(name, value) for of in H200.values() for name, value in of.items() if name.endswith(("tflops", "_per_s"))]

    def drawn() -> dict[str, float]:
        return {name: value * float(random.normal(1, noise_pct / 100)) for name, value in rates}

    for number in range(count):
        reference = check(gpu(drawn(), noise_pct))
        alarms.update(each.verdict for each in judge(check(gpu(drawn(), noise_pct)), GPUS, reference))
        name, value = rates[number % len(rates)]
        found = judge(check(gpu(drawn() | {name: value / 2}, noise_pct)), GPUS, reference)
        missed += not any(each.verdict == "failed" and each.quantity == name for each in found)
    print(
        f"simulated, {noise_pct:g} % noise: {count} healthy checks: {dict(alarms)}; halves that were missed: {missed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.devices", description=__doc__)
    parser.add_argument("--checks", type=int, default=25, help="real checks of each kind")
    parser.add_argument("--devices", type=int, default=4, help="CPU processes side by side")
    parser.add_argument("--simulated", type=int, default=10_000, help="simulated checks of each noise")
    asked = parser.parse_args()
    for noise_pct in (0.5, 1.0, 2.0):
        simulated(asked.simulated, noise_pct)
    paces = [system(emulation={"pace": {"cpu-rank": {"fp32": rate}}}) for rate in (1.0, 2.0)]
    of_real("with a pace", paces[0], asked.checks, asked.devices, paces[1])
    of_real("cores", system(), asked.checks, asked.devices)


if __name__ == "__main__":
    main()
