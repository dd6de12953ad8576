"""Signals: what ends Snakemake ends the next stage in good order.

REQUIRES: nothing
PROVIDES: a lock for `campaign measure`, and handlers of SIGTERM and SIGINT while jobs run
"""

import atexit
import signal
import threading

from campaign.files import acquire_lock
from campaign.run.measure_plan import STARTS_WHILE


def prepare_for_signals():
    """Make `campaign measure` the one that Ctrl-C and SIGTERM are for: to Snakemake all leases are one job, which it lets finish.

    Leases are started while this process holds a lock: until it dies, or SIGTERM tells it to finish what runs. Ctrl-C has it wait for
    its job; a second one is for the job alone, and would only interrupt the waiting.
    """
    path = Path(".snakemake", f"starts.{os.getpid()}.lock").resolve()
    atexit.register(path.unlink, missing_ok=True)
    os.environ[STARTS_WHILE] = str(path)
    lock, of_snakemake = [acquire_lock(path)], signal.getsignal(signal.SIGTERM)

    def finish(*given):
        if lock:
            os.close(lock.pop())
            # In a thread, since it takes a lock, which the one that the signal interrupts may hold.
            threading.Thread(target=of_snakemake, args=given, daemon=True).start()

    def interrupt(*given):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.default_int_handler(*given)

    signal.signal(signal.SIGTERM, finish)
    signal.signal(signal.SIGINT, interrupt)


onstart:
    prepare_for_signals()
