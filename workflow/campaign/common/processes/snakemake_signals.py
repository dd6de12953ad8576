"""Signals to Snakemake. Left alone, Snakemake ends Ctrl-C with a traceback while it plans and again at the second Ctrl-C, starts
the jobs that it has selected, and may wait for ever for a lock that the code under the signal holds. Leases get the signals of the
terminal themselves, and `campaign measure` ends them."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any


def handle_signals() -> None:
    """Install handlers by which Ctrl-C and SIGTERM start no further job and end Snakemake without a traceback.

    It is called twice: while the Snakefile is read, and by `onstart`, since Snakemake then has a handler of SIGTERM of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # Python code that calls Snakemake in a thread has handlers of its own.
    finish_running_jobs: Any = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: None)  # A second one would interrupt the waiting for jobs.
        _start_no_job()
        logging.getLogger("asyncio").disabled = True  # It would print tracebacks of tasks that this ends.
        # Snakemake's scheduler takes it for a KeyboardInterrupt and waits for its jobs. Elsewhere it ends the process.
        sys.exit("interrupted; the same command again goes on with what is missing")

    def finish(*arguments: Any) -> None:
        _start_no_job()
        # In a thread, since Snakemake takes a lock there.
        threading.Thread(target=finish_running_jobs, args=arguments, daemon=True).start()

    signal.signal(signal.SIGINT, interrupt)
    if callable(finish_running_jobs):
        signal.signal(signal.SIGTERM, finish)


def _start_no_job() -> None:
    """Make the jobs that Snakemake has selected end at once, and leave out the fifteen lines on each stopped lease."""
    from snakemake.logging import logger
    from snakemake.shell import shell

    shell.prefix("exit 130; ")
    logger.addFilter(_is_no_job_error)


def _is_no_job_error(record: Any) -> bool:
    """Return whether a log record is about something else than the failure of a job."""
    event = getattr(getattr(record, "event", None), "name", "")
    return event != "JOB_ERROR" and getattr(record, "exception", "") != "RuleException"
