"""Description of the protocol with the steps and windows that runs actually had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign.common import wording


def said(runs: pd.DataFrame, protocol: Mapping[str, Any]) -> str:
    """Describe the protocol in words, with the steps and windows of the valid runs.

    Args:
        runs: rows of the runs table, valid or not.
        protocol: protocol of the campaign.
    """
    runs = runs[runs["status"] == "ok"]
    steps = []
    if len(runs) and (runs["measured_steps"] > 0).any():
        timed = runs[runs["measured_steps"] > 0]
        steps.append(
            f"{_between(timed['warmup_steps'])} warm-up and {_between(timed['measured_steps'])} measured steps a run"
        )
        if timed["window_s"].notna().any():
            ends = (wording.format_seconds(timed["window_s"].min()), wording.format_seconds(timed["window_s"].max()))
            steps.append(f"in {' to '.join(dict.fromkeys(ends))}")
    how = {name: value for name, value in protocol.items() if name not in ("warmup_steps", "measured_steps")}
    told = [" ".join(steps), wording.describe_protocol(how)] if steps else [wording.describe_protocol(how)]
    return ", ".join(told)


def _between(counts: pd.Series[int]) -> str:
    """Format the smallest and the largest count, such as '5 to 8', or one number if both are equal."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
