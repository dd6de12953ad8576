"""Parser of NVIDIA's BERT fine-tuning (run_squad.py).

It reads the output of DLLogger, or its file dllogger.json (lines `DLLL {...}`).

The printed rate counts the requested steps, not the steps that were done. With --max_steps beyond the epochs, it is
several times too high. With --max_steps, the program also runs one more step, and a fraction of an epoch is counted
but not run. So the rate is recomputed from the samples of the steps that were done, and the printed rate is a
separate metric. The rate includes the warm-up.
"""

from __future__ import annotations

import json
import math
import re

from campaign.workloads.parsers.reading import F, LogFormat, LogReader, ReadingBuilder, RunContext, parse_number

_PAIR = re.compile(rf"(?<![\w.])([A-Za-z_]\w{{0,60}}) : ({F})(?=\s|$)")
_ITERATION = re.compile(r"Training Epoch: (\d{1,9}) Training Iteration: (\d{1,12})")
_PROGRESS_BAR = re.compile(r"Iteration: 100%\|[^|]*\|\s*(\d{1,12})/(\d{1,12}) \[")
_SETTING = re.compile(
    rf"\b(max_steps|max_seq_length|num_train_epochs|train_batch_size|gradient_accumulation_steps|log_freq)=({F})(?=[,)\s])"
)
_FP16 = re.compile(r"\bfp16=(True|False)\b")
_RUN_START = re.compile(r"PARAMETER.*\b(?:Config|SEED|training_features)\b")
_MAX_RATE_DEVIATION = 0.002


class NvidiaBertReader(LogReader):
    """Reader of one fine-tuning run of NVIDIA's BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, float] = {}
        self.summary: dict[str, float] = {}
        self.scores: dict[str, float] = {}
        self.is_fp16: bool | None = None
        self.batches_per_epoch: int | None = None
        self.epochs = 0
        self.last_iteration = 0
        self.print_interval = 0

    def read_line(self, line: str) -> None:
        """Store a line of DLLogger or the progress bar. Parameters or a summary after a finished run begin the next test."""
        # A run logs the parameters of training before its steps, and those of evaluation between its steps and its summary.
        if (self.summary and "PARAMETER" in line) or (self.last_iteration and _RUN_START.search(line)):
            return self.start_next_test(line)
        if "e2e_train_time" in line and self.summary:
            return self.start_next_test(line)
        if "DLLL {" in line:
            self.store_event(line[line.find("DLLL {") + 5 :])
            self.from_file = True
            return
        if bar := _PROGRESS_BAR.search(line):
            self.batches_per_epoch = int(bar[2])
        if (position := line.find("DLL ")) >= 0:
            line = line[position:]
            iteration = _ITERATION.search(line)
            numbers = {name: float(value) for name, value in _PAIR.findall(line)}
            self.store_line(
                numbers, iteration and (int(iteration[1]), int(iteration[2])), line if "PARAMETER" in line else None
            )

    def store_line(self, numbers: dict[str, float], iteration: tuple[int, int] | None, parameters: str | None) -> None:
        """Store the summary, iteration, parameters or scores that a line contains.

        Args:
            numbers: numbers in the line by name.
            iteration: epoch and iteration, or None if the line has none.
            parameters: text of the parameters, or None if the line has none.
        """
        if "e2e_train_time" in numbers:
            self.summary = numbers
        elif iteration:
            self.epochs = max(self.epochs, iteration[0] + 1)
            if iteration[1] > self.last_iteration:
                self.print_interval = max(self.print_interval, iteration[1] - self.last_iteration)
                self.last_iteration = iteration[1]
        elif parameters is not None:
            self.store_parameters(parameters, numbers)
        else:
            self.scores |= {name: numbers[name] for name in ("exact_match", "F1") if name in numbers}

    def store_event(self, text: str) -> None:
        """Store an event from dllogger.json, given as JSON text. Invalid text is ignored."""
        try:
            document, _ = json.JSONDecoder().raw_decode(text)
            step, data = document["step"], document["data"]
            numbers = {name: value for name, raw in data.items() if (value := parse_number(raw)) is not None}
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return
        is_iteration = (
            isinstance(step, list) and len(step) == 2 and all(type(part) is int and part >= 0 for part in step)
        )
        settings = data.get("Config")
        texts = [text for text in (settings if isinstance(settings, list) else [settings]) if isinstance(text, str)]
        self.store_line(
            numbers, (step[0], step[1]) if is_iteration else None, " ".join(texts) if step == "PARAMETER" else None
        )

    def store_parameters(self, text: str, numbers: dict[str, float]) -> None:
        """Store the settings that a line with parameters contains."""
        self.settings |= {name: float(value) for name, value in _SETTING.findall(text)}
        if match := _FP16.search(text):
            self.is_fp16 = match[1] == "True"
        self.settings |= {
            name: numbers[name]
            for name in ("training_features", "train_batch_size", "model_weights_num")
            if name in numbers
        }

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add times, rates, scores and settings, and return the rate (samples/s) recomputed from the steps that were done."""
        builder.settings["precision"] = None if self.is_fp16 is None else "fp16" if self.is_fp16 else "fp32"
        builder.settings["sequence_length"] = self.settings.get("max_seq_length")
        builder.require_equal("batch per device", self.settings.get("train_batch_size"), context.batch)
        time_s = self.summary.get("e2e_train_time")
        printed_rate = self.summary.get("training_sequences_per_second")
        loss = self.summary.get("final_loss")
        rate = None
        samples = None
        if time_s is None or printed_rate is None:
            builder.mark_incomplete("the output has no DLL line with e2e_train_time and training_sequences_per_second")
        elif not (math.isfinite(time_s) and time_s > 0 and math.isfinite(printed_rate)):
            builder.mark_nan(
                f"the printed rate of {printed_rate:g}/s or the time of {time_s:g} s is not a positive number"
            )
        else:
            samples = self.count_samples(context, builder)
            rate = self.compute_rate(context, builder, samples, printed_rate, time_s)
            builder.add_flag("the rate includes the warm-up and the start of data loading")
        if loss is not None and not math.isfinite(loss):
            builder.mark_nan("the final loss is not a number")
        builder.metrics = {
            "printed_throughput_per_s": printed_rate,
            "e2e_train_time_s": time_s,
            "samples": samples,
            "parameters": self.settings.get("model_weights_num"),
            "loss_last": loss,
            "exact_match_pct": self.scores.get("exact_match"),
            "f1_pct": self.scores.get("F1"),
        }
        return rate

    def compute_rate(
        self, context: RunContext, builder: ReadingBuilder, samples: float | None, printed_rate: float, time_s: float
    ) -> float | None:
        """Compute the rate (samples/s) from the steps that were done, or return the printed rate if their number is unknown.

        The reading becomes invalid if the printed iterations contradict the printed rate.

        Args:
            context: facts about the run.
            builder: builder of the reading.
            samples: number of sequences that were trained on, or None if unknown.
            printed_rate: rate (samples/s) that the program printed.
            time_s: training time.
        """
        if samples is not None:
            rate = samples / time_s
            if abs(printed_rate - rate) > _MAX_RATE_DEVIATION * rate:
                builder.add_flag(
                    f"the printed rate of {printed_rate:.4g}/s is {printed_rate / rate:.3g} times the actual rate of {rate:.4g}/s"
                )
            return rate
        # The printed iterations may still confirm the steps that the printed rate assumes.
        if context.batch_global and self.last_iteration:
            steps = printed_rate * time_s / context.batch_global
            if self.last_iteration - 1.5 <= steps <= self.last_iteration + self.print_interval:
                builder.add_flag("the number of steps is only known to within the interval of the printed iterations")
                return printed_rate
            builder.mark_invalid(
                f"the printed rate of {printed_rate:.4g}/s assumes {steps:.0f} steps, but the last printed iteration is "
                f"{self.last_iteration}"
            )
        else:
            builder.mark_invalid(
                f"the printed rate of {printed_rate:.4g}/s counts the requested steps, and the log does not show how many were done"
            )
        return printed_rate

    def count_samples(self, context: RunContext, builder: ReadingBuilder) -> float | None:
        """Count the sequences that were trained on. Returns None if the log does not show their number."""
        features = self.settings.get("training_features")
        batches_per_epoch = self.batches_per_epoch or self.compute_batches_per_epoch(features, context)
        accumulation = max(1.0, self.settings.get("gradient_accumulation_steps", 1.0))
        epochs = self.settings.get("num_train_epochs")
        epochs = self.epochs or None if epochs is None or not math.isfinite(epochs) else math.floor(epochs)
        max_steps = self.settings.get("max_steps")
        if batches_per_epoch is None or not epochs or max_steps is None or not math.isfinite(max_steps):
            return None
        planned_steps = epochs * (batches_per_epoch // accumulation)
        steps = min(planned_steps, max_steps + 1) if max_steps > 0 else planned_steps
        if self.last_iteration and not self.last_iteration <= steps <= self.last_iteration + max(
            self.print_interval, 1
        ):
            builder.add_flag(f"{steps:.0f} steps were planned, but the last printed iteration is {self.last_iteration}")
            return None
        if features is not None and steps == planned_steps:
            return features * epochs
        return None if context.batch_global is None else steps * context.batch_global

    def compute_batches_per_epoch(self, features: float | None, context: RunContext) -> int | None:
        """Compute the number of batches per epoch and rank. Returns None if it is unknown.

        The sampler fills up the last batches if the sequences cannot be divided evenly. `features` is the number of
        training sequences.
        """
        batch = context.batch or self.settings.get("train_batch_size")
        if features is None or not context.ranks or not batch or not (math.isfinite(features) and batch >= 1):
            return None
        accumulation = max(1.0, self.settings.get("gradient_accumulation_steps", 1.0))
        return math.ceil(math.ceil(features / context.ranks) / max(1.0, batch // accumulation))


FORMAT = LogFormat(NvidiaBertReader, needles=(b"DLL ", b"DLLL {", b"Iteration: 100%"), max_line_chars=256 << 10)
