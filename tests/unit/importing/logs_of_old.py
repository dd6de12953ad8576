"""A directory of logs as somebody may have kept it, made of the saved ones, and the map that goes with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

LOGS = Path(__file__).parents[2] / "data" / "logs"

MAP: dict[str, Any] = {
    "name": "old",
    "system": {
        "name": "old-cluster",
        "hosts": [{"name": "fc[1-4]", "cores": 8, "memory_gib": 64, "devices": [{"model": "a100", "count": 4}]}],
    },
    "software": {"tensorflow": "2.4.1"},
    "configurations": [
        {"name": "1x1"},
        {"name": "1x4", "devices_per_host": 4},
        {"name": "2x2", "hosts": 2, "devices_per_host": 2},
    ],
    "workloads": {"resnet50": {"parser": "tf_cnn_benchmarks"}},
    "logs": [
        {
            "path": "{configuration}/{workload}-b{batch}-{precision}-r{repetition}.log",
            "words": {"precision": {"amp": "fp16"}},
            "times": {"start": "^started (.*)", "end": "^ended (.*)"},
        }
    ],
    "protocol": {"warmup_steps": 10, "measured_steps": 100},
}
OOM = "Running warm up\nOOM when allocating tensor with shape[128,512] on /replica:0/task:0/device:GPU:0 by allocator\n"


def four_ranks(rate: float, batch: int = 64) -> str:
    """A log of four Horovod ranks at a rate."""
    text = (LOGS / "tf_cnn_benchmarks/horovod-4-ranks.log").read_text()
    text = text.replace("256 global", f"{4 * batch} global").replace("64 per device", f"{batch} per device")
    for printed in ("1198.95", "1199.31", "1198.42", "1199.02"):
        text = text.replace(printed, f"{rate:.2f}")
    return text


def timed(text: str, minute: int) -> str:
    return f"started 2022-05-03 10:{minute:02}:00\n{text}ended 2022-05-03 10:{minute:02}:30\n"


def write_logs(directory: Path) -> Path:
    """Two configurations, two batches, three repetitions; the larger batch runs out of memory on two hosts."""
    minute = 0
    for configuration, share in (("1x4", 1.0), ("2x2", 0.95)):
        for batch in (32, 64):
            for repetition in (1, 2, 3):
                text = four_ranks(1000 * share + batch + repetition, batch)
                if (configuration, batch) == ("2x2", 64):
                    text = OOM
                put(directory, f"{configuration}/resnet50-b{batch}-amp-r{repetition}.log", timed(text, minute))
                minute += 1
    return directory


def put(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_map(path: Path, **changes: Any) -> Path:
    """The map with other values for some of its keys; None removes a key."""
    document = copy.deepcopy(MAP) | changes
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return path
