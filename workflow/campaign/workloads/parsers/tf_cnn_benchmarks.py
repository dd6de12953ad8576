"""tf_cnn_benchmarks of TensorFlow, alone, with Horovod or with parameter servers.

With Horovod every rank prints its step lines and `total images/sec`. A rank's total is already that of all ranks, by its own
clock, so the smallest is the job's and nothing is added up; step lines are a rank's own. Ranks print into each other's lines, so
that a total counts only where it has exactly the two decimals that the program prints.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, agree, number

_TOTAL = re.compile(r"total images/sec: +(\d+\.\d\d|nan|inf)(?![\d.])")
_STEP = re.compile(rf"(\d{{1,9}})\s+images/sec: ({F})(?: \+/- {F} \(jitter = {F}\))?\s+({F})(?=\s|$)")
_GLOBAL = re.compile(r"Batch size:\s+([\d.]+) global")
_DEVICE = re.compile(r"\s+([\d.]+) per device")
_VARIABLES = re.compile(r"Variables:\s+(parameter_server|distributed_replicated)")
_APART = 1.05


class TfCnnBenchmarks(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.totals: list[float] = []
        self.begun = 0
        self.losses = 0
        self.loss: float | None = None
        self.loss_nan = False
        self.loss_zero = True
        self.batch_global: float | None = None
        self.batch: float | None = None
        self.servers = False
        self.evaluated = ""

    def line(self, line: str) -> None:
        # Ranks of one benchmark have all warmed up before any is done.
        if (self.totals or self.evaluated) and ("Done warm up" in line or _GLOBAL.search(line)):
            return self.another(line)
        if "total images/sec:" in line:
            self.totals += [float(text) for text in _TOTAL.findall(line)]
        elif "images/sec:" in line:
            if step := _STEP.match(line):
                self.loss = float(step[3])
                self.losses += 1
                self.loss_nan = self.loss_nan or not math.isfinite(self.loss)
                self.loss_zero = self.loss_zero and self.loss == 0
        elif "Done warm up" in line:
            self.begun += 1
        elif found := _GLOBAL.search(line):
            self.batch_global = number(found[1])
        elif found := _DEVICE.match(line):
            self.batch = number(found[1])
        elif _VARIABLES.search(line):
            self.servers = True
        elif "Done with training" in line or "examples/sec" in line:
            self.evaluated = line.strip()[:60]

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        if not self.totals:
            why = f" ('{self.evaluated}': a run that evaluates prints none)" if self.evaluated else ""
            verdict.incomplete(f"no 'total images/sec' in the output{why}")
        elif not all(map(math.isfinite, self.totals)):
            verdict.nan("a rank's total is not a number")
        elif len(self.totals) < self.begun:
            verdict.incomplete(f"{self.begun} ranks began to measure, and {len(self.totals)} printed a total")
        verdict.expect("the global batch is", self.batch_global, scope.batch_global)
        verdict.expect("the batch per device is", self.batch, scope.batch)
        if self.loss_nan:
            verdict.nan("the loss is not a number")
        finite = [total for total in self.totals if math.isfinite(total)]
        # Processes that do not know of each other are each other's only rank: each calls its own rate the total.
        if len(self.totals) > 1 and self.batch_global is None and scope.batch_global is not None:
            verdict.flag(
                "several ranks printed a total and none the global batch: whether they ran together is not known"
            )
        if finite and not agree(min(finite), max(finite), _APART - 1):
            verdict.flag(f"the ranks' totals lie {max(finite) / max(min(finite), 1e-9):.2f} times apart")
        if scope.ranks and 1 < len(self.totals) != scope.ranks:
            verdict.flag(f"{len(self.totals)} totals of {scope.ranks} ranks could be read")
        if self.losses and self.loss_zero:
            verdict.flag("the loss is 0 at every step, as in a forward-only run")
        if self.servers and len(self.totals) > 1:
            verdict.flag("parameter servers: the total counts the global step, which workers see differently")
        verdict.metrics["loss_last"] = self.loss if self.losses and not self.loss_zero else None
        return min(finite, default=None)


FORMAT = Format(
    TfCnnBenchmarks,
    needles=(
        b"images/sec:",
        b"Done warm up",
        b"Batch size:",
        b" per device",
        b"Variables:",
        b"Done with training",
        b"examples/sec",
    ),
)
