"""The conditions of a claim in words: 'TF-ResNet50, A100, 4 devices, 2 hosts, 2 devices a host, against 1 host'. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# What says enough without its name.
_PLAIN = ("model", "models", "gpu", "precision", "link", "order", "scope", "path", "network")
_COUNTED = {
    "nodes": "{} host",
    "baseline_nodes": "against {} host",
    "gpus": "{} device",
    "gpus_total": "{} device",
    "gpus_per_node": "{} device",
}
_AFTER = {"gpus_per_node": " a host"}
_NAMED = {"batch_per_gpu": "batch {}", "baseline": "against {}", "config": "{}", "pair": "{}"}
_NAMES = ("config", "baseline", "pair", "num", "den")


def conditions(of: Mapping[str, Any]) -> str:
    """All conditions, joined; those that belong together (`num` and `den`, `from` and `to`) as one."""
    told = []
    for name, value in of.items():
        if name == "den" and "num" in of:
            continue
        if name == "num" and "den" in of:
            told.append(f"{_text(name, value)} over {_text(name, of['den'])}")
        elif name in ("from", "to"):
            # The second of the two goes on where the first ends.
            told += [f"{told.pop()} to {_text(name, value)}" if name == "to" and "from" in of else f"{name} {value}"]
        else:
            told.append(_said(name, value))
    return ", ".join(told)


def _said(name: str, value: Any) -> str:
    text = _text(name, value)
    if name in _COUNTED:
        one = value == 1
        return f"{_COUNTED[name].format(text)}{'' if one else 's'}{_AFTER.get(name, '')}"
    if name in _PLAIN:
        return text
    return _NAMED[name].format(text) if name in _NAMED else f"{name.replace('_', ' ')} {text}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return listed([_text(name, each) for each in value])
    return _configuration(str(value)) if name in _NAMES else str(value)


def _configuration(name: str) -> str:
    """A configuration as the study of the Falcon calls it, or a pair of devices: 'Falcon GPUs', 'local to local'."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name) if re.match(r"(local|falcon|hybrid)[A-Z]", name) else name
    pair = re.fullmatch(r"(local|falcon)-(local|falcon)", apart)
    return re.sub(r"\bfalcon\b", "Falcon", f"{pair[1]} to {pair[2]}" if pair else apart)


def listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
