"""Parser of LAMMPS: log.lammps, or the output of the program.

The rate is in ns/day for `units real` and `metal`, and in tau/day for `lj`. The unit of atom steps depends on
their number (atom-step/s, katom-step/s, Matom-step/s), so they are recomputed from the loop time. A script may
contain several runs, for instance to reach equilibrium; each run is a test. Under mpirun, a LAMMPS without MPI
simulates the whole system once per rank, each `on 1 procs`.
"""

from __future__ import annotations

import math

from campaign.workloads.parsers.reading import (
    F,
    LineReader,
    LogFormat,
    ReadingBuilder,
    RunContext,
    compile_patterns,
    is_close,
    parse_number,
)

_METRIC_NAMES = {"ns": "simulated_ns_per_day", "tau": "simulated_tau_per_day"}


class LammpsReader(LineReader):
    """Reader of one run of LAMMPS."""

    PATTERNS = compile_patterns(
        begin=r"LAMMPS \(\d{1,2} [A-Z][a-z]{2} \d{4}",
        loop=rf"Loop time of ({F}) on (\d{{1,9}}) procs for (\d{{1,15}}) steps with (\d{{1,15}}) atoms\s*$",
        rate=rf"Performance: ({F}) (ns|tau|fs|ps|sec)/day, (?:{F} hours/ns, )?({F}) timesteps/s(?:, {F} [kMGT]?atom-step/s)?\s*$",
        end="Total wall time:",
        unread=r"(Performance:|Loop time of) *(.*)",
    )

    def __init__(self) -> None:
        super().__init__()
        self.is_followed_by_run = False

    def begins_next_test(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line begins another run: it is a second header or a second loop time.

        A second loop time shows that this run is complete, because the script has continued.
        """
        if name == "loop" and self.matches["loop"]:
            self.is_followed_by_run = True
            return True
        return name == "begin" and bool(self.matches["begin"] or self.matches["loop"])

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the rates of the last run. Check that the log is complete and that only one simulation ran."""
        loop = self.last_match("loop")
        if loop is None:
            builder.mark_incomplete("the output has no line 'Loop time of'")
            return
        if not self.matches["end"] and not self.is_followed_by_run:
            builder.mark_incomplete("the output ends before 'Total wall time'")
        if len(self.matches["end"]) > 1:
            builder.mark_invalid("several simulations ran at once instead of one, because LAMMPS was built without MPI")
        time_s, ranks, steps, atoms = map(float, loop)
        builder.check_process_count("LAMMPS", ranks, context)
        builder.settings |= {"atoms": atoms, "steps": steps}
        self.add_rates(builder, time_s, steps, atoms)

    def add_rates(self, builder: ReadingBuilder, time_s: float, steps: float, atoms: float) -> None:
        """Add the rates per second and per day. The printed rate must match the steps and the loop time."""
        rate_text, unit, steps_text = self.last_match("rate") or ("", "", "")
        rate, printed_steps_per_s = parse_number(rate_text or None), parse_number(steps_text or None)
        if not all(map(math.isfinite, (time_s, rate or 0.0, printed_steps_per_s or 0.0))):
            builder.mark_nan("a time or rate is not a number")
            return
        steps_per_s = steps / time_s if time_s > 0 else 0.0
        if not steps_per_s:
            builder.mark_invalid(f"{steps:.0f} steps in {time_s:g} s have no rate")
            return
        if printed_steps_per_s is not None and not is_close(steps_per_s, printed_steps_per_s, 1e-3, 0.002):
            builder.mark_invalid(
                f"{printed_steps_per_s:g} timesteps/s does not match {steps:.0f} steps in {time_s:g} s, so a line is damaged"
            )
        builder.metrics |= {
            "timesteps_per_s": steps_per_s,
            "atom_steps_per_s": steps_per_s * atoms,
            "loop_time_s": time_s,
        }
        if unit in _METRIC_NAMES:
            builder.metrics[_METRIC_NAMES[unit]] = rate


FORMAT = LogFormat(
    LammpsReader, needles=(b"LAMMPS (", b"Loop time of ", b"Performance: ", b"Total wall time:"), max_line_chars=1 << 10
)
