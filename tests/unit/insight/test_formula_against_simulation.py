"""The formula of `campaign recommend` against steps that are simulated event by event: every strategy, within 10 %."""

from __future__ import annotations

import numpy as np
import pytest

from tests import formula_errors


@pytest.mark.parametrize(
    ("strategies", "links", "trace", "speed", "worst"),
    [
        ("ddp", "NVLink", "bert-large", 6.0, 10),
        ("ddp, two precisions", "PCIe", "bert-base", 1.0, 10),
        ("ddp, accumulation 1 and 4", "Ethernet", "resnet50", 1.0, 10),
        ("ddp, overlapped and not", "NVLink", "yolov5l", 6.0, 10),
        ("zero1", "PCIe", "yolov5l", 1.0, 10),
        ("dp", "NVLink", "bert-base", 1.0, 11),
        ("ddp, zero1, fsdp, dp", "PCIe", "resnet50", 6.0, 15),
    ],
)
def test_no_cell_within_the_measured_range_is_far_off(
    strategies: str, links: str, trace: str, speed: float, worst: float
) -> None:
    found = formula_errors.errors(strategies, links, trace, speed)
    size = found["error_pct"].abs()
    of = found["cell"]
    assert size[of == "unseen"].max() < 10.5
    assert size[of == "left out"].max() < worst
    assert size.groupby(of).median().max() < 7
    assert np.mean(size > 10) < 0.02
    assert found["trusted"].all()
