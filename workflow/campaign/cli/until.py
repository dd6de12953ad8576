"""Measures a campaign in rounds until a question is answered: Snakemake is started once a round, and once for the report."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

from campaign.cli.terminal import say
from campaign.documents.rounds import Rounds, keep_rounds
from campaign.errors import ConfigError, LaunchError
from campaign.files import lock_holder, try_lock
from campaign.paths import Results
from campaign.plan.dag import Request
from campaign.report.sections.question import answer, chosen, cost, state

_HEAD = 3
"""Words of the command before Snakemake's options, of which some take all words that follow."""


def measure_rounds(asked: Request, results: Results, command: Sequence[str], targets: Sequence[str]) -> None:
    """Measure the rounds of the question that is asked up to its end. command: Snakemake's; targets: what a round is to make.

    Ends this process with Snakemake's exit code where that fails; the same request again goes on in the same round. ConfigError:
    another process measures rounds of this campaign.
    """
    from campaign.insight.question_rounds import open_rounds  # loads pandas

    with try_lock(results.questions_lock) as is_free:
        if not is_free:
            raise ConfigError(
                f"{results.directory}: {lock_holder(results.questions_lock)} measures rounds of a question; wait for it, or end it"
            )
        before: Rounds | None = None
        # The last round, too, where records of it were set aside since.
        while (plan := open_rounds(asked).plan).is_mid_round:
            rounds = plan.rounds
            if rounds == before:
                raise LaunchError(f"round {rounds[-1].number}: runs of it have no record; see {results.logs}")
            keep_rounds(results, rounds)
            head = [f"until {rounds[-1].question}"] if before is None else []
            say("\n".join([*head, f"known so far: {rounds[-1].statement}", chosen(rounds[-1])]))
            if code := _run(targets, command):
                say(f"round {rounds[-1].number} is not complete; the same command again goes on with it")
                sys.exit(code)
            before = rounds
        keep_rounds(results, plan.rounds)
        say(
            "\n".join(
                [f"until {plan.rounds[-1].question}: {state(plan.rounds[-1])}", *answer(plan.rounds), cost(plan.rounds)]
            )
        )


def _run(targets: Sequence[str], command: Sequence[str]) -> int:
    """The exit code of Snakemake for these targets. SIGTERM is passed on to it, and the terminal tells both of Ctrl-C."""
    told: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        told.append(number)
        if number != signal.SIGINT:
            started[0].send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        started.append(subprocess.Popen([*command[:_HEAD], *targets, *command[_HEAD:]]))
        code = started[0].wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code if code > 0 else 128 + told[0] if told else 128 - code if code else 0
