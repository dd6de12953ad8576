"""Services that an earlier version measured with its own load generator.

Their results can still be read, but such services are no longer started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.workloads.service import ServiceWorkload
from campaign.workloads.service_run.specification import BenchmarkClient

_LOAD_DEFAULTS: Mapping[str, Any] = {
    **{
        "endpoint": "completions",
        "arrivals": "poisson",
        "rate_per_s": 0.0,
        "concurrency": 0,
        "duration_s": 0.0,
        "requests": 0,
    },
    **{
        "warmup_s": 0.0,
        "timeout_s": 60.0,
        "prompt_tokens": 128,
        "output_tokens": 64,
        "prompts": None,
        "seed": 1,
        "body": {},
    },
}


class EarlierService(ServiceWorkload):
    """Service from stored results, measured with the earlier built-in load. Cells keep their identities and records."""

    client: BenchmarkClient = BenchmarkClient(command=("unknown",), parser="vllm")
    load: dict[str, Any]
    model: str | None = None

    def identity_document(self) -> dict[str, Any]:
        """Return the identity document of the service, including the load, as earlier versions wrote it."""
        document = super().identity_document()
        document.pop("client", None)
        document["load"] = {key: value for key, value in self.load.items() if value != _LOAD_DEFAULTS.get(key)}
        return document
