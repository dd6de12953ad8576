"""What is said of a device: planted faults are named, healthy ones raise no alarm, and what nobody knows has no verdict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.observe.devices.document import CheckedDevice, StepResult
from campaign.observe.devices.verdicts import in_words, judge, repeated
from tests.unit.observe.devices.devices_data import GPUS, H200, PACED, bad, check, cpu, gpu
from tests.unit.observe.links.links_data import links_document

_RATES = [name for values in H200.values() for name in values if name.endswith(("tflops", "_per_s"))]
_KNOWN = ["bf16_tflops", "fp8_tflops", "memory_gb_per_s", "h2d_gb_per_s", "d2h_gb_per_s"]


def test_a_healthy_device_has_no_fault_and_every_known_rate_a_source() -> None:
    found = judge(check(gpu()), GPUS)
    assert not bad(check(gpu()))
    sources = {each.quantity: each.source for each in found if each.expected is not None}
    assert sources.keys() >= {*_KNOWN, "cv_pct", "timer_off_pct"}
    assert sources["bf16_tflops"] == "MAMF 794.5"
    assert {each.quantity for each in found if each.verdict == "rate"} == {
        "fp32_tflops", "tf32_tflops", "fp16_tflops", "samples_per_s", "look_ms", "memory_gib",
    }  # fmt: skip


@pytest.mark.parametrize("quantity", _KNOWN)
def test_half_of_a_known_rate_fails(quantity: str) -> None:
    half = {name: value / 2 for values in H200.values() for name, value in values.items() if name == quantity}
    verdict = next(each for each in bad(check(gpu(half))) if each.quantity == quantity)
    assert verdict.verdict == "failed"
    assert verdict.source in in_words(verdict)


@pytest.mark.parametrize(("tflops", "word"), [(785.0, "ok"), (700.0, "ok"), (660.0, "low"), (620.0, "failed")])
def test_the_limits_of_products_on_an_h200(tflops: float, word: str) -> None:
    found = judge(check(gpu({"bf16_tflops": tflops})), GPUS)
    assert next(each.verdict for each in found if each.quantity == "bf16_tflops") == word


@pytest.mark.parametrize(
    "reported", ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA B200", "NVIDIA H200 MIG 1g.18gb", "some card"]
)
def test_a_form_or_model_without_public_figures_has_rates_without_a_verdict(reported: str) -> None:
    found = judge(check(gpu({"bf16_tflops": 1.0, "tf32_tflops": 0.9, "fp32_tflops": 0.8}, reported=reported)), GPUS)
    assert next(each.verdict for each in found if each.quantity == "bf16_tflops") == "rate"


@pytest.mark.parametrize(
    ("quantity", "value"),
    [("timer_off_pct", 3.0), ("timer_off_pct", -3.0), ("cv_pct", 2.0), ("memory_again_pct", -2.0), ("energy_off_pct", 9.0),
     ("pcie_off_pct", -98.0)],
)  # fmt: skip
def test_what_should_be_nothing_fails_where_it_is_something(quantity: str, value: float) -> None:
    assert [each.quantity for each in bad(check(gpu({quantity: value}))) if each.verdict == "failed"] == [quantity]


def test_precisions_that_are_not_faster_one_after_the_other_are_named() -> None:
    (verdict,) = bad(check(gpu({"tf32_tflops": 50.0})))
    assert "fp32, tf32 and bf16" in verdict.words


def test_a_fault_of_a_step_is_a_fault_of_the_device_and_a_skipped_one_is_none() -> None:
    steps = (
        StepResult(step="precision", faults=("bf16 is asked for, and fp16 is in force",)),
        StepResult(step="state", skipped="why"),
    )
    (verdict,) = bad(check(gpu(steps=steps)))
    assert (verdict.step, verdict.verdict, verdict.words) == (
        "precision", "failed", "bf16 is asked for, and fp16 is in force",
    )  # fmt: skip


def test_what_a_check_has_changed_or_left_is_named() -> None:
    before = {
        "holders": ["7 nvidia-persistenced: /dev/nvidia0"],
        "settings": {"power_limit_w": 700.0, "persistence": True},
    }
    after = {
        "holders": [*before["holders"], "99 python: /dev/nvidia0"],
        "settings": {"power_limit_w": 500.0, "persistence": True},
    }
    steps = (StepResult(step="state", facts=before), StepResult(step="clean", facts=after))
    words = [each.words for each in bad(check(gpu(steps=steps)))]
    assert words == [
        "process 99 python: /dev/nvidia0 has the device open, and had not before",
        "power_limit_w was 700.0 and is 500.0 now",
    ]


@given(st.sampled_from(_RATES), st.floats(0.0, 200.0), st.floats(0.0, 200.0), st.floats(0.05, 0.5), st.booleans())
def test_half_of_what_the_reference_had_always_fails_however_much_repeats_spread(
    quantity: str, spread_pct: float, spread_then_pct: float, part: float, same: bool
) -> None:
    then = {name: value for values in H200.values() for name, value in values.items()}
    slow = gpu({quantity: then[quantity] * part}, spread_pct, reported="unknown", uuid="1" if same else "2")
    reference = check(gpu(spread_pct=spread_then_pct, reported="unknown"))
    assert quantity in [each.quantity for each in bad(check(slow), reference=reference) if each.verdict == "failed"]


@given(st.lists(st.floats(-0.04, 0.5), min_size=20, max_size=20))
def test_a_device_within_its_tolerance_of_the_reference_raises_no_alarm(off: list[float]) -> None:
    then = [(name, value) for values in H200.values() for name, value in values.items()]
    now = {name: value * (1 + part) for (name, value), part in zip(then, off, strict=False) if name in _RATES}
    ordered = sorted(now[name] for name in ("fp32_tflops", "tf32_tflops", "bf16_tflops"))
    now |= dict(zip(("fp32_tflops", "tf32_tflops", "bf16_tflops"), ordered, strict=True))
    assert not bad(check(gpu(now, reported="unknown")), reference=check(gpu(reported="unknown")))


def test_another_device_is_compared_with_its_model_and_place() -> None:
    reference = check(gpu(uuid="1"), gpu({"memory_gb_per_s": 4500.0}, uuid="3"))
    found = judge(check(gpu(uuid="2")), GPUS, reference)
    expected = [each.expected for each in found if each.quantity == "memory_gb_per_s" and each.source == "reference"]
    assert expected == [4400.0]


@pytest.mark.parametrize(("gflops", "word"), [(2.0, "ok"), (1.86, "low"), (1.0, "failed")])
def test_an_emulated_device_is_held_to_its_pace(gflops: float, word: str) -> None:
    (verdict,) = judge(check(cpu({"fp32_gflops": gflops})), PACED)
    assert (verdict.verdict, verdict.expected) == (word, 2.0)


def test_a_machine_that_is_too_busy_to_hold_a_pace_judges_no_device() -> None:
    (verdict,) = judge(check(cpu({"fp32_gflops": 1.0}, {"late_pct": 40.0})), PACED)
    assert verdict.verdict == "rate"
    assert "40 % behind" in verdict.words


def test_cores_are_compared_with_the_reference_and_main_memory_is_not() -> None:
    now, then = check(cpu({"fp32_tflops": 0.05})), check(cpu({"fp32_tflops": 0.1}))
    assert [each.verdict for each in bad(now, PACED.model_copy(update={"emulation": None}), then)] == ["failed"]
    memory = StepResult(step="memory", values={"memory_gb_per_s": 1.0})
    devices = [cpu({}).model_copy(update={"steps": (memory.model_copy(update={"values": v}),)}) for v in ({"memory_gb_per_s": 9.0}, memory.values)]  # fmt: skip  # noqa: E501
    assert not bad(check(devices[1]), PACED, check(devices[0]))


def _links(factor: float, emulated: bool = False) -> dict[str, object]:
    document = links_document((2, 2))
    matrix = document["matrices"]["unidirectional_gb_per_s"]
    document["matrices"]["unidirectional_gb_per_s"] = [[rate and rate * factor for rate in row] for row in matrix]
    return {"host1": {**document, "emulated": emulated}}


@pytest.mark.parametrize(("factor", "fails"), [(1.0, False), (0.5, True)])
def test_a_link_at_half_its_rate_in_the_system_file_is_named(factor: float, fails: bool) -> None:
    links = {"local": {"gb_per_s": 36.0}, "fabric": {"gb_per_s": 12.0}}
    of = GPUS.model_copy(update={"links": type(GPUS.links).model_validate(links)})
    found = bad(check(gpu(reported="unknown"), links=_links(factor)), of)
    assert bool(found) is fails
    assert all(each.step == "between devices" for each in found)
    assert not fails or "% under the 12 GB/s of fabric links" in found[0].words


def test_links_of_too_many_pairs_for_the_time_have_no_verdict() -> None:
    links = _links(0.5)
    links["host1"]["matrix_size_bytes"] = 8  # type: ignore[index]
    found = [each for each in judge(check(gpu(), links=links), GPUS) if each.step == "between devices"]
    assert [each.verdict for each in found] == ["skipped"]


def test_training_in_several_processes_is_one_result_with_its_spread_before_the_last_look() -> None:
    def once(rate: float, trend_pct: float, has_trend: bool) -> StepResult:
        facts = {"late_pct": 0.0, "trend_pct": trend_pct, "has_trend": has_trend}
        return StepResult(step="repeatability", values={"samples_per_s": rate}, facts=facts)

    first, last = StepResult(step="state"), StepResult(step="clean")
    healthy = repeated([first, once(99.0, 0.2, True), once(100.0, -3.0, False), once(101.0, 0.1, True), last])
    assert [step.step for step in healthy] == ["state", "repeatability", "clean"]
    assert healthy[1].values == pytest.approx({"samples_per_s": 100.0, "cv_pct": 1.0})
    assert not bad(check(gpu(steps=healthy)))
    heating = repeated([once(100.0, 2.0, True), once(100.0, 3.0, True), once(100.0, 4.0, True)])
    assert [each.words for each in bad(check(gpu(steps=heating)))] == ["steps change by 3 % within each process"]
    late = [each.model_copy(update={"facts": {**each.facts, "late_pct": 9.0}}) for each in heating]
    assert not bad(check(cpu({}).model_copy(update={"steps": tuple(late)})), PACED)
    broken = (once(100.0, 0.0, False), StepResult(step="repeatability", faults=("lost",)))
    assert repeated(broken) == broken


def noisy(random: np.random.Generator) -> CheckedDevice:
    """A healthy H200 at another time: 1 % of noise in every rate, and what is to be nothing a quarter of its limit off."""
    values = [(name, value) for of_step in H200.values() for name, value in of_step.items()]
    rates = {name: value * float(random.normal(1, 0.01)) for name, value in values if not name.endswith("_pct")}
    rest = {name: float(abs(random.normal(0, 0.2))) for name, value in values if name.endswith("_pct")}
    return gpu(rates | rest, spread_pct=1.0)


def test_a_thousand_healthy_checks_of_a_device_with_noise_raise_no_alarm() -> None:
    random = np.random.default_rng(7)
    reference = check(noisy(random))
    assert [each for _ in range(1000) for each in bad(check(noisy(random)), reference=reference)] == []


@pytest.mark.parametrize(("devices", "known"), [(8, True), (2, False)])
def test_public_figures_between_devices_are_of_eight_in_one_host(devices: int, known: bool) -> None:
    links = {"host1": {**links_document((devices, 0)), "emulated": False}}
    here = [gpu(uuid=str(number)).model_copy(update={"attach": "local"}) for number in range(devices)]
    found = [each for each in judge(check(*here, links=links), GPUS) if each.quantity == "pair_gb_per_s"]
    assert [each.source for each in found] == (["Azure nd96isr_h200_v5"] if known else [""])


def test_what_a_busy_machine_gave_the_reference_is_compared_with_nothing() -> None:
    now, busy = check(cpu({"fp32_gflops": 2.0})), check(cpu({"fp32_gflops": 1.0}, {"late_pct": 40.0}))
    assert "reference" not in [each.source for each in judge(now, PACED, busy)]
    assert "reference" in [each.source for each in judge(now, PACED, now)]
