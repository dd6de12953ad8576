"""Meanings of the flags of records, for readers of the report."""

from __future__ import annotations

from campaign.emulators.hosts.emulation_plan import FLAGS as LINK_FLAGS
from campaign.plan.oom_frontier import CONTRADICTS
from campaign.spec.readings import READ_AGAIN
from campaign.spec.record import IMPORTED
from campaign.workloads.steady_warmup import NOT_STEADY, SHORT_WINDOW

FLAG_MEANINGS = {
    READ_AGAIN: "its numbers are of a later reading of its log by `campaign parse`; its record stays as it was measured",
    "oversubscribed: more ranks than cores": "more ranks than processor cores took part, so ranks waited for each other's cores",
    CONTRADICTS: "it ran, though an otherwise equal cell with a smaller batch, or this one, ran out of memory before",
    IMPORTED: "it was read from a log that was made without this program; hardware and software are as its map states them",
    NOT_STEADY: "step times still had a trend when the warm-up reached `warmup_steps_max`; the window was measured all the same",
    SHORT_WINDOW: "the measured steps took less time than `measured_min_s` asks for: they were faster than those of the warm-up",
    "exit_hang": "a rank measured well, then did not exit by itself and was ended",
    "storage emulated": "samples were read no faster than the system file says, in place of storage that is not there",
    "storage is the host's memory": "the storage's file system keeps its files in memory, so that nothing was read from a device",
    **LINK_FLAGS,
}
