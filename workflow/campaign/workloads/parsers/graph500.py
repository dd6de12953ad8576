"""Parser of Graph500's reference code, which measures breadth-first search (BFS) and shortest paths (SSSP).

The score is the harmonic mean of the rates over all roots, marked by `!`; other means are larger. The run gets a
flag if the results were not validated: with SKIP_VALIDATION, the validation times are -1. TEPS are traversed edges
per second. Rates of different scales or edge factors cannot be compared.
"""

from __future__ import annotations

import math

from campaign.workloads.parsers.reading import F, LineReader, LogFormat, ReadingBuilder, RunContext, compile_patterns

_INVALID = "No results printed for invalid run"
_SETTINGS = {"scale": "scale", "edge_factor": "edgefactor"}
_NAMES = "scale|edgefactor|num_mpi_processes|construction_time|(?:min|max|harmonic_mean)_teps|mean_validate"


class Graph500Reader(LineReader):
    """Reader of one run of Graph500."""

    PATTERNS = compile_patterns(
        invalid=f".*{_INVALID}",
        value=rf"(?:(bfs|sssp) +)?((?i:{_NAMES})): +(?:! +)?({F})\s*$",
        unread=rf"((?:(?:bfs|sssp) +)?(?i:{_NAMES})): +(.*)",
    )

    def begins_next_test(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line begins another run: it is a second scale, or a second message that the run is invalid."""
        begins = name == "invalid" or values[1].lower() == "scale"
        return begins and bool(self.matches["value"] or (self.matches["invalid"] and name == "value"))

    @property
    def values(self) -> dict[tuple[str, str], float]:
        """Values that the log states, by search (`bfs` or `sssp`) and name."""
        return {(kind or "bfs", name.lower()): float(text) for kind, name, text in self.matches["value"]}

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the rates of both searches, the scale of the graph and its construction time."""
        if self.matches["invalid"]:
            builder.mark_invalid("the validation failed")
        elif ("bfs", "harmonic_mean_teps") not in self.values:
            builder.mark_incomplete("the output has no harmonic mean of TEPS")
        elif ("bfs", "mean_validate") not in self.values:
            builder.mark_incomplete("the output ends before the validation times")
        for kind in ("bfs", "sssp"):
            self.add_rate(builder, kind)
        builder.check_process_count("Graph500", self.values.get(("bfs", "num_mpi_processes")), context)
        builder.metrics["construction_time_s"] = self.values.get(("bfs", "construction_time"))
        builder.settings |= {name: self.values.get(("bfs", key)) for name, key in _SETTINGS.items()}
        builder.metrics["scale"] = self.values.get(("bfs", "scale"))

    def add_rate(self, builder: ReadingBuilder, kind: str) -> None:
        """Add the harmonic mean rate of one search (`bfs` or `sssp`) in GTEPS.

        The reading is invalid if the mean is not between the smallest and the largest rate. It gets a flag if the results were not
        validated.
        """
        minimum, mean, maximum = (self.values.get((kind, f"{name}_teps")) for name in ("min", "harmonic_mean", "max"))
        if mean is None:
            return
        if not math.isfinite(mean):
            builder.mark_nan(f"the rate of {kind} is not a number")
        elif minimum is None or maximum is None or not 0 < minimum * (1 - 1e-5) <= mean <= maximum * (1 + 1e-5):
            builder.mark_invalid(f"the mean rate of {kind} is outside the range of its rates, so a line is damaged")
        else:
            builder.metrics[f"{kind}_gteps"] = mean / 1e9
        if (validation_time_s := self.values.get((kind, "mean_validate"))) is not None and validation_time_s < 0:
            builder.add_flag(f"the results of {kind} were not validated")


_LABELS = (b"_TEPS:", b"SCALE:", b"edgefactor:", b"num_mpi_processes:", b"construction_time:", b"mean_validate:")

FORMAT = LogFormat(
    Graph500Reader,
    needles=(
        b"_TEPS:",
        b"SCALE:",
        b"edgefactor:",
        b"num_mpi_processes:",
        b"construction_time:",
        b"mean_validate:",
        _INVALID.encode(),
    ),
    max_line_chars=1 << 10,
)
