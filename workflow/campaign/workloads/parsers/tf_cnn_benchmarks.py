"""Parser of TensorFlow's tf_cnn_benchmarks, alone, with Horovod or with parameter servers.

With Horovod, every rank prints its step lines and `total images/sec`. The total of a rank is that of all ranks,
measured by the clock of this rank, so totals are not added up, and the smallest total is that of the job. Step
lines are those of one rank. Ranks print into each other's lines, so a total counts only if it has exactly the
two decimals that the program prints.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import (
    F,
    LineReader,
    LogFormat,
    ReadingBuilder,
    RunContext,
    compile_patterns,
    is_close,
)

_TOTAL = re.compile(r"total images/sec: +(\d+\.\d\d|nan|inf)(?![\d.])")
_MAX_TOTAL_RATIO = 1.05


class TfCnnBenchmarksReader(LineReader):
    """Reader of one run of tf_cnn_benchmarks."""

    PATTERNS = compile_patterns(
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

    def read_line(self, line: str) -> None:
        """Store the totals in a line, into which several ranks may have printed, or else match it with the patterns."""
        if "total images/sec:" in line:  # one line may have the totals of several ranks
            self.totals += [float(text) for text in _TOTAL.findall(line)]
        else:
            super().read_line(line)

    def begins_next_test(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line begins another run: a header or end of warm-up that follows a total or an evaluation."""
        # All ranks of one benchmark finish warming up before any rank is done.
        return name in ("begun", "batch_global") and bool(self.totals or self.matches["evaluated"])

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the last loss, and return the smallest total (images/s). Check the batch, the ranks and the spread of totals."""
        losses, begun_ranks = [float(loss) for (loss,) in self.matches["step"]], len(self.matches["begun"])
        if not self.totals:
            evaluation_line = self.last_match("evaluated")
            explanation = f" ('{evaluation_line[0].rstrip()}': evaluation runs print none)" if evaluation_line else ""
            builder.mark_incomplete(f"the output has no line 'total images/sec'{explanation}")
        elif not all(map(math.isfinite, self.totals)):
            builder.mark_nan("a rank's total is not a number")
        elif len(self.totals) < begun_ranks:
            builder.mark_incomplete(
                f"{begun_ranks} ranks began to measure, but only {len(self.totals)} printed a total"
            )
        builder.require_equal("global batch", self.last_number("batch_global"), context.batch_global)
        builder.require_equal("batch per device", self.last_number("batch"), context.batch)
        builder.settings["model"] = (self.last_match("model") or ("",))[0]
        if not all(map(math.isfinite, losses)):
            builder.mark_nan("the loss is not a number")
        finite_totals = [total for total in self.totals if math.isfinite(total)]
        # Independent processes have one rank each and print their own rate as the total.
        if len(self.totals) > 1 and not self.matches["batch_global"] and context.batch_global is not None:
            builder.add_flag(
                "several ranks printed a total, but none printed the global batch, so they may not have run together"
            )
        if finite_totals and not is_close(min(finite_totals), max(finite_totals), _MAX_TOTAL_RATIO - 1):
            builder.add_flag(
                f"the largest total of a rank is {max(finite_totals) / max(min(finite_totals), 1e-9):.2f} times the smallest"
            )
        if context.ranks and 1 < len(self.totals) != context.ranks:
            builder.add_flag(f"the log has the totals of {len(self.totals)} ranks instead of {context.ranks}")
        if losses and not any(losses):
            builder.add_flag("the loss is 0 at every step, as in a forward-only run")
        if self.matches["servers"] and len(self.totals) > 1:
            builder.add_flag(
                "with parameter servers, the total counts global steps, whose number differs between workers"
            )
        builder.metrics["loss_last"] = losses[-1] if any(losses) else None
        return min(finite_totals, default=None)


FORMAT = LogFormat(
    TfCnnBenchmarksReader,
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
