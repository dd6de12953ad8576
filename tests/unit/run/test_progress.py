"""The line that `campaign run` prints when a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.common.paths import Results
from campaign.run.progress import ProgressReporter


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (12810.4, "images/s", "12,810 images/s"),
        (82.4312, "samples/s", "82.43 samples/s"),
        (1234567.0, "samples/s", "1,234,567 samples/s"),
        (0.00123456, "s", "0.001235 s"),
    ],
)
def test_rates_are_printed_as_on_the_page(tmp_path: Path, value: float, unit: str, shown: str) -> None:
    lines: list[str] = []
    reporter = ProgressReporter(Results(tmp_path, "demo"), "a.c1", 1, lines.append)
    line = {"lease": "a.c1", "what": "bert", "status": "ok", "throughput_per_s": value, "value": value, "unit": unit}
    reporter.add_line({**line, "cell_done": True})
    assert lines == [f"[1/1 runs] a.c1 · bert: {shown} · under 1 s left"]
