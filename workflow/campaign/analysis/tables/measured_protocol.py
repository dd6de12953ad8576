"""Description of the protocol with the steps and windows that runs actually had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign.common import wording


def describe_measured_protocol(runs: pd.DataFrame, protocol: Mapping[str, Any]) -> str:
    """Describe the protocol in words, with the step counts and measured windows of the valid runs.

    Args:
        runs: rows of the runs table, valid or not.
        protocol: protocol of the campaign.
    """
    runs = runs[runs["status"] == "ok"]
    steps = []
    if len(runs) and (runs["measured_steps"] > 0).any():
        timed_runs = runs[runs["measured_steps"] > 0]
        steps.append(
            f"{_format_count_range(timed_runs['warmup_steps'])} warm-up and "
            f"{_format_count_range(timed_runs['measured_steps'])} measured steps per run"
        )
        if timed_runs["window_s"].notna().any():
            ends = (
                wording.format_seconds(timed_runs["window_s"].min()),
                wording.format_seconds(timed_runs["window_s"].max()),
            )
            steps.append(f"in {' to '.join(dict.fromkeys(ends))}")
    settings = {name: value for name, value in protocol.items() if name not in ("warmup_steps", "measured_steps")}
    descriptions = (
        [" ".join(steps), wording.describe_protocol(settings)] if steps else [wording.describe_protocol(settings)]
    )
    return ", ".join(descriptions)


def _format_count_range(counts: pd.Series[int]) -> str:
    """Format the smallest and the largest count, such as '5 to 8', or one number if both are equal."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
