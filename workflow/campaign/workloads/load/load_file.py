"""The load that a workload file describes: arrivals, lengths of prompts and outputs, duration; and what users are promised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from campaign.documents.cell import Scalar
from campaign.documents.fields import Argument, FileModel

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class Uniform(FileModel):
    """Lengths that are equally likely between two bounds, which are included."""

    uniform: tuple[Tokens, Tokens]
    """Smallest and largest length."""

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.uniform[0] > self.uniform[1]:
            raise ValueError("the first bound of 'uniform' is the smaller one")
        return self


class Lognormal(FileModel):
    """Lengths with a long tail."""

    median: Tokens
    """Half of the lengths are below it."""
    sigma: float = Field(gt=0, le=3)
    """Standard deviation of the lengths' logarithm."""
    max: Tokens
    """Longer lengths are cut to this one."""


Lengths = Tokens | Uniform | Lognormal


class Load(FileModel):
    """Requests that are sent to an OpenAI-compatible server. An option with the name of a key replaces its value."""

    endpoint: Literal["completions", "chat"] = "completions"
    """`completions`: /v1/completions; `chat`: /v1/chat/completions."""
    arrivals: Literal["poisson", "fixed"] = "poisson"
    """Gaps between requests with `rate_per_s`: exponentially distributed, or all equal."""
    rate_per_s: float = Field(default=0.0, ge=0, le=100_000)
    """Open loop: requests per second, however many are still being answered."""
    concurrency: int = Field(default=0, ge=0, le=65_536)
    """Closed loop, instead of `rate_per_s`: so many requests are being answered at any time."""
    duration_s: float = Field(default=0.0, ge=0)
    """The load takes so long: no request starts later."""
    requests: int = Field(default=0, ge=0, le=10_000_000)
    """Instead of `duration_s`: number of requests."""
    warmup_s: float = Field(default=0.0, ge=0)
    """Requests that start earlier are recorded, and do not count."""
    timeout_s: float = Field(default=60.0, gt=0)
    """A request that is not answered completely so long after its intended start is an error."""
    prompt_tokens: Lengths = 128
    """Length of prompts in tokens: a number, `{uniform: [16, 64]}`, or `{median: 128, sigma: 0.8, max: 2048}` (log-normal)."""
    output_tokens: Lengths = 64
    """Length of outputs in tokens, as for prompts. It is the request's `max_tokens`."""
    prompts: Argument | None = None
    """File with prompts and lengths, instead of `prompt_tokens` and `output_tokens`: a JSON object per line with `prompt_tokens`,
    `output_tokens` and perhaps `prompt`; or a JSON array of conversations, as in ShareGPT."""
    seed: int = 1
    """Seed of arrivals, lengths and prompts."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of a request, such as `ignore_eos: true`, with which vLLM and SGLang give outputs of the requested length."""

    def for_run(self, options: Mapping[str, Scalar]) -> Load:
        """The load with a run's options in place of the keys that they name; ValueError for one that cannot be applied."""
        named = {name: value for name, value in options.items() if name in Load.model_fields}
        load = Load.model_validate({**self.model_dump(exclude_defaults=True), **named})
        if (load.rate_per_s > 0) == (load.concurrency > 0):
            raise ValueError("give either 'rate_per_s' or 'concurrency', in 'load' or as an option; the other is 0")
        if (load.duration_s > 0) == (load.requests > 0):
            raise ValueError("give either 'duration_s' or 'requests', in 'load' or as an option; the other is 0")
        if 0 < load.duration_s <= load.warmup_s:
            raise ValueError(f"'warmup_s' ({load.warmup_s:g}) leaves nothing of 'duration_s' ({load.duration_s:g})")
        return load


Percentile = Literal["p50", "p90", "p95", "p99"]
_Limits = dict[Percentile, Annotated[float, Field(gt=0)]]


class LatencyObjective(FileModel):
    """What users are promised: upper limits of percentiles, in milliseconds."""

    ttft_ms: _Limits = Field(default_factory=dict)
    """Time to first token, such as `{p99: 500}`."""
    tpot_ms: _Limits = Field(default_factory=dict)
    """Time per output token after the first."""
    e2e_ms: _Limits = Field(default_factory=dict)
    """Time to the end of the answer."""
