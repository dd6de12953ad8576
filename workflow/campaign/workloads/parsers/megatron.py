"""Parser of the training log of Megatron-LM, and of the similar logs of Primus and Megatron Bridge.

A line covers all iterations since the previous line (--log-interval), and its time is their mean. Primus prints
`this/mean`, of which the first value counts. The rate is that of samples (sequences). The first line includes
compilation and cold caches, and counts only if there is no other line. TFLOP/s are per device by Megatron's formula
for the model, without recomputation. Only the last rank prints.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from campaign.workloads.parsers.reading import F, LogFormat, LogReader, ReadingBuilder, RunContext, parse_number

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
"""Names of settings by the Megatron arguments that hold them."""
_ARGUMENT = re.compile(rf"\s*({'|'.join(_ARGUMENTS)}|params_dtype|fp8) \.+ (\S+)\s*$")
_SEQUENCE_LENGTH = re.compile(r"\s*seq_length \.+ (\d{1,9})\s*$")
_EXIT = re.compile(r"exiting program (?:at iteration|after)")
_TFLOPS = ("throughput per GPU (TFLOP/s/GPU)", "compute per GPU (TFLOP/s/GPU)")
_TOKENS = ("tokens per GPU (tokens/s/GPU)", "tokens/s/GPU inst/harmonic mean", "Tokens per second per GPU (Tok/s/GPU)")


@dataclass(frozen=True)
class _IterationLine:
    """Log line about an iteration, with its fields by name."""

    iteration: int
    fields: dict[str, float]

    def find_first_value(self, *names: str) -> float | None:
        """Return the value of the first of the named fields that the line contains, or None if it contains none."""
        return next((self.fields[name] for name in names if name in self.fields), None)


class MegatronReader(LogReader):
    """Reader of one training run of Megatron-LM."""

    def __init__(self) -> None:
        super().__init__()
        self.iteration_lines: list[_IterationLine] = []
        self.last_iteration: int | None = None
        self.has_exited = False
        self.arguments: dict[str, str] = {}
        self.next_arguments: dict[str, str] = {}
        self.sequence_length: float | None = None
        self.next_sequence_length: float | None = None

    def read_line(self, line: str) -> None:
        """Store an iteration or an argument. An iteration number that does not increase begins the next test."""
        if match := _STEP.search(line):
            fields = {name.strip(): float(text) for name, text in _FIELD.findall(match[3])}
            if "elapsed time per iteration (ms)" not in fields:
                if "elapsed time per iteration" in line:
                    self.note_unreadable(f"the time of iteration {match[1]}", match[3].partition("elapsed time")[2])
                return
            if self.iteration_lines and (
                int(match[1]) <= self.iteration_lines[-1].iteration or int(match[2]) != self.last_iteration
            ):
                reader = self.select_reader(True)
                reader.sequence_length, reader.arguments = self.next_sequence_length, self.next_arguments
                reader.read_line(line)
                return
            self.last_iteration = int(match[2])
            self.iteration_lines.append(_IterationLine(int(match[1]), fields))
        elif match := _SEQUENCE_LENGTH.match(line):
            if self.iteration_lines:  # of another training run, or of the same one after a restart
                self.next_sequence_length = float(match[1])
            else:
                self.sequence_length = float(match[1])
        elif match := _ARGUMENT.match(line):
            (self.next_arguments if self.iteration_lines else self.arguments)[match[1]] = match[2]
        elif _EXIT.search(line):
            self.has_exited = True

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add times, TFLOP/s, tokens, losses and settings of the counted iterations, and return the rate (samples/s)."""
        if not self.iteration_lines:
            builder.mark_incomplete("the output has no line with an iteration and its elapsed time")
            return None
        if self.iteration_lines[-1].iteration != self.last_iteration and not self.has_exited:
            builder.mark_incomplete(
                f"the output ends at iteration {self.iteration_lines[-1].iteration} of {self.last_iteration}"
            )
        counted_lines = self.select_counted_lines(context, builder)
        batches = {line.fields.get("global batch size") for line in counted_lines}
        batch = batches.pop() if len(batches) == 1 else None
        if batch is None:
            builder.add_flag("the log has no rate, because the global batch changed or is unknown")
        builder.require_equal("global batch", batch, context.batch_global)
        self.add_settings(builder)
        self.check_losses(builder)
        step_times_s = [line.fields["elapsed time per iteration (ms)"] / 1e3 for line in counted_lines]
        if not all(math.isfinite(step) and step > 0 for step in step_times_s):
            builder.mark_nan("the time of an iteration is not a positive number")
            return None
        spacings = self.count_iterations(counted_lines)
        mean_s = math.fsum(map(math.prod, zip(step_times_s, spacings, strict=True))) / sum(spacings)
        rate = None if batch is None else batch / mean_s
        tflops = [value for line in counted_lines if (value := line.find_first_value(*_TFLOPS)) is not None]
        tokens = [value for line in counted_lines if (value := line.find_first_value(*_TOKENS)) is not None]
        builder.metrics |= {
            "iteration_time_s": mean_s,
            "tflops_per_device": sum(tflops) / len(tflops) if tflops else None,
            "tokens_per_device_per_s": sum(tokens) / len(tokens) if tokens else None,
            "tokens_per_s": None if rate is None or self.sequence_length is None else rate * self.sequence_length,
            "iterations": float(sum(spacings)),
        }
        return rate

    def select_counted_lines(self, context: RunContext, builder: ReadingBuilder) -> list[_IterationLine]:
        """Select the iteration lines that count: those after the warm-up, without the first line.

        If there are none, all lines are returned, and the reading gets a flag.
        """
        last_warmup_iteration = self.iteration_lines[0].iteration - 1 + (context.warmup_steps or 0)
        counted_lines = [line for line in self.iteration_lines[1:] if line.iteration > last_warmup_iteration]
        if not counted_lines:
            builder.add_flag("all lines count, because there is none after the first line and the warm-up")
        return counted_lines or self.iteration_lines

    def count_iterations(self, counted_lines: list[_IterationLine]) -> list[int]:
        """Return the number of iterations that each of the lines covers."""
        previous_iteration = {
            next_line.iteration: line.iteration
            for line, next_line in zip(self.iteration_lines, self.iteration_lines[1:], strict=False)
        }
        return [
            max(1, line.iteration - previous_iteration.get(line.iteration, line.iteration - 1))
            for line in counted_lines
        ]

    def add_settings(self, builder: ReadingBuilder) -> None:
        """Add settings from the arguments that Megatron prints when it starts."""
        arguments = self.arguments
        is_fp8 = arguments.get("fp8", "None") not in ("None", "False")
        builder.settings |= {
            "precision": "fp8" if is_fp8 else arguments.get("params_dtype", "").removeprefix("torch."),
            **{name: parse_number(arguments.get(argument)) for argument, name in _ARGUMENTS.items()},
            "sequence_length": self.sequence_length,
        }

    def check_losses(self, builder: ReadingBuilder) -> None:
        """Add the last loss. Report skipped iterations and losses that are not a number."""
        last_fields = self.iteration_lines[-1].fields
        if sum(line.fields.get("number of nan iterations", 0) for line in self.iteration_lines) > 0:
            builder.mark_nan("the loss of an iteration is not a number")
        if skipped_iterations := sum(
            line.fields.get("number of skipped iterations", 0) for line in self.iteration_lines
        ):
            builder.add_flag(f"{skipped_iterations:g} iterations were skipped")
        builder.metrics["loss_last"] = loss = last_fields.get("lm loss")
        if loss is not None and not math.isfinite(loss):
            builder.mark_nan("the last loss is not a number")


_ARGUMENT_NEEDLES = (b"seq_length", b"_size ..", b"params_dtype", b"fp8 ..", b"num_layers", b"num_attention_heads")

FORMAT = LogFormat(
    MegatronReader,
    needles=(b"elapsed time per iteration", b"exiting program", *_ARGUMENT_NEEDLES),
    max_line_chars=16 << 10,
)
