"""A composition as a document, and back: it is kept in shared files, in journals, and by drivers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.spec.hardware import ComposedHost, Composition, Device, Link

numbers = st.integers(0, 32)
names = st.text(min_size=1, max_size=8)
links = st.builds(Link, numbers, numbers, numbers, numbers)
devices = st.builds(
    Device,
    fabric_id=names,
    kind=st.sampled_from(["gpu", "nvme", "nic"]),
    model=names,
    host_id=st.none() | names,
    location=names,
    local=st.booleans(),
    state=st.just("in_use"),
    health=st.sampled_from(["ok", "warning", "critical"]),
    link=st.none() | links,
)
hosts = st.builds(
    ComposedHost,
    name=names,
    cores=numbers,
    memory_gib=st.floats(0, 1e4),
    devices=st.lists(devices, max_size=3).map(tuple),
    storage=st.lists(devices, max_size=2).map(tuple),
)
compositions = st.lists(hosts, max_size=3).map(lambda found: Composition(tuple(found)))


@given(compositions)
def test_reading_its_document_gives_the_composition(composition: Composition) -> None:
    assert Composition.from_document(json.loads(json.dumps(composition.document()))) == composition


@given(compositions, names, st.sampled_from(["free", "reserved", "composing", "unknown"]))
def test_who_holds_a_device_and_how_is_not_in_the_document(composition: Composition, holder: str, state: Any) -> None:
    from dataclasses import replace

    held = Composition(
        tuple(
            replace(
                host,
                devices=tuple(
                    replace(each, holder=holder, state=state, attached_to=host.name) for each in host.devices
                ),
            )
            for host in composition.hosts
        )
    )
    assert held.document() == composition.document()
    assert Composition.from_document(held.document()) == composition


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"hosts": [{}]},
        {"hosts": [{"name": "a", "cores": 1, "memory_gib": 1.0, "devices": [{}], "storage": []}]},
        None,
    ],
)
def test_what_describes_no_composition_is_refused(document: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        Composition.from_document(document)
