"""Chakra execution traces: the samples were written by code that protobuf's own compiler made from the published schema."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.errors import ConfigError
from campaign.workloads.replay import ReplayWorkload

pytest.importorskip("google.protobuf")

from campaign.workloads.traces.chakra import ChakraTrace, chakra_trace
from campaign.workloads.traces.chakra_file import read_nodes

DATA = Path(__file__).parents[3] / "data" / "chakra"
METADATA = {"version": "0.0.4"}


def traced(path: Path, precision: Any = "fp32") -> ChakraTrace:
    return chakra_trace(path, "traced", "a100-40gb", precision, 8)


def shares(workload: ReplayWorkload) -> list[tuple[tuple[int, ...], float, float]]:
    return [(layer.tensors, layer.forward, layer.backward) for layer in workload.layers]


@pytest.mark.parametrize("name", ["data-parallel.0.et", "data-parallel.0.json"])
def test_computation_between_all_reduces_becomes_layers(name: str) -> None:
    made = traced(DATA / name).workload
    # The text converter's order: forward passes, then gradient of weights, all-reduce, gradient of inputs, from the last layer on.
    assert shares(made) == [
        ((1024,), 0.0, 0.35 + 0.25),
        ((262144,), 0.0, 0.06 + 0.45),
        ((10000,), 0.1 + 0.3 + 0.05 + 0.08, 0.0),
    ]
    assert made.layers[0].name == "COMM_COLL_NODE_conv1_ALLREDUCE"
    assert (made.compute[0].seconds, made.optimizer) == (0.00164, 0.0)
    assert made.total_share == pytest.approx(1.64)


def test_kernels_count_and_not_the_host_and_what_waits_for_a_reduction_is_the_optimizer(tmp_path: Path) -> None:
    made, left_out = traced(DATA / "gpu.0.et")
    assert shares(made) == [((1048576 // 4,), 0.0, 0.6), ((26214400 // 4,), 1.6, 0.0)]
    assert made.optimizer == 0.2
    assert left_out == ("3 operations of the CPU", "1 BROADCAST (ncclDevKernel_Broadcast)")
    assert traced(DATA / "gpu.0.et", "fp16-o2").workload.layers[0].tensors == (1048576 // 2,)
    packed = tmp_path / "gpu.et.gz"
    packed.write_bytes(gzip.compress((DATA / "gpu.0.et").read_bytes()))
    assert shares(traced(packed).workload) == shares(made)


def node(
    id: int, type: str = "COMP_NODE", us: int = 100, deps: tuple[int, ...] = (), **values: object
) -> dict[str, Any]:
    kinds = {bool: "boolVal", int: "int64Val", str: "stringVal"}
    attributes = [{"name": name, kinds[type_of(value)]: value} for name, value in values.items()]
    return {"id": id, "name": f"n{id}", "type": type, "durationMicros": us, "dataDeps": list(deps), "attr": attributes}


def type_of(value: object) -> type:
    return type(value)


def reduction(id: int, *deps: int, size: int = 4000, **values: object) -> dict[str, Any]:
    return node(id, "COMM_COLL_NODE", 0, deps, comm_type=0, comm_size=size, **values)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(*nodes: dict[str, Any], metadata: dict[str, Any] = METADATA) -> Path:
        path = tmp_path / "trace.json"
        path.write_text("\n".join(map(json.dumps, (metadata, *nodes))))
        return path

    return write


def test_computation_after_the_last_gradient_that_waits_for_nothing_delays_no_gradient(
    written: Callable[..., Path],
) -> None:
    made = traced(written(node(1), reduction(2, 1), node(3, us=50, deps=(1,)))).workload
    assert shares(made) == [((), 0.0, 0.05), ((1000,), 0.1, 0.0)]


def test_each_all_reduce_of_the_file_is_one_of_the_replay(written: Callable[..., Path]) -> None:
    assert traced(written(node(1), reduction(2, 1), reduction(3, 1, 2))).workload.options == {"bucket_mib": 0.001}


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([node(1), node(2, "COMM_SEND_NODE"), reduction(3, 1)], "the file also has 1 COMM_SEND_NODE (n2)"),
        (
            [node(1), *(node(n, "COMM_COLL_NODE", comm_type=6, comm_size=8) for n in range(2, 7))],
            "5 ALL_TO_ALL (n2, n3, n4, ...)",
        ),
        (
            [node(1), node(2, "COMM_COLL_NODE", comm_type=2), node(3, "COMM_COLL_NODE", comm_type=7)],
            "1 ALL_GATHER (n2); 1 REDUCE",
        ),
        (
            [node(1), reduction(2, 1, pg_name="0"), reduction(3, 1, pg_name="tp")],
            "2 process groups (1 in '0', 1 in 'tp')",
        ),
        ([node(1)], "has no all-reduce"),
        (
            [node(1), reduction(2, 1), node(3, deps=(2,)), reduction(4, 3)],
            "node 4 'n4' waits for computation that waits for all-r",
        ),
        (
            [node(1, deps=(3,)), reduction(2, 1), node(3, deps=(1,))],
            "3 nodes depend on each other in a circle, such as node 1",
        ),
        ([node(1, deps=(9,)), reduction(2, 1)], "node 1 'n1' depends on node 9, which is not in the file"),
        ([node(1), node(1), reduction(2, 1)], "node 2: id 1 occurs twice"),
        ([node(1), reduction(2, 1, size=0)], "node 2 'n2' has comm_size 0; allowed: 1 to"),
        ([node(1), reduction(2, 1, size=2**50)], f"has comm_size {2**50}"),
        ([node(1), node(2, "COMM_COLL_NODE", comm_type=44)], "has comm_type 44; allowed: 0 to 9"),
        ([node(1), node(2, "COMM_COLL_NODE")], "has comm_type None"),
        ([node(1, us=2**60), reduction(2, 1)], "takes 1152921504606846976 us"),
        ([node(1, us=0), reduction(2, 1)], "no node of computation has a duration_micros"),
        ([node(1, us=0, num_ops=5), reduction(2, 1)], "has num_ops and no duration_micros"),
        ([{**node(1), "type": 77}, reduction(2, 1)], "1 type 77 (n1)"),
        ([], "without a node"),
    ],
)
def test_what_a_replay_cannot_do_and_what_is_wrong_is_said(
    nodes: list[dict[str, Any]], says: str, written: Callable[..., Path]
) -> None:
    path = written(*nodes)
    with pytest.raises(ConfigError) as caught:
        traced(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        (DATA / "gpu.0.et").read_bytes()[:-5],
        (DATA / "gpu.0.et").read_bytes()[:40],
        b"\xff" * 200,
        b"\xff\xff\xff\xff\x07" + (DATA / "gpu.0.et").read_bytes(),
        b"\x00" * 50,
        b"",
        b"a text that is no trace\n",
        b"{" * 20000,
        b'{"version": "0.0.4"} [1]',
        b'{"version": "0.0.4"} {"id": "x"}',
        b'{"version": "0.0.1"} {"id": 1}',
        b"{\xff}",
        b"\x1f\x8b broken",
        gzip.compress(b"x" * 9000, mtime=0)[:-20],
    ],
    ids=range(14),
)
def test_a_file_that_is_no_whole_trace_is_one_message(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.et"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.et: "):
        read_nodes(path)


def test_a_trace_of_pytorch_alone_names_the_tools_that_convert_it(written: Callable[..., Path]) -> None:
    path = written(metadata={"schema": "1.1.1-chakra.0.0.4", "nodes": []})
    with pytest.raises(ConfigError, match="chakra_trace_link and chakra_converter"):
        read_nodes(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_nodes(tmp_path / "none.et")
