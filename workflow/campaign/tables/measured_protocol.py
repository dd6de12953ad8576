"""How runs were measured, in the words of captions: steps and windows as their records have them, and what stood for hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign import wording


def said(runs: pd.DataFrame, context: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """The protocol in words: 'Protocol: .. Processes on CPU cores stand for devices.' runs: of the runs table, valid or not;
    context: the report's."""
    runs = runs[runs["status"] == "ok"]
    steps = []
    if len(runs) and (runs["measured_steps"] > 0).any():
        timed = runs[runs["measured_steps"] > 0]
        steps.append(
            f"{_between(timed['warmup_steps'])} warm-up and {_between(timed['measured_steps'])} measured steps a run"
        )
        if timed["window_s"].notna().any():
            ends = (wording.seconds(timed["window_s"].min()), wording.seconds(timed["window_s"].max()))
            steps.append(f"in {' to '.join(dict.fromkeys(ends))}")
    how = {name: value for name, value in protocol.items() if name not in ("warmup_steps", "measured_steps")}
    told = [" ".join(steps), wording.protocol(how)] if steps else [wording.protocol(how)]
    return f"Protocol: {', '.join(told)}.{conditions(context)}"


def conditions(context: Mapping[str, Any]) -> str:
    """What stood for hardware, as sentences after a space; '' for nothing. context: the report's document."""
    return "".join(f" {each[0].upper()}{each[1:]}." for each in context.get("conditions", ()))


def _between(counts: pd.Series[int]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
