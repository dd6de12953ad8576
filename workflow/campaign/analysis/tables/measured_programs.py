"""Programs that a campaign measured, as its tables store them: workload files and hashes of input files. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from campaign.common.files import hash_document

DESCRIPTIVE_KEYS = frozenset({"description", "precisions", "schema_version", "metrics", "run_s", "name"})
"""Keys of a workload file that affect no measured number."""


def read_programs(context: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the program of each workload as a mapping from keys of its file, and input files, to texts.

    Args:
        context: context document of the campaign; a context without a campaign has no programs.
    """
    try:
        document = _read_campaign(context)
        workloads, inputs = document.get("workloads") or {}, document.get("inputs") or {}
        return {name: _describe_program(file, inputs.get(name) or {}) for name, file in workloads.items()}
    except (yaml.YAMLError, AttributeError, TypeError, KeyError):
        return {}


def rename_programs(context: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the context with workloads renamed, or unchanged if it has no campaign.

    Args:
        context: context document of the campaign.
        names: new names of workloads by their current names.
    """
    try:
        document = _read_campaign(context)
        sections = {
            part: {names.get(name, name): file for name, file in (document.get(part) or {}).items()}
            for part in ("workloads", "inputs")
        }
    except (yaml.YAMLError, AttributeError):
        return dict(context)
    return {**context, "campaign_yaml": yaml.safe_dump({**document, **sections}, sort_keys=False)}


def _read_campaign(context: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the campaign document in the context; return {} if there is none."""
    document = yaml.load(context.get("campaign_yaml") or "", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document or {}


def hash_program(program: Mapping[str, str]) -> str:
    """Return the hash of a workload's program, without its descriptive keys."""
    return hash_document({key: text for key, text in program.items() if key not in DESCRIPTIVE_KEYS})


def _describe_program(file: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    # An empty value is the default of its key. It is left out, so that a key of a later version makes no other program.
    """Return the text of each non-empty key of a workload file, and the hash of each input file."""
    keys = {key: _describe_value(value) for key, value in file.items() if key != "inputs" and value}
    return {**keys, **{f"input {path}": f"sha256 {input_file['sha256'][:12]}" for path, input_file in inputs.items()}}


def _describe_value(value: Any) -> str:
    """Format a value from a workload file as text."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return shlex.join(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_describe_value(item)}" for key, item in value.items() if item is not None)
    return str(value)
