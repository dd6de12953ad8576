"""Meanings of the flags of records, for readers of the report."""

from __future__ import annotations

from campaign.emulators.hosts.emulation_plan import FLAGS as LINK_FLAGS
from campaign.plan.oom_frontier import CONTRADICTS
from campaign.spec.host_load import FOREIGN_LOAD_FLAG
from campaign.spec.readings import REREAD_FLAG
from campaign.spec.record import IMPORTED_FLAG
from campaign.workloads.failures import REPEATED
from campaign.workloads.steady_warmup import NOT_STEADY, SHORT_WINDOW

FLAG_MEANINGS = {
    REREAD_FLAG: "its numbers come from a later reading of its log by `campaign parse`; its record is unchanged",
    "oversubscribed: more ranks than cores": "there were more ranks than processor cores, so ranks waited for cores",
    CONTRADICTS: "it succeeded, although this cell or an equal cell with a smaller batch ran out of memory before",
    IMPORTED_FLAG: "it was read from a log that another program made; hardware and software are those that the import map states",
    FOREIGN_LOAD_FLAG: "other programs were busy during its measured window, which may have slowed it down",
    NOT_STEADY: "step times still had a trend when the warm-up reached `warmup_steps_max`; the window was measured anyway",
    SHORT_WINDOW: "the measured steps took less time than `measured_min_s` requires, because they were faster than the warm-up",
    "exit_hang": "a rank finished its measurement but did not exit, and was terminated",
    "storage emulated": "the rate of reading samples was limited to that of the system file, to emulate missing storage",
    "storage is the host's memory": "the file system of the storage is in memory, so no data was read from a device",
    REPEATED: "an earlier launch was stopped, killed, or too slow because of other programs, or a clock was set; it does not count",
    "repeated: an earlier launch lost the pace": "other work kept an earlier launch from its pace; that launch does not count",
    **LINK_FLAGS,
}
