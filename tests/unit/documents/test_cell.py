from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.documents.cell import AXES, Configuration, Devices, HostShape, layout_hosts, layout_text
from campaign.files import content_hash
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
    assert content_hash(dict(shuffled)) == content_hash(document)


HOSTS = st.lists(
    st.dictionaries(st.sampled_from(["a100", "t4", "h100-80gb"]), st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1)
    .map(lambda found: {model: counts for model, counts in found.items() if sum(counts)})
    .filter(bool)
    .flatmap(lambda found: st.tuples(st.just(found), st.integers(1, sum(map(sum, found.values()))))),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(HOSTS)
def test_a_layout_is_read_as_it_was_written(hosts: list[tuple[dict[str, tuple[int, int]], int]]) -> None:
    shapes = [HostShape(tuple(Devices(m, *counts) for m, counts in found.items()), used) for found, used in hosts]
    read = layout_hosts(layout_text(shapes))
    # Of a host its models may come in another order.
    assert [(set(host.devices), host.used) for host in read] == [(set(host.devices), host.used) for host in shapes]
    assert layout_text(read) == layout_text(shapes)


def test_what_is_no_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="'3 a100' is no layout of hosts"):
        layout_hosts("1 x 2 local a100 | 3 a100")


@given(JSON, JSON)
def test_different_documents_have_different_hashes(one: object, other: object) -> None:
    # 1 == True for Python, but not in JSON.
    assert (content_hash(one) == content_hash(other)) == (repr(one) == repr(other) or _same_json(one, other))


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


def test_words_say_each_only_of_several_hosts() -> None:
    assert Configuration("x", 1, 2, 2, 1, "d", "local", "local").words() == "1 host with 2 local d, 1 used"
    assert Configuration("x", 2, 2, 1, 2, "d", "hybrid", "local").words() == "2 hosts with 1 local + 1 fabric d each"


def test_label_names_every_axis() -> None:
    assert one_cell(options={"size": 3}).label() == "c · steps · batch 4 · fp32 · size 3"
