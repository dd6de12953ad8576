from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common import files
from campaign.common.errors import RecordError
from campaign.common.files import write_once
from campaign.plan.campaign.json_schemas import build_schema
from campaign.spec.readings import Reading
from campaign.spec.record import Failure, Record, RecordedCell, RecordStore, read_record

ID = "0123456789abcdef0123"


def a_record(cell_id: str = ID, repetition: int = 1, **values: Any) -> Record:
    given: dict[str, Any] = {
        "cell": RecordedCell(
            configuration="1x2-local", hosts=1, devices_per_host=2, local_devices_per_host=2, devices_used=2, device="d",
            attach="local", storage="local", workload="steps", batch=4, precision="fp32", options={"size": 8},
        ),
        "specification": {"batch": 4},
        "status": "ok",
        "started": 10.0,
        "ended": 12.5,
        "lease_id": "small.1x2-local.1",
        "composition": "c",
        "environment": "e",
        "campaign": "f",
        "throughput_per_s": 33.5,
        "step_times_s": ((0.1, 0.2), (0.1, 0.2)),
        "window_s": (0.3, 0.3),
        **values,
    }  # fmt: skip
    return Record(cell_id=cell_id, repetition=repetition, **given)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.lists(st.floats(0, 1e6), max_size=3).map(tuple), max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    st.text(max_size=20),
)
def test_reading_gives_what_was_written(rate: float, steps: Any, metrics: dict[str, float], reason: str) -> None:
    record = a_record(throughput_per_s=rate, step_times_s=steps, metrics=metrics, failure=Failure(reason=reason))
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_a_written_record_is_what_its_schema_says(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(a_record())
    document = json.loads(store.path(ID, 1).read_bytes())
    jsonschema.Draft202012Validator(build_schema("record")).validate(document)
    assert store.path(ID, 1) == tmp_path / "records" / "01" / f"{ID}.1.json"


def test_requests_of_earlier_records_and_readings_are_not_read(tmp_path: Path) -> None:
    document = json.loads(a_record().model_dump_json(exclude={"checksum"}))
    assert "requests" not in document
    requests = {"intended_s": [0.0, 1.0], "sent_s": [0.0, 1.0], "error": [None, "refused"], "in_window": [True, True]}
    for value in (requests, None):
        assert Record.model_validate(document | {"requests": value}) == a_record()
    reading = Reading.model_validate({"started": 1.0, "record": {"metrics": {}, "requests": requests}})
    assert reading.record == {"metrics": {}}


def test_a_record_is_written_once(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(a_record(throughput_per_s=1.0))
    store.write(a_record(throughput_per_s=2.0))
    assert store.read_latest(ID, 1).throughput_per_s == 1.0
    assert store.list_keys() == {(ID, 1)}


def test_index_and_iteration_agree(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    keys = {(f"{n:020x}", r) for n in (1, 2**75, 2**79) for r in (1, 12)}
    for key in keys:
        store.write(a_record(*key))
    assert store.list_keys() == keys
    assert [record.key for record in store] == sorted(keys)


def test_foreign_files_are_no_records(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    assert store.list_keys() == set()
    store.write(a_record())
    shard = tmp_path / "records" / "01"
    for name in ("notes.txt", f"{ID}.json", f"{ID}.1.json~", f".{ID}.1.json.x7", f"{ID}.1.json.tmp", f"{ID}.x.json"):
        (shard / name).write_text("foreign")
    (tmp_path / "records" / "README").write_text("foreign")
    (tmp_path / "records" / "zz").mkdir()
    (tmp_path / "records" / "zz" / f"{ID}.2.json").write_text("in the wrong place")
    assert store.list_keys() == {(ID, 1)}
    assert len(list(store)) == 1


@pytest.mark.parametrize("length", [0, 1, 40, -2])
def test_a_truncated_record_is_named_with_its_remedy(tmp_path: Path, length: int) -> None:
    store = RecordStore(tmp_path)
    store.write(a_record())
    path = store.path(ID, 1)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RecordError, match=f"{path}: is not a complete record/1 record .*move it away") as caught:
        store.read_latest(ID, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("schema_version", "record/9", "schema_version"),
        ("status", "fine", "status"),
        ("surprise", 1, "surprise"),
        ("started", "soon", "started"),
        ("repetition", 0, "repetition"),
    ],
)
def test_a_record_that_says_something_else_is_refused(tmp_path: Path, key: str, value: Any, named: str) -> None:
    path = tmp_path / f"{ID}.1.json"
    path.write_text(json.dumps({**json.loads(a_record().model_dump_json()), key: value}))
    with pytest.raises(RecordError, match=f"\\({named}: "):
        read_record(path)


def test_a_record_under_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{ID}.2.json"
    path.write_text(a_record().model_dump_json())
    with pytest.raises(RecordError, match=f"contains the record of run {ID}.1; move it away"):
        read_record(path)


def test_a_record_that_is_gone_or_a_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.1.json").mkdir()
    for name in (f"{ID}.1.json", f"{ID}.2.json"):
        with pytest.raises(RecordError, match=f"{name}: cannot be read"):
            read_record(tmp_path / name)


def test_what_records_share_stands_once_under_its_hash(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    name = store.share_document({"b": 1, "a": [1, 2]})
    assert store.share_document({"a": [1, 2], "b": 1}) == name
    assert len(list(store.shared.iterdir())) == 1
    assert store.read_shared_document(name) == {"a": [1, 2], "b": 1}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 2}', None])
def test_a_damaged_shared_document_is_named_with_its_remedy(tmp_path: Path, content: str | None) -> None:
    store = RecordStore(tmp_path)
    name = store.share_document({"a": 1})
    path = store.shared / f"{name}.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(RecordError, match=f"{path}: .*restore it from an archive"):
        store.read_shared_document(name)


def test_nothing_partial_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RecordError, match=r"No space left on device.*finished records are kept"):
        write_once(tmp_path / "deep" / "x.json", b"content")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_file_where_a_directory_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("foreign")
    with pytest.raises(RecordError, match="could not be written"):
        RecordStore(tmp_path).write(a_record())


def test_a_directory_that_cannot_be_listed_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "01").symlink_to(tmp_path / "records" / "01")  # leads to itself
    with pytest.raises(RecordError, match="cannot be listed"):
        RecordStore(tmp_path).list_keys()


def test_records_are_awaited_only_as_long_as_they_may_take(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(a_record())
    store.await_records([], 0.0)
    store.await_records([(ID, 1)], 0.0)
    with pytest.raises(
        RecordError, match=rf"{ID}\.2\.json: was written on another host but is not visible here after 0 s"
    ):
        store.await_records([(ID, 1), (ID, 2)], 0.0)


def test_a_record_that_appears_late_is_seen(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    late = threading.Timer(0.3, lambda: store.write(a_record(ID, 2)))
    late.start()
    try:
        assert (ID, 2) not in store.list_keys()
        store.await_records([(ID, 2)], 30.0)
        assert (ID, 2) in store.list_keys()
    finally:
        late.join()
