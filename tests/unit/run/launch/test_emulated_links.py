from __future__ import annotations

from campaign.emulators.hosts.emulation_plan import (
    FLAGS,
    build_emulation_spec,
    build_link_rates,
    describe_links,
    format_links_sentence,
    list_emulated_hosts,
)
from campaign.spec.system_file import Emulation, Links, SiteLink
from tests.unit.run.launch.compositions import composition

LINKS = Links(fabric=SiteLink(gb_per_s=10), network=SiteLink(gb_per_s=20))


def test_a_composition_becomes_hosts_with_their_own_and_their_fabric_devices() -> None:
    hosts = list_emulated_hosts(composition((2, 1), (0, 4)))
    assert [(host.name, host.local_devices, host.fabric_devices) for host in hosts] == [
        ("host1", 2, 1),
        ("host2", 0, 4),
    ]


def test_names_of_a_real_site_do_not_matter() -> None:
    mine = composition((1, 0))
    odd = type(mine)(tuple(type(host)("Rack_7.node", 4, 8.0, host.devices) for host in mine.hosts))
    assert list_emulated_hosts(odd) == list_emulated_hosts(mine)


def test_rates_are_the_links_of_the_system_file_by_the_scale() -> None:
    spec = build_emulation_spec(Emulation(scale=0.01), LINKS, composition((1, 1)))
    assert (spec.rates.compute_gbit_per_s("fabric"), spec.rates.compute_gbit_per_s("network")) == (0.8, 1.6)


def test_a_link_that_is_not_given_is_not_shaped() -> None:
    rates = build_link_rates(Emulation(), Links(network=SiteLink(gb_per_s=20)))
    document = describe_links(rates, "root")
    assert (document["fabric_gbit_per_s"], document["network_gbit_per_s"]) == (None, 1.6)
    assert "a fabric device and its host not shaped" in format_links_sentence(document, 1, 1)


def test_local_links_are_emulated_only_where_the_system_file_gives_their_rate() -> None:
    without = describe_links(build_link_rates(Emulation(scale=0.01), LINKS), "root")
    assert not [key for key in without if key.startswith("local")]
    assert "between devices of a host not shaped." in format_links_sentence(without, 1, 1)
    local = describe_links(
        build_link_rates(Emulation(scale=0.01), LINKS.model_copy(update={"local": SiteLink(gb_per_s=36)})), "root"
    )
    assert {key: local[key] for key in local.keys() - without.keys()} == {
        "local_gb_per_s": 36,
        "local_gbit_per_s": 2.88,
    }
    assert "between devices of a host 2.88 Gbit/s." in format_links_sentence(local, 1, 1)


def test_the_report_says_how_links_are_emulated_and_at_what_rates() -> None:
    document = describe_links(build_link_rates(Emulation(scale=0.01), LINKS), "user namespace")
    text = format_links_sentence(document, 8, 8)
    for part in ("user namespace", "0.01 of the real rates", "its host 0.8 Gbit/s", "hosts 1.6 Gbit/s"):
        assert part in text
    assert "runs" not in text


def test_the_report_says_that_hybrid_costs_more_over_emulated_links_of_unlike_rates() -> None:
    for local, said in ((36.0, True), (10.0, False)):
        links = LINKS.model_copy(update={"local": SiteLink(gb_per_s=local)})
        document = describe_links(build_link_rates(Emulation(scale=0.01), links), "root")
        assert ("Hybrid compositions are slower than on real hardware" in format_links_sentence(document, 1, 1)) == said


def test_the_report_says_that_links_are_not_emulated_why_and_for_how_many_runs() -> None:
    document = describe_links(build_link_rates(Emulation(), LINKS), None, "no `tc` here")
    text = format_links_sentence(document, 3, 8)
    assert "not emulated (3 of 8 runs): no `tc` here." in text
    assert "loopback" in text


def test_flags_can_be_told_apart_in_a_table_cell() -> None:
    assert FLAGS
    assert not [flag for flag in FLAGS if ", " in flag]
