"""Parser of TensorFlow's tf_cnn_benchmarks, alone, with Horovod or with parameter servers.

With Horovod, every rank prints its step lines and `total images/sec`. The total of a rank is already that of
all ranks, measured by its own clock, so the smallest total is that of the job and nothing is added up. Step
lines are those of one rank. Ranks print into each other's lines, so a total counts only if it has exactly the
two decimals that the program prints.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LineReader, Scope, Verdict, agree, lines

_TOTAL = re.compile(r"total images/sec: +(\d+\.\d\d|nan|inf)(?![\d.])")
_APART = 1.05


class TfCnnBenchmarks(LineReader):
    """Reader of one run of tf_cnn_benchmarks."""

    LINES = lines(
        step=rf"\d{{1,9}}\s+images/sec: {F}(?: \+/- {F} \(jitter = {F}\))?\s+({F})(?=\s|$)",
        model=r".*?Model:\s+(\S{1,60})\s*$",
        begun=".*Done warm up",
        batch_global=r".*?Batch size:\s+([\d.]+) global",
        batch=r"\s+([\d.]+) per device",
        servers=r".*?Variables:\s+(?:parameter_server|distributed_replicated)",
        evaluated=r"\s*(?=.*(?:Done with training|examples/sec))(.{1,60})",
    )

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[float] = []

    def line(self, line: str) -> None:
        """Store the totals of a line, which several ranks may have printed, or read it by the patterns."""
        if "total images/sec:" in line:  # one line may have the totals of several ranks
            self.totals += [float(text) for text in _TOTAL.findall(line)]
        else:
            super().read_line(line)

    def opens(self, name: str, values: tuple[str, ...]) -> bool:
        # All ranks of one benchmark finish warming up before any rank is done.
        """Return True if a line is a header or the end of the warm-up after a total or an evaluation."""
        return name in ("begun", "batch_global") and bool(self.totals or self.found["evaluated"])

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add the last loss and return the smallest total (images/s). Check batch, ranks and the spread of the totals."""
        losses, begun = [float(loss) for (loss,) in self.found["step"]], len(self.found["begun"])
        if not self.totals:
            evaluated = self.last("evaluated")
            why = f" ('{evaluated[0].rstrip()}': a run that evaluates prints none)" if evaluated else ""
            verdict.incomplete(f"no 'total images/sec' in the output{why}")
        elif not all(map(math.isfinite, self.totals)):
            verdict.nan("a rank's total is not a number")
        elif len(self.totals) < begun:
            verdict.incomplete(f"{begun} ranks began to measure, and {len(self.totals)} printed a total")
        verdict.expect("the global batch is", self.number("batch_global"), scope.batch_global)
        verdict.expect("the batch per device is", self.number("batch"), scope.batch)
        verdict.settings["model"] = (self.last("model") or ("",))[0]
        if not all(map(math.isfinite, losses)):
            verdict.nan("the loss is not a number")
        finite = [total for total in self.totals if math.isfinite(total)]
        # Independent processes have one rank each and print their own rate as the total.
        if len(self.totals) > 1 and not self.found["batch_global"] and scope.batch_global is not None:
            verdict.flag(
                "several ranks printed a total and none the global batch: whether they ran together is not known"
            )
        if finite and not agree(min(finite), max(finite), _APART - 1):
            verdict.flag(f"the ranks' totals lie {max(finite) / max(min(finite), 1e-9):.2f} times apart")
        if scope.ranks and 1 < len(self.totals) != scope.ranks:
            verdict.flag(f"{len(self.totals)} totals of {scope.ranks} ranks could be read")
        if losses and not any(losses):
            verdict.flag("the loss is 0 at every step, as in a forward-only run")
        if self.found["servers"] and len(self.totals) > 1:
            verdict.flag("parameter servers: the total counts the global step, which workers see differently")
        verdict.metrics["loss_last"] = losses[-1] if any(losses) else None
        return min(finite, default=None)


FORMAT = Format(
    TfCnnBenchmarks,
    needles=(
        b"images/sec:",
        b"Model:",
        b"Done warm up",
        b"Batch size:",
        b" per device",
        b"Variables:",
        b"Done with training",
        b"examples/sec",
    ),
    decimals=2,
)
