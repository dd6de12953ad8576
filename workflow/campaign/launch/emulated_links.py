"""What a composition's links stand for: the hosts to emulate for it, and what records and report say of that. Pure.

The document that records share as `links` of their composition (absent where the system emulates nothing):
    emulated                             `root` or `user namespace`: how; null: not at all, and all ranks shared one loopback
    reason                               why not, else empty
    scale, {fabric,network}_gb_per_s     the real links, one direction, and how much of them the emulated ones carry
    {fabric,network}_gbit_per_s          the emulated links, one direction; null: not shaped
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.config.system_file import Emulation, Links
from campaign.fabrics.hardware import Composition
from campaign.launch.emulation.network import EmulatedRates
from campaign.launch.emulation.topology import EmulatedHost, EmulationSpec, LinkRates

NOT_EMULATED = "links not emulated"
NOT_CROSSED = "links not crossed: one program stands for all ranks"
FLAGS: Mapping[str, str] = {
    NOT_EMULATED: "this machine could not emulate hosts, so all ranks shared one loopback: attachment and the spread over hosts "
    "made no difference",
    NOT_CROSSED: "the program is started once, on the first emulated host, so its ranks did not meet the emulated links",
}


def rates_of(emulation: Emulation, links: Links) -> LinkRates:
    """The rates to shape links to; a link that the system file does not give is not shaped."""
    return LinkRates(
        fabric_gb_per_s=links.fabric and links.fabric.gb_per_s,
        network_gb_per_s=links.network and links.network.gb_per_s,
        scale=emulation.scale,
    )


def hosts_of(composition: Composition) -> tuple[EmulatedHost, ...]:
    """A composition in terms of links. Names are by position: those of a real site need not be fit for an interface."""
    return tuple(
        EmulatedHost(
            name=f"host{number}",
            local_devices=sum(device.local for device in host.devices),
            fabric_devices=sum(not device.local for device in host.devices),
        )
        for number, host in enumerate(composition.hosts, 1)
    )


def emulation_of(emulation: Emulation, links: Links, composition: Composition) -> EmulationSpec:
    """What to emulate for a composition."""
    return EmulationSpec(hosts=hosts_of(composition), rates=rates_of(emulation, links))


def links_document(rates: LinkRates, mode: str | None, reason: str = "") -> dict[str, Any]:
    """See the module. mode None: not emulated, for this reason."""
    return {
        "emulated": mode,
        "reason": reason,
        **rates.model_dump(),
        "fabric_gbit_per_s": rates.gbit_per_s("fabric"),
        "network_gbit_per_s": rates.gbit_per_s("network"),
    }


def said(links: Mapping[str, Any], runs: int, of: int) -> str:
    """One sentence for the report; runs: how many of all runs were measured over such links."""
    share = "" if runs == of else f" (so in {runs} of {of} runs)"
    if links["emulated"] is None:
        return (
            f"Links are not emulated{share}: {links['reason']}. All ranks shared this machine's loopback, so that attachment and "
            "the spread over hosts differ only by noise."
        )
    numbers = {name: value for name, value in links.items() if name not in ("emulated", "reason")}
    return EmulatedRates(mode=links["emulated"], **numbers).text().removesuffix(".") + f"{share}."
