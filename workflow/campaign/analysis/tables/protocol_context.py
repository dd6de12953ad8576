"""Protocol of a campaign as described in the report, with notes on repetitions and the reference."""

from __future__ import annotations

from typing import Any

from campaign.analysis.tables.collected import CampaignResults
from campaign.plan.control_runs import hash_hardware
from campaign.plan.matrix import Matrix
from campaign.plan.repetitions import format_repetition_count as format_repetitions
from campaign.spec.run_numbers import BLOCK_ORDERS

# A caption states these settings of the protocol. Time limits and the like change no number.
_CAPTION_SETTINGS = ("warmup_steps", "measured_steps", "repetitions", "compositions", "order", "lease_order", "seed")


def describe_protocol(campaign_results: CampaignResults) -> dict[str, Any]:
    """Return the protocol settings that captions state, and the reference."""
    protocol = campaign_results.campaign.to_document()["campaign"]["protocol"]
    unknown = _list_unknown_settings(campaign_results)
    return {
        **{name: protocol[name] for name in _CAPTION_SETTINGS if name not in unknown},
        **_describe_reference(campaign_results),
    }


def _list_unknown_settings(campaign_results: CampaignResults) -> tuple[str, ...]:
    """List the settings of an imported campaign that are defaults rather than facts."""
    if not campaign_results.campaign.file.imported:
        return ()
    random_order = campaign_results.campaign.protocol.lease_order in BLOCK_ORDERS
    return ("seed",) if random_order else ("seed", "lease_order")


def _describe_reference(campaign_results: CampaignResults) -> dict[str, Any]:
    """Describe the protocol's reference, and whether comparisons are adjusted by it."""
    reference = campaign_results.campaign.protocol.reference
    if reference is None:
        return {}
    adjusts = reference.adjust and not _explain_missing_adjustment(campaign_results)
    return {"reference": {**reference.model_dump(mode="json"), "adjust": adjusts}}


def _explain_missing_adjustment(campaign_results: CampaignResults) -> str:
    """Return the reason why the reference cannot be used for adjustment, or an empty string if it can."""
    kinds = {hash_hardware(record.specification) for record in campaign_results.reference if record.status == "ok"}
    if not kinds:
        return "it has no valid run"
    if len(kinds) > 1 and campaign_results.campaign.protocol.lease_order not in BLOCK_ORDERS:
        return (
            "compositions were not made in random order, and the reference ran on devices of several kinds, so their "
            "differences cannot be distinguished from drift"
        )
    return ""


def list_adjustment_notes(campaign_results: CampaignResults) -> list[str]:
    """Return a note if the protocol requests adjustment by the reference but the reference does not allow it."""
    reference = campaign_results.campaign.protocol.reference
    if reference is None or not reference.adjust:
        return []
    reason = _explain_missing_adjustment(campaign_results)
    return [f"Comparisons are not adjusted by the reference: {reason}."] if reason else []


def list_target_notes(matrix: Matrix) -> list[str]:
    """Return a note for each target interval half-width, on how stopping at the target affects coverage."""
    targets = {
        (format_repetitions(cell.settings), cell.settings.target_half_width_pct)
        for cell in matrix.cells
        if cell.settings.target_half_width_pct is not None
    }
    return [
        f"Cells with {times.replace('-', ' to ')} repetitions ended once the 95 % interval of their mean throughput was within "
        f"±{target:g} % of it, or with the maximum number of repetitions. An interval of a cell that stops this way contains the "
        "true mean less often than 95 %: in 90 to 95 of 100 simulated cells."
        for times, target in sorted(targets)
    ]
