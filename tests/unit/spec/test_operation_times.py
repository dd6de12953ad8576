"""Recorded times of a fabric's operations, and the file that they stand in."""

import json
from dataclasses import replace
from random import Random

import pytest

from campaign.common.errors import ConfigError
from campaign.fabrics.registry import load_fabric_kinds
from campaign.spec.operation_times import (
    OperationTime,
    RecordingSession,
    from_document,
    read_published_times,
    read_times,
)


def test_what_is_written_is_read(tmp_path):
    times = read_published_times("h3")
    assert from_document(times.document()) == times
    path = tmp_path / "times.yaml"
    path.write_text(json.dumps(times.document()))
    assert read_times(path) == times


def test_recordings_of_the_falcon():
    times = read_published_times("h3")
    assert (
        len(times.select_seconds("detach")),
        len(times.select_seconds("attach")),
        len(times.select_seconds("read_back")),
    ) == (
        251,
        251,
        148,
    )
    assert times.quantile(0.5, "attach", answer="true") == 9
    assert times.quantile(0.5, "attach", answer="false") == 15
    assert times.quantile(0.5, "visible") is None
    assert "KubeComp" in times.source
    assert times.address.startswith("https://")


def test_a_reading_that_is_confirmed_by_another_takes_as_long_as_both():
    once, twice = read_published_times("h3"), read_published_times("h3").double_readings(1.0)
    assert twice.quantile(0.5, "inventory") == pytest.approx(2 * once.quantile(0.5, "inventory") + 1.0)
    assert twice.quantile(0.5, "read_back") == once.quantile(0.5, "read_back") + once.quantile(0.5, "inventory") + 1.0
    assert twice.select_seconds("attach") == once.select_seconds("attach")


def test_values_by_what_is_known_of_them():
    slow, fast = OperationTime("attach", "gpu", "0", "false", 15.0), OperationTime("attach", "gpu", "1", "true", 9.0)
    times = replace(
        read_published_times("h3"), sessions=(RecordingSession("a", (slow, fast)), RecordingSession("b", (fast,)))
    )
    assert times.select_seconds("attach", box="0") == [15.0]
    assert times.quantile(0.25, "attach") == 9.0
    assert {times.sample_seconds(Random(n), "attach", answer="false") for n in range(9)} == {15.0}
    assert times.sample_seconds(Random(1), "attach", device="nvme") == 0.0


@pytest.mark.parametrize(
    "damage",
    [
        {"schema_version": "operation-times/9"},
        {"sessions": [{"session": "a", "began": "", "resolution_s": 1, "operations": [["fly", "gpu", "", "", 1, 1]]}]},
        {
            "sessions": [
                {"session": "a", "began": "", "resolution_s": 1, "operations": [["attach", "gpu", "", "", -1, 1]]}
            ]
        },
        {"sessions": [{"session": "a"}]},
        {"source": None},
    ],
)
def test_a_damaged_file_is_refused(damage):
    with pytest.raises(ConfigError, match="not a valid file of operation times"):
        from_document({**read_published_times("h3").document(), **damage})


def test_recordings_that_do_not_exist():
    with pytest.raises(ConfigError, match="there are: h3"):
        read_published_times("h4")


def test_every_kind_names_recordings_that_exist():
    assert all(read_published_times(kind.times) for kind in load_fabric_kinds().values() if kind.times)
