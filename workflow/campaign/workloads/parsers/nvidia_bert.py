"""Parser of NVIDIA's BERT fine-tuning (run_squad.py).

It reads the output of DLLogger, or its file dllogger.json (lines `DLLL {...}`).

The printed rate counts the requested steps, not those that were done. With --max_steps beyond the epochs it is
several times too high; with --max_steps the program runs one step more; and a fraction of an epoch is counted
and not run. So the rate is recomputed from the samples of the steps that were done, and the printed rate is a
separate metric. No warm-up is left out.
"""

from __future__ import annotations

import json
import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, number

_PAIR = re.compile(rf"(?<![\w.])([A-Za-z_]\w{{0,60}}) : ({F})(?=\s|$)")
_ITERATION = re.compile(r"Training Epoch: (\d{1,9}) Training Iteration: (\d{1,12})")
_BAR = re.compile(r"Iteration: 100%\|[^|]*\|\s*(\d{1,12})/(\d{1,12}) \[")
_SETTING = re.compile(
    rf"\b(max_steps|max_seq_length|num_train_epochs|train_batch_size|gradient_accumulation_steps|log_freq)=({F})(?=[,)\s])"
)
_HALF = re.compile(r"\bfp16=(True|False)\b")
_OPENING = re.compile(r"PARAMETER.*\b(?:Config|SEED|training_features)\b")
_WRONG = 0.002


class NvidiaBert(LogReader):
    """Reader of one fine-tuning run."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, float] = {}
        self.summary: dict[str, float] = {}
        self.scores: dict[str, float] = {}
        self.half: bool | None = None
        self.per_epoch: int | None = None
        self.epochs = 0
        self.last_iteration = 0
        self.spacing = 0

    def line(self, line: str) -> None:
        # A run logs the parameters of training before its steps, and those of evaluation between its steps and its summary.
        """Store a line of DLLogger or of the progress bar. Parameters or a summary after a finished run begin the next test."""
        if (self.summary and "PARAMETER" in line) or (self.last_iteration and _OPENING.search(line)):
            return self.another(line)
        if "e2e_train_time" in line and self.summary:
            return self.another(line)
        if "DLLL {" in line:
            self.event(line[line.find("DLLL {") + 5 :])
            self.from_file = True
            return
        if bar := _BAR.search(line):
            self.per_epoch = int(bar[2])
        if (at := line.find("DLL ")) >= 0:
            line = line[at:]
            steps = _ITERATION.search(line)
            found = {name: float(value) for name, value in _PAIR.findall(line)}
            self.take(found, steps and (int(steps[1]), int(steps[2])), line if "PARAMETER" in line else None)

    def take(self, found: dict[str, float], steps: tuple[int, int] | None, parameters: str | None) -> None:
        """Store the summary, iteration, parameters or scores of one line.

        Args:
            numbers: numbers of the line by name.
            iteration: epoch and iteration, or None.
            parameters: text of a line of parameters, or None.
        """
        if "e2e_train_time" in found:
            self.summary = found
        elif steps:
            self.epochs = max(self.epochs, steps[0] + 1)
            if steps[1] > self.last_iteration:
                self.spacing = max(self.spacing, steps[1] - self.last_iteration)
                self.last_iteration = steps[1]
        elif parameters is not None:
            self.parameters(parameters, found)
        else:
            self.scores |= {name: found[name] for name in ("exact_match", "F1") if name in found}

    def event(self, text: str) -> None:
        """Store an event of dllogger.json. Invalid text is ignored."""
        try:
            document, _ = json.JSONDecoder().raw_decode(text)
            step, data = document["step"], document["data"]
            found = {name: value for name, raw in data.items() if (value := number(raw)) is not None}
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return
        counted = isinstance(step, list) and len(step) == 2 and all(type(one) is int and one >= 0 for one in step)
        settings = data.get("Config")
        texts = [text for text in (settings if isinstance(settings, list) else [settings]) if isinstance(text, str)]
        self.take(found, (step[0], step[1]) if counted else None, " ".join(texts) if step == "PARAMETER" else None)

    def parameters(self, text: str, found: dict[str, float]) -> None:
        """Store the settings that a line of parameters contains.

        Args:
            text: text of the line.
            numbers: numbers of the line by name.
        """
        self.settings |= {name: float(value) for name, value in _SETTING.findall(text)}
        if found_half := _HALF.search(text):
            self.half = found_half[1] == "True"
        self.settings |= {
            name: found[name]
            for name in ("training_features", "train_batch_size", "model_weights_num")
            if name in found
        }

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add times, rates, scores and settings, and return the rate (samples/s) recomputed from the steps that were done."""
        verdict.settings["precision"] = None if self.half is None else "fp16" if self.half else "fp32"
        verdict.settings["sequence_length"] = self.settings.get("max_seq_length")
        verdict.expect("the batch per device is", self.settings.get("train_batch_size"), scope.batch)
        time_s = self.summary.get("e2e_train_time")
        printed = self.summary.get("training_sequences_per_second")
        loss = self.summary.get("final_loss")
        rate = None
        samples = None
        if time_s is None or printed is None:
            verdict.incomplete("no DLL line with e2e_train_time and training_sequences_per_second")
        elif not (math.isfinite(time_s) and time_s > 0 and math.isfinite(printed)):
            verdict.nan(f"the rate is {printed:g}/s over {time_s:g} s")
        else:
            samples = self.samples(scope, verdict)
            rate = self.rate(scope, verdict, samples, printed, time_s)
            verdict.flag("no warm-up is left out of the rate, and the time includes the start of data loading")
        if loss is not None and not math.isfinite(loss):
            verdict.nan("the final loss is not a number")
        verdict.metrics = {
            "printed_throughput_per_s": printed,
            "e2e_train_time_s": time_s,
            "samples": samples,
            "parameters": self.settings.get("model_weights_num"),
            "loss_last": loss,
            "exact_match_pct": self.scores.get("exact_match"),
            "f1_pct": self.scores.get("F1"),
        }
        return rate

    def rate(
        self, scope: Scope, verdict: Verdict, samples: float | None, printed: float, time_s: float
    ) -> float | None:
        """Return the rate (samples/s) of the steps that were done, or the printed rate if their number is unknown.

        The reading is invalid if the printed iterations do not confirm the printed rate.

        Args:
            context: facts about the run.
            builder: builder of the reading.
            samples: sequences trained on, or None if unknown.
            printed_rate: rate (samples/s) that the program printed.
            time_s: training time.
        """
        if samples is not None:
            rate = samples / time_s
            if abs(printed - rate) > _WRONG * rate:
                verdict.flag(f"the printed {printed:.4g}/s are {printed / rate:.3g} times the {rate:.4g}/s really done")
            return rate
        # The printed iterations may still confirm the steps that the printed rate assumes.
        if scope.batch_global and self.last_iteration:
            steps = printed * time_s / scope.batch_global
            if self.last_iteration - 1.5 <= steps <= self.last_iteration + self.spacing:
                verdict.flag("how many steps were done is known to the interval of the printed iterations only")
                return printed
            verdict.invalid(
                f"the printed {printed:.4g}/s take {steps:.0f} steps for done; iterations are printed to {self.last_iteration}"
            )
        else:
            verdict.invalid(
                f"the printed {printed:.4g}/s count the steps asked for, and the log does not show how many were done"
            )
        return printed

    def samples(self, scope: Scope, verdict: Verdict) -> float | None:
        """Return the number of sequences that were trained on, or None if the log does not show it."""
        features = self.settings.get("training_features")
        per_epoch = self.per_epoch or self.expected_per_epoch(features, scope)
        accumulation = max(1.0, self.settings.get("gradient_accumulation_steps", 1.0))
        epochs = self.settings.get("num_train_epochs")
        epochs = self.epochs or None if epochs is None or not math.isfinite(epochs) else math.floor(epochs)
        max_steps = self.settings.get("max_steps")
        if per_epoch is None or not epochs or max_steps is None or not math.isfinite(max_steps):
            return None
        whole = epochs * (per_epoch // accumulation)
        steps = min(whole, max_steps + 1) if max_steps > 0 else whole
        if self.last_iteration and not self.last_iteration <= steps <= self.last_iteration + max(self.spacing, 1):
            verdict.flag(f"{steps:.0f} steps were planned, and iterations printed to {self.last_iteration}")
            return None
        if features is not None and steps == whole:
            return features * epochs
        return None if scope.batch_global is None else steps * scope.batch_global

    def expected_per_epoch(self, features: float | None, scope: Scope) -> int | None:
        """Return the number of batches per epoch and rank, or None if it is unknown.

        The sampler fills up the last batches if the sequences do not divide evenly. `features` is the number of
        training sequences.
        """
        batch = scope.batch or self.settings.get("train_batch_size")
        if features is None or not scope.ranks or not batch or not (math.isfinite(features) and batch >= 1):
            return None
        accumulation = max(1.0, self.settings.get("gradient_accumulation_steps", 1.0))
        return math.ceil(math.ceil(features / scope.ranks) / max(1.0, batch // accumulation))


FORMAT = Format(NvidiaBert, needles=(b"DLL ", b"DLLL {", b"Iteration: 100%"), line_max=256 << 10)
