from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.common.files import hash_document
from campaign.spec.cell import AXES, Configuration, drop_layout
from tests.campaign_files import one_cell

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.randoms())
def test_hash_does_not_depend_on_the_order_of_keys(document: dict[str, object], random: object) -> None:
    shuffled = list(document.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert hash_document(dict(shuffled)) == hash_document(document)


@given(JSON, JSON)
def test_different_documents_have_different_hashes(one: object, other: object) -> None:
    # 1 == True for Python, but not in JSON.
    assert (hash_document(one) == hash_document(other)) == (repr(one) == repr(other) or _same_json(one, other))


def _same_json(one: object, other: object) -> bool:
    import json

    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def test_axes_are_those_that_are_documented_and_the_options() -> None:
    assert set(one_cell(options={"seq_len": 3}).axes()) == {*AXES, "seq_len"}


@pytest.mark.parametrize(
    ("hosts", "devices", "local", "used", "ranks", "fabric"),
    [(2, 4, 1, 3, 6, 3), (1, 1, 1, 1, 1, 0), (4, 2, 0, 2, 8, 2)],
)
def test_counts_follow_from_the_shape(hosts: int, devices: int, local: int, used: int, ranks: int, fabric: int) -> None:
    configuration = Configuration("x", hosts, devices, local, used, "d", "hybrid", "local")
    assert configuration.ranks == ranks
    assert configuration.devices == hosts * devices
    assert configuration.fabric_devices_per_host == fabric


def test_global_batch_is_that_of_all_ranks() -> None:
    assert one_cell(hosts=2, devices=3, batch=4).batch_global == 24


def test_a_name_is_no_part_of_the_shape() -> None:
    one = Configuration("one", 1, 2, 2, 2, "d", "local", "local")
    two = Configuration("two", 1, 2, 2, 2, "d", "local", "local")
    assert one.shape() == two.shape()
    assert "name" not in one.shape()


def test_a_stored_configuration_is_read_without_its_layout() -> None:
    one = Configuration("one", 1, 2, 2, 2, "d", "local", "local")
    assert Configuration(**drop_layout({**asdict(one), "layout": ""})) == one
    assert Configuration(**drop_layout(asdict(one))) == one
    with pytest.raises(ConfigError, match="'one' has hosts that differ"):
        drop_layout({**asdict(one), "layout": "1 x 2 local d | 1 x 1 local d"})


def test_words_say_each_only_of_several_hosts() -> None:
    assert Configuration("x", 1, 2, 2, 1, "d", "local", "local").describe() == "1 host with 2 local d, 1 used"
    assert Configuration("x", 2, 2, 1, 2, "d", "hybrid", "local").describe() == "2 hosts with 1 local + 1 fabric d each"


def test_label_names_every_axis() -> None:
    assert one_cell(options={"size": 3}).label() == "c · steps · batch 4 · fp32 · size 3"
