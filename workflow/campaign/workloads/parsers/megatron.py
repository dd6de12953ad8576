"""Parser of the training log of Megatron-LM, and of the similar logs of Primus and Megatron Bridge.

A line covers all iterations since the previous line (--log-interval), and its time is their mean. Primus prints
`this/mean`, of which the first counts. The rate is that of samples (sequences). The first line includes
compiling and filling caches, and counts only if there is no other. TFLOP/s are per device by Megatron's formula
for the model, which leaves recomputation out. Only the last rank prints.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, number

_STEP = re.compile(r"iteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|(.*)")
_FIELD = re.compile(rf"\s*([^|:]{{3,60}}): +({F})(?:/{F})?\s*(?:\(avg {F}\)\s*)?\|")
_ARGUMENTS = {
    "micro_batch_size": "micro_batch",
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "world_size": "ranks",
    "num_layers": "layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "attention_heads",
}
"""Argument of Megatron -> name of the setting."""
_ARGUMENT = re.compile(rf"\s*({'|'.join(_ARGUMENTS)}|params_dtype|fp8) \.+ (\S+)\s*$")
_LENGTH = re.compile(r"\s*seq_length \.+ (\d{1,9})\s*$")
_LAST = re.compile(r"exiting program (?:at iteration|after)")
_TFLOPS = ("throughput per GPU (TFLOP/s/GPU)", "compute per GPU (TFLOP/s/GPU)")
_TOKENS = ("tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean", "Tokens per second per GPU (Tok/s/GPU)")


@dataclass(frozen=True)
class _Line:
    """Log line of one iteration, with its fields by name."""

    iteration: int
    fields: dict[str, float]

    def first(self, *names: str) -> float | None:
        """Return the value of the first of these fields that the line has, or None."""
        return next((self.fields[name] for name in names if name in self.fields), None)


class Megatron(LogReader):
    """Reader of one training run."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[_Line] = []
        self.last: int | None = None
        self.left = False
        self.arguments: dict[str, str] = {}
        self.next_arguments: dict[str, str] = {}
        self.length: float | None = None
        self.next_length: float | None = None

    def line(self, line: str) -> None:
        """Store an iteration or an argument. An iteration number that does not grow begins the next test."""
        if found := _STEP.search(line):
            fields = {name.strip(): float(text) for name, text in _FIELD.findall(found[3])}
            if "elapsed time per iteration (ms)" not in fields:
                if "elapsed time per iteration" in line:
                    self.leave_out(f"the time of iteration {found[1]}", found[3].partition("elapsed time")[2])
                return
            if self.lines and (int(found[1]) <= self.lines[-1].iteration or int(found[2]) != self.last):
                after = self.fresh(True)
                after.length, after.arguments = self.next_length, self.next_arguments
                after.line(line)
                return
            self.last = int(found[2])
            self.lines.append(_Line(int(found[1]), fields))
        elif found := _LENGTH.match(line):
            if self.lines:  # of another training run, or of the same one after a restart
                self.next_length = float(found[1])
            else:
                self.length = float(found[1])
        elif found := _ARGUMENT.match(line):
            (self.next_arguments if self.lines else self.arguments)[found[1]] = found[2]
        elif _LAST.search(line):
            self.left = True

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add times, TFLOP/s, tokens, losses and settings of the counted iterations, and return the rate (samples/s)."""
        if not self.lines:
            verdict.incomplete("no line with an iteration and its elapsed time in the output")
            return None
        if self.lines[-1].iteration != self.last and not self.left:
            verdict.incomplete(f"the output ends at iteration {self.lines[-1].iteration} of {self.last}")
        counted = self.counted(scope, verdict)
        batches = {line.fields.get("global batch size") for line in counted}
        batch = batches.pop() if len(batches) == 1 else None
        if batch is None:
            verdict.flag("the global batch changed or is not known: no rate")
        verdict.expect("the global batch is", batch, scope.batch_global)
        self.settings(verdict)
        self.losses(verdict)
        steps = [line.fields["elapsed time per iteration (ms)"] / 1e3 for line in counted]
        if not all(math.isfinite(step) and step > 0 for step in steps):
            verdict.nan("a time of an iteration is not a number above 0")
            return None
        spacings = self.spacings(counted)
        mean_s = math.fsum(map(math.prod, zip(steps, spacings, strict=True))) / sum(spacings)
        rate = None if batch is None else batch / mean_s
        tflops = [value for line in counted if (value := line.first(*_TFLOPS)) is not None]
        tokens = [value for line in counted if (value := line.first(*_TOKENS)) is not None]
        verdict.metrics |= {
            "iteration_time_s": mean_s,
            "tflops_per_device": sum(tflops) / len(tflops) if tflops else None,
            "tokens_per_device_per_s": sum(tokens) / len(tokens) if tokens else None,
            "tokens_per_s": None if rate is None or self.length is None else rate * self.length,
            "iterations": float(sum(spacings)),
        }
        return rate

    def counted(self, scope: Scope, verdict: Verdict) -> list[_Line]:
        """Return the lines after the warm-up, and never the first line.

        If there are none, all lines are returned, and the reading gets a flag.
        """
        warmup = self.lines[0].iteration - 1 + (scope.warmup_steps or 0)
        counted = [line for line in self.lines[1:] if line.iteration > warmup]
        if not counted:
            verdict.flag("no line behind the first, or behind the warm-up: all lines count")
        return counted or self.lines

    def spacings(self, counted: list[_Line]) -> list[int]:
        """Count the iterations that each line covers."""
        before = {after.iteration: line.iteration for line, after in zip(self.lines, self.lines[1:], strict=False)}
        return [max(1, line.iteration - before.get(line.iteration, line.iteration - 1)) for line in counted]

    def settings(self, verdict: Verdict) -> None:
        """Add the settings from the arguments that Megatron prints at its start."""
        stated = self.arguments
        eight_bits = stated.get("fp8", "None") not in ("None", "False")
        verdict.settings |= {
            "precision": "fp8" if eight_bits else stated.get("params_dtype", "").removeprefix("torch."),
            **{name: number(stated.get(argument)) for argument, name in _ARGUMENTS.items()},
            "sequence_length": self.length,
        }

    def losses(self, verdict: Verdict) -> None:
        """Add the last loss, and report losses that are not a number and skipped iterations."""
        last = self.lines[-1].fields
        if sum(line.fields.get("number of nan iterations", 0) for line in self.lines) > 0:
            verdict.nan("iterations had a loss that is not a number")
        if skipped := sum(line.fields.get("number of skipped iterations", 0) for line in self.lines):
            verdict.flag(f"{skipped:g} iterations were skipped")
        verdict.metrics["loss_last"] = loss = last.get("lm loss")
        if loss is not None and not math.isfinite(loss):
            verdict.nan("the last loss is not a number")


_PRINTED = (b"seq_length", b"_size ..", b"params_dtype", b"fp8 ..", b"num_layers", b"num_attention_heads")

FORMAT = Format(Megatron, needles=(b"elapsed time per iteration", b"exiting program", *_PRINTED), line_max=16 << 10)
