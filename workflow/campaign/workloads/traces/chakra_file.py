"""The nodes of an MLCommons Chakra execution trace: protobuf messages with their lengths before them, or the same as JSON.

Of the published schema (et_def.proto, version 0.0.4) it knows the fields that a replay needs; protobuf passes over the others.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from campaign.errors import ConfigError, needs_extra
from campaign.files import open_regular

_MOST_BYTES = 2**30
_VERSIONS = ("0.0.4", "1.0.0")
_GZIP = b"\x1f\x8b"
NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)
COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
_FIELDS: Mapping[str, Mapping[int, str]] = {
    "AttributeProto": {
        1: "string name",
        3: "double double_val",
        5: "float float_val",
        7: "int32 int32_val",
        9: "int64 int64_val",
        11: "uint32 uint32_val",
        13: "uint64 uint64_val",
        15: "sint32 sint32_val",
        17: "sint64 sint64_val",
        19: "fixed32 fixed32_val",
        21: "fixed64 fixed64_val",
        23: "sfixed32 sfixed32_val",
        25: "sfixed64 sfixed64_val",
        27: "bool bool_val",
        29: "string string_val",
    },
    "GlobalMetadata": {1: "string version", 2: "repeated AttributeProto attr"},
    "Node": {
        1: "uint64 id",
        2: "string name",
        3: "NodeType type",
        5: "repeated uint64 data_deps",
        6: "uint64 start_time_micros",
        7: "uint64 duration_micros",
        10: "repeated AttributeProto attr",
    },
}


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """One operation. type: of NODE_TYPES; depends_on: ids of those that have to be done before; values: its attributes by name."""

    id: int
    name: str
    type: str
    depends_on: tuple[int, ...]
    start_us: int
    duration_us: int
    values: Mapping[str, bool | int | float | str] = field(default_factory=dict)


def read_nodes(path: Path) -> list[ChakraNode]:
    """All nodes in the order of the file (`.et`, also with gzip, or chakra_jsonizer's). ConfigError says what is wrong."""
    with needs_extra("chakra"):
        from google.protobuf import json_format, message
    content = _content(path)
    messages = _json_messages(path, content) if content.lstrip()[:1] == b"{" else _messages(content)
    nodes: dict[int, ChakraNode] = {}
    number = 0
    try:
        _check_version(path, next(messages, None))
        for node in map(_node, messages):
            number += 1
            if node.id in nodes:
                raise ConfigError(f"{path}: node {number}: id {node.id} occurs twice; ids are unique in a trace")
            nodes[node.id] = node
    except (message.Error, json_format.Error, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: damaged after {number} nodes, or no Chakra execution trace ({error}); a trace is what chakra_converter "
            "writes, or chakra_jsonizer"
        ) from error
    if not nodes:
        raise ConfigError(f"{path}: a Chakra execution trace without a node; convert the trace again")
    return list(nodes.values())


def _content(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            source: Any = gzip.GzipFile(fileobj=file) if packed else file
            content: bytes = source.read(_MOST_BYTES + 1)
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path}: more than {_MOST_BYTES / 2**30:g} GiB; convert the trace of a single step")
    return content


def _messages(content: bytes) -> Iterator[Any]:
    """The metadata, then the nodes."""
    from google.protobuf.proto import parse_length_prefixed

    # From memory: a length in a damaged file could be any, and a file would make room for as much.
    stream = BytesIO(content)
    kind = _classes()["GlobalMetadata"]
    while (message := parse_length_prefixed(kind, stream)) is not None:
        yield message
        kind = _classes()["Node"]


def _json_messages(path: Path, content: bytes) -> Iterator[Any]:
    """chakra_jsonizer writes one document after the other."""
    from google.protobuf.json_format import ParseDict

    text, decoder, place = content.decode(), json.JSONDecoder(), 0
    kind = _classes()["GlobalMetadata"]
    while place < len(text):
        document, place = decoder.raw_decode(text, place)
        if not isinstance(document, dict):
            raise ValueError("a document that is no node")
        if "nodes" in document:
            raise ConfigError(
                f"{path}: a trace as PyTorch writes it, without times of devices; chakra_trace_link and chakra_converter make a "
                "Chakra execution trace of it"
            )
        yield ParseDict(document, kind(), ignore_unknown_fields=True)
        kind = _classes()["Node"]
        while text[place : place + 1].isspace():
            place += 1


def _check_version(path: Path, metadata: Any) -> None:
    found = getattr(metadata, "version", "")
    for attribute in getattr(metadata, "attr", ()):
        if attribute.name == "schema":
            found = found or attribute.string_val.partition("chakra.")[2]
    if found not in _VERSIONS:
        raise ConfigError(
            f"{path}: no Chakra execution trace of a known version ({found[:40]!r}); known: {', '.join(_VERSIONS)}. It is what "
            "chakra_converter writes, or chakra_jsonizer"
        )


def _node(message: Any) -> ChakraNode:
    values = {}
    for attribute in message.attr:
        which = attribute.WhichOneof("value")
        if which is not None:
            values[attribute.name] = getattr(attribute, which)
    types = dict(enumerate(NODE_TYPES))
    return ChakraNode(
        message.id,
        message.name,
        types.get(message.type, f"type {message.type}"),
        tuple(message.data_deps),
        message.start_time_micros,
        message.duration_micros,
        values,
    )


@cache
def _classes() -> Mapping[str, Any]:
    """Message classes by name, made here because protobuf's compiler makes code for one version of protobuf only."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    enum = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        enum.value.add(name=name, number=number)
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        if message == "AttributeProto":
            described.oneof_decl.add(name="value")
        for number, text in fields.items():
            *label, kind, name = text.split()
            field = described.field.add(name=name, number=number, label=3 if label else 1)
            if name.endswith("_val"):
                field.oneof_index = 0
            if kind[0].isupper():
                field.type_name = f".{file.package}.{kind}"
                field.type = 14 if kind == "NodeType" else 11  # TYPE_ENUM, TYPE_MESSAGE
            else:
                field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in _FIELDS
    }
