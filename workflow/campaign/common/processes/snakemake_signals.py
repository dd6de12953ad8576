"""Signal handlers for Snakemake.

With its own handlers, Snakemake prints a traceback on Ctrl-C during planning and on a second Ctrl-C, starts the jobs that it has
already selected, and may deadlock on a lock that the interrupted code holds. Leases receive the signals of the terminal
themselves, and `campaign measure` ends them.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Any


def handle_signals() -> None:
    """Install handlers by which Ctrl-C and SIGTERM start no further job and end Snakemake without a traceback.

    It is called while the Snakefile is read, and again by `onstart`, because Snakemake has then installed its own SIGTERM handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # Python code that calls Snakemake in a thread has its own handlers.
    finish_running_jobs: Any = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda *_: None)  # A second Ctrl-C would interrupt the wait for running jobs.
        _start_no_job()
        logging.getLogger("asyncio").disabled = True  # It would print tracebacks of tasks that this ends.
        # Snakemake's scheduler handles SystemExit like KeyboardInterrupt and waits for its jobs. Elsewhere it ends the process.
        sys.exit("interrupted; repeat the command to continue with the missing runs")

    def finish(*arguments: Any) -> None:
        _start_no_job()
        # This runs in a thread, because Snakemake acquires a lock in the handler.
        threading.Thread(target=finish_running_jobs, args=arguments, daemon=True).start()

    signal.signal(signal.SIGINT, interrupt)
    if callable(finish_running_jobs):
        signal.signal(signal.SIGTERM, finish)


def _start_no_job() -> None:
    """End Snakemake's selected jobs immediately, and suppress its long error message about each stopped lease."""
    from snakemake.logging import logger
    from snakemake.shell import shell

    shell.prefix("exit 130; ")
    logger.addFilter(_is_no_job_error)


def _is_no_job_error(record: Any) -> bool:
    """Return True if a log record is not about the failure of a job."""
    event = getattr(getattr(record, "event", None), "name", "")
    return event != "JOB_ERROR" and getattr(record, "exception", "") != "RuleException"
