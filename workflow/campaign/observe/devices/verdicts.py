"""Whether what was measured is what it should be. Pure.

Who says what is expected, the first that knows: public figures of the model (`accelerators.least_rates`), the system file (the pace
of emulated devices, rates of links), and `_RULES`; beside them the site's reference. A rate that nobody knows has no verdict. Three
times the spread of the repeats is added to each tolerance, at most `_MOST_SPREAD_PCT`: that much cannot hide half of a rate. An
emulated device that this machine could not hold to its pace is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any

from campaign.accelerators.least_rates import least_rates
from campaign.config.system_file import SystemFile
from campaign.observe.devices.document import (
    CheckedDevice,
    DevicesDocument,
    DeviceVerdict,
    StepName,
    StepResult,
    VerdictWord,
)
from campaign.observe.links.slow_links import flags

_SPREADS, _MOST_SPREAD_PCT, _LATE_PCT = 3.0, 15.0, 2.0
Limits = tuple[float, float]
"""How far off is low, and how far off fails; in percent of what is expected, or of the quantity itself."""
_RULES: Mapping[str, Limits] = {
    **dict.fromkeys(("timer_off_pct", "cv_pct", "memory_again_pct"), (1.0, 1.0)),
    **dict.fromkeys(("energy_off_pct", "pcie_off_pct"), (5.0, 5.0)),
}
"""Quantities that are 0 at best."""
_CV_ON_CPU, _CV_PACED, _PACE = (10.0, 30.0), (2.0, 5.0), (3.0, 10.0)
_REFERENCE: Mapping[StepName, Limits] = {
    "products": (5.0, 10.0),
    "memory": (5.0, 10.0),
    "host link": (10.0, 20.0),
    "repeatability": (5.0, 10.0),
}
_REFERENCE_ON_CPU: Mapping[StepName, Limits] = {"products": (20.0, 30.0)}
"""Cores, and more so main memory, are shared with others."""
_LINK_PCT, _EMULATED_LINK_PCT, _LEAST_BYTES, _DEVICES_OF_FIGURES = 25.0, 40.0, 2**16, 8


def judge(
    document: DevicesDocument, system: SystemFile, reference: DevicesDocument | None = None
) -> tuple[DeviceVerdict, ...]:
    """Verdicts of all devices in their order, then of the links between those of a host. reference: an earlier document."""
    devices = [device.model_copy(update={"pace": pace_of(system, device.model)}) for device in document.devices]
    found = [verdict for device in devices for step in device.steps for verdict in _step(device, step, reference)]
    return (*found, *(verdict for host in document.links for verdict in _links(document, host, system)))


def pace_of(system: SystemFile, model: str) -> dict[str, float]:
    """GFLOP/s by precision of a device model, if it is emulated."""
    pace = system.emulation.pace.get(model, {}) if system.emulation else {}
    return {str(name): rate for name, rate in pace.items()}


def in_words(verdict: DeviceVerdict) -> str:
    """A verdict in one line, without its device and step."""
    if verdict.value is None:
        return verdict.words
    expected = f", expected {verdict.expected:.4g} ({verdict.source})" if verdict.expected is not None else ""
    return f"{verdict.quantity} {verdict.value:.4g}{expected}{verdict.words and f'; {verdict.words}'}"


def _step(device: CheckedDevice, step: StepResult, reference: DevicesDocument | None) -> Iterator[DeviceVerdict]:
    def said(verdict: VerdictWord, words: str = "", **known: Any) -> DeviceVerdict:
        return DeviceVerdict(device=device.name, step=step.step, verdict=verdict, words=words, **known)

    faults = [*step.faults, *_changed(device, step), *_out_of_order(step), *_drift(device, step)]
    yield from (said("failed", fault) for fault in faults)
    if step.skipped or not (faults or step.values):
        yield said("skipped" if step.skipped else "ok", step.skipped)
    late = step.facts.get("late_pct", 0.0)
    for name, value in step.values.items():
        known: dict[str, Any] = {"quantity": name, "value": value}
        if late > _LATE_PCT:
            yield said(
                "rate", f"this machine was {late:.3g} % behind the pace of its devices, too busy to judge", **known
            )
            continue
        expectations = [*_expected(device, step, name), *_before(device, step, name, reference)]
        for word, expected, source in expectations:
            yield said(word, expected=expected, source=source, **known)
        if not expectations:
            yield said("rate", **known)


Judged = tuple[VerdictWord, float, str]
"""DeviceVerdict, what is expected, and who says so."""


def _expected(device: CheckedDevice, step: StepResult, name: str) -> Iterator[Judged]:
    """By public figures, the system file, or a rule."""
    value, spread = step.values[name], _spread(step, name)
    least = least_rates(device.model, device.reported) if device.kind != "cpu" else {}
    if name in least:
        limit = least[name]
        yield _word(value, limit.least, limit.fails), limit.least, limit.source
    elif device.pace and name.endswith("_gflops"):
        yield _less(value, device.pace[name.removesuffix("_gflops")], _PACE, spread, "pace in the system file")
    elif name in _RULES:
        on_cpu = (_CV_PACED if device.pace else _CV_ON_CPU) if device.kind == "cpu" else _RULES[name]
        low, fails = on_cpu if name == "cv_pct" else _RULES[name]
        spread = 0.0 if name == "cv_pct" else spread
        yield _word(-abs(value), -low - spread, -fails - spread), low, "at most"


def _before(device: CheckedDevice, step: StepResult, name: str, reference: DevicesDocument | None) -> Iterator[Judged]:
    """By what the same device did in the reference; for one that was not there, the median of its model in its kind of place."""
    shared = device.kind == "cpu" and not device.pace
    limits = (_REFERENCE_ON_CPU if shared else _REFERENCE).get(step.step)
    there = reference.devices if reference and limits and name.endswith(("flops", "_per_s")) else ()
    if device.pace and step.step in ("memory", "host link"):  # main memory has no pace
        there = ()
    same = [d for d in there if (d.uuid or d.fabric_id) == (device.uuid or device.fabric_id)]
    alike = same or [d for d in there if (d.model, d.attach) == (device.model, device.attach)]
    then = (found for d in alike if (found := d.step(step.step)) and found.facts.get("late_pct", 0.0) <= _LATE_PCT)
    usual = [found.values[name] for found in then if name in found.values]
    if usual and limits:
        yield _less(step.values[name], median(usual), limits, _spread(step, name), "reference")


def _spread(step: StepResult, name: str) -> float:
    return min(_SPREADS * step.spread_pct.get(name, 0.0), _MOST_SPREAD_PCT)


def _less(value: float, expected: float, limits: Limits, spread: float, source: str) -> Judged:
    low, fails = (expected * (1 - (limit + spread) / 100) for limit in limits)
    return _word(value, low, fails), expected, source


def _word(value: float, least: float, fails: float) -> VerdictWord:
    return "ok" if value >= least else "low" if value >= fails else "failed"


def _changed(device: CheckedDevice, step: StepResult) -> Iterator[str]:
    """What is otherwise after the check than before it."""
    before = device.step("state")
    if step.step == "clean" and before is not None:
        for left in sorted({*step.facts.get("holders", ())} - {*before.facts.get("holders", ())}):
            yield f"process {left} has the device open, and had not before"
        now, then = step.facts.get("settings", {}), before.facts.get("settings", {})
        yield from (
            f"{name} was {then[name]} and is {now[name]} now" for name in now if then.get(name, now[name]) != now[name]
        )


def _out_of_order(step: StepResult) -> Iterator[str]:
    """On a device that has all three."""
    names = ("fp32_tflops", "tf32_tflops", "bf16_tflops")
    if all(name in step.values for name in names) and (rates := [step.values[name] for name in names]) != sorted(rates):
        yield f"fp32, tf32 and bf16 are {', '.join(f'{rate:.3g}' for rate in rates)} TFLOP/s, and each is to be the faster one"


def _drift(device: CheckedDevice, step: StepResult) -> Iterator[str]:
    """A trend that all processes have, where others do not share what they use."""
    trends, late = step.facts.get("trends_pct", (0.0,)), step.facts.get("late_pct", 0.0) > _LATE_PCT
    if (device.kind != "cpu" or device.pace) and not late and (min(trends) > 1 or max(trends) < -1):
        yield f"steps change by {median(trends):.2g} % within each process"


def repeated(steps: Sequence[StepResult]) -> tuple[StepResult, ...]:
    """The steps with one result of the same training in several processes: mean rate, coefficient of variation, a trend of all."""
    again = [step for step in steps if step.step == "repeatability"]
    rates = [each.values["samples_per_s"] for each in again if each.values]
    if len(rates) < max(2, len(again)):
        return tuple(steps)  # one fails, or there is none
    cv_pct = 100 * stdev(rates) / mean(rates)
    trends = [each.facts["trend_pct"] * each.facts["has_trend"] for each in again]
    one = again[0].model_copy(
        update={
            "values": {"samples_per_s": mean(rates), "cv_pct": cv_pct},
            "spread_pct": {"samples_per_s": cv_pct},
            "facts": {
                **again[0].facts,
                "late_pct": max(each.facts["late_pct"] for each in again),
                "samples_per_s": rates,
                "trends_pct": trends,
            },
            "took_s": round(sum(each.took_s for each in again), 3),
        }
    )
    last = [step for step in steps if step.step == "clean"]
    return (*(step for step in steps if step.step not in ("repeatability", "clean")), one, *last)


def _links(document: DevicesDocument, host: str, system: SystemFile) -> Iterator[DeviceVerdict]:
    links, known = document.links[host], {"device": host, "step": "between devices"}
    emulated = system.emulation.scale if system.emulation and links["emulated"] else None
    on_cpu = links["runs_on"] == "cpu"
    if not links["problems"] and (links["matrix_size_bytes"] or 0) < _LEAST_BYTES:
        yield DeviceVerdict(
            **known, verdict="skipped", words="too many pairs for the time: no size was measured that tells a rate"
        )
        return
    slow = flags(links, system.links, emulated, _EMULATED_LINK_PCT if on_cpu else _LINK_PCT)
    for words in (*slow, *links["problems"]):
        yield DeviceVerdict(**known, verdict="failed", words=words.removeprefix("links: "))
    devices = [device for device in document.devices if device.host == host]
    # Public figures are of eight devices that are the host's own.
    whole = not on_cpu and len(devices) == _DEVICES_OF_FIGURES and all(device.attach == "local" for device in devices)
    least = least_rates(devices[0].model, devices[0].reported) if whole else {}
    for name, value in _rates_between(links).items():
        limit = least.get(name)
        told = {"expected": limit.least, "source": limit.source} if limit else {}
        word = _word(value, limit.least, limit.fails) if limit else "ok" if emulated and not slow else "rate"
        yield DeviceVerdict(**known, quantity=name, value=value, verdict=word, **told)


def _rates_between(links: Mapping[str, Any]) -> dict[str, float]:
    """GB/s of the slowest pair of each kind of way, and of an all-reduce of the largest size."""
    found: dict[str, float] = {}
    matrix = links["matrices"]["unidirectional_gb_per_s"] if links["matrices"] else ()
    for rates, ways in zip(matrix, links["kinds"], strict=False):
        for rate, way in zip(rates, ways, strict=True):
            if rate is not None:
                name = "pair_gb_per_s" if way == "local" else f"pair_{way.replace(' + ', '_')}_gb_per_s"
                found[name] = min(rate, found.get(name, rate))
    return found | ({"allreduce_gb_per_s": links["allreduce"]["busbw_gb_per_s"][-1]} if links["allreduce"] else {})
