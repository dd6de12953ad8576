"""Emulated hosts of a composition, and the description of emulated links in records and the report. Pure functions.

Records share this document as `links` of their composition (absent if the system emulates nothing):
    emulated                             `root` or `user namespace`; null: not emulated, all ranks shared one loopback
    reason                               reason why links are not emulated, else empty
    scale                                emulated rate over real rate
    {fabric,network}_gb_per_s            rate of the real links, one direction
    {fabric,network}_gbit_per_s          rate of the emulated links, one direction; null: not shaped
    local_gb_per_s, local_gbit_per_s     the same between devices of a host; absent if they share its loopback
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.emulators.hosts.topology import EmulatedHost, EmulationSpec, LinkRates, LinkType
from campaign.spec.hardware import Composition
from campaign.spec.system_file import Emulation, Links

_SHAPED_LINKS: tuple[LinkType, ...] = ("fabric", "network")
NOT_EMULATED = "links not emulated"
NOT_CROSSED = "links not crossed: one program stands for all ranks"
UNEQUAL_LINKS_REMARK = (
    "Hybrid compositions are slower than on real hardware, because TCP is slower over a fast link that "
    "leads to a slow one."
)
FLAGS: Mapping[str, str] = {
    NOT_EMULATED: "this machine could not emulate hosts, so all ranks shared one loopback, and attachment and the spread over "
    "hosts had no effect",
    NOT_CROSSED: "the program was started once, on the first emulated host, so its ranks did not use the emulated links",
}


def build_link_rates(emulation: Emulation, links: Links) -> LinkRates:
    """Return the rates of the links in the system file; links without a rate are not shaped."""
    return LinkRates(
        local_gb_per_s=links.local and links.local.gb_per_s,
        fabric_gb_per_s=links.fabric and links.fabric.gb_per_s,
        network_gb_per_s=links.network and links.network.gb_per_s,
        scale=emulation.scale,
    )


def list_emulated_hosts(composition: Composition) -> tuple[EmulatedHost, ...]:
    """Return the hosts to emulate for a composition, named by position.

    Names of real hosts may be too long for an interface.
    """
    return tuple(
        EmulatedHost(
            name=f"host{number}",
            local_devices=sum(device.local for device in host.devices),
            fabric_devices=sum(not device.local for device in host.devices),
        )
        for number, host in enumerate(composition.hosts, 1)
    )


def build_emulation_spec(emulation: Emulation, links: Links, composition: Composition) -> EmulationSpec:
    """Build the specification of hosts and link rates to emulate for a composition."""
    return EmulationSpec(hosts=list_emulated_hosts(composition), rates=build_link_rates(emulation, links))


def describe_links(rates: LinkRates, mode: str | None, reason: str = "") -> dict[str, Any]:
    """Describe emulated links as a document for records (see the module).

    Args:
        rates: rates of the links.
        mode: kind of namespaces; None if links are not emulated.
        reason: reason why links are not emulated.
    """
    return {
        "emulated": mode,
        "reason": reason,
        **rates.model_dump(exclude={"local_gb_per_s"}),
        **{f"{link}_gbit_per_s": rates.compute_gbit_per_s(link) for link in _SHAPED_LINKS},
        # Records of systems without local links stay as they are.
        **(
            {"local_gb_per_s": rates.local_gb_per_s, "local_gbit_per_s": rates.compute_gbit_per_s("local")}
            if rates.local_gb_per_s
            else {}
        ),
    }


def format_links_sentence(links: Mapping[str, Any], runs: int, total_runs: int) -> str:
    """Format one sentence about emulated links for the report.

    Args:
        links: description of the links.
        runs: number of runs that were measured over these links.
        total_runs: number of all runs.
    """
    share = "" if runs == total_runs else f" ({runs} of {total_runs} runs)"
    if links["emulated"] is None:
        return (
            f"Links are not emulated{share}: {links['reason']}. All ranks shared this machine's loopback, so attachment and the "
            "spread over hosts have no effect."
        )
    local, fabric, network = (
        "not shaped" if links.get(f"{link}_gbit_per_s") is None else f"{links[f'{link}_gbit_per_s']:.3g} Gbit/s"
        for link in ("local", *_SHAPED_LINKS)
    )
    rates = [links.get(f"{link}_gbit_per_s") for link in ("local", "fabric")]
    remark = "" if None in rates or rates[0] == rates[1] else f" {UNEQUAL_LINKS_REMARK}"
    return (
        f"Links are emulated{share} with network namespaces ({links['emulated']}) at {links['scale']:g} of the real rates. Rates "
        f"per direction: between a fabric device and its host {fabric}; between hosts {network}; between devices of a host "
        f"{local}.{remark}"
    )
