"""The pages of the generated reference.

A page shows the models' keys as tables, in the order of the models. A general generator for JSON Schema lists every key in a
section of its own and describes unions of types as alternatives; here a key is one row, and "one or a list" are four words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from campaign.accelerators import ACCELERATORS
from campaign.config.documentation.markdown import sections, sentence, table
from campaign.config.documentation.schemas import NOUNS, options_schema, schema_of
from campaign.config.yaml_file import read_yaml
from campaign.documents.cell import AXES
from campaign.errors import ConfigError
from campaign.fabrics import fabric_kinds
from campaign.paths import CONFIG, ROOT
from campaign.workloads import WORKLOADS, workload_class
from campaign.workloads.parsers import PARSERS

COMMAND = "python -m campaign.config.documentation"
GENERATED = f"<!-- Written by `{COMMAND}` (`make docs`); edit the models in workflow/campaign, not this file. -->"
INTRODUCTION = """\
# Configuration

A campaign is described by three kinds of YAML files:

- a **campaign** states what is compared: hardware, workloads, batches and precisions, and how each is measured;
- a **system** describes one site: its hosts, its fabric and pool, and what starts runs;
- a **workload** is what is measured: built-in training, any program, or a synthetic reference with known results.

A campaign names its system and its workloads. `systems/NAME.yaml` and `workloads/NAME.yaml` are looked up beside the campaign
file, in the directory above it, and in the project's `config/`. Unknown keys, wrong types and unknown names are errors. The message
names the file, the line, the key and the nearest valid name. `campaign plan FILE` shows what a campaign would measure, and
measures nothing.

Where a type says "one or a list", a single value stands for a list of one. Editors with the YAML language server complete and
check keys: the first line of each file names its schema in `workflow/schemas/`.

- [Campaign](#campaign) · [Expressions](#expressions)
- [System](#system) · [Fabrics](#fabrics)
- [Workload](#workload)
- [Import map](#import-map): how logs of other tools become records
"""
CAMPAIGN = """\
A campaign is a matrix: configurations (requested hardware, declared by shape) times workloads times batches times precisions times
further options. Lists in a shape multiply as well; with `zip`, lists advance together instead. `exclude` removes cells, each with a
reason that the report repeats. Every configuration is composed `compositions` times, and every cell of the matrix is measured
`repetitions` times, in turns over its compositions.

A cell is identified by its content, not by its name or position. Adding values to an axis, reordering or renaming configurations,
raising `repetitions` or `compositions`, or changing limits repeats no measurement. Another batch, precision, shape, workload
content, seed, `warmup_steps`, `warmup_steps_max` or `measured_steps` makes another cell.

With `target_half_width_pct`, a cell is repeated in each composition until the confidence interval of its mean there is narrow
enough. All compositions together have between `repetitions_min` and `repetitions` runs, each at least two. The last record of a
composition states why the cell ended there. An interval that is checked after every run
covers slightly less than 95 %. After a batch has run out of memory, larger batches of an otherwise equal cell are recorded as
`implied` and not run (`skip_implied`).
"""
EXPRESSIONS = """\
`exclude`, `overrides`, the synthetic workload's `failures` and the option `--where` take predicates over the axes of a cell:

```
workload == 'bert-large' and batch >= 8
precision in ['fp16', 'bf16'] or not (attach == 'local' and hosts > 1)
```

Allowed are the names below and the campaign's option axes, numbers, quoted texts, `True`, `False`, lists, `== != < <= > >= in
not in`, `and or not`, `+ - * / // %` and parentheses. An expression is parsed, never executed as code.

`--where` also knows `host`: `host == 'host3'` selects the cells that have runs on that host.
"""
SYSTEM = """\
A system file describes the hosts and their devices, the pool behind the fabric, and what starts runs: this machine (`local`) or
Slurm (`slurm`). Configurations are placed on this hardware. One that can never fit is an error before anything runs.
"""
FABRIC = """\
`fabric.kind` names the adapter of the control plane; the other keys of `fabric` are options of that adapter. An adapter marked
unverified has not been run against the real product; start with `campaign fabric check SYSTEM`. `campaign fabric emulate KIND`
starts an emulated control plane for practice. Another package can provide an adapter through an entry point in the group
`composable_campaign.fabrics`. [All fabrics](fabrics.md) shows their status in one table.
"""
WORKLOAD = """\
A workload file states what is started for one run and what is read from it. `kind` selects one of the kinds below. `options` are
named values with defaults, which a campaign varies under `axes.options`. [All workloads](workloads.md) lists the shipped files and
the built-in parsers.
"""
IMPORT = """\
An import map describes logs of runs that another tool made: `campaign import DIR --map MAP.yaml` turns them into records. The map
gives the system and its configurations, the parser for each workload, and where the configuration, workload, batch, precision and
repetition of a log are found (in its path, in its text, or in the map). Logs of failed runs become records with their class of
failure. Logs that cannot be read are listed with the reason. `--dry-run` shows the resulting matrix and writes nothing. The import
writes the campaign's files to `results/<name>/config`.
"""
EXAMPLES: Mapping[str, str] = {
    "campaign": """\
name: first
question: What do two devices bring over one, and what does the fabric cost?
system: falcon-demo
configurations:
  - {devices_per_host: [1, 2], attach: [local, fabric]}
baseline: 1x2-local
axes:
  workload: bert-nano
  batch: [4, 8]
  precision: [fp32, bf16]
exclude:
  - {when: precision == 'bf16' and batch == 4, why: one batch is enough to compare precisions}
protocol: {warmup_steps: 2, measured_steps: 10, repetitions: 3}
""",
    "system": """\
name: two-hosts
description: Two hosts with a device each, and two more in the drawer of a simulated chassis.
fabric: {kind: simulated, attach_s: 0.5}
hosts:
  - {name: "host[1-2]", cores: 8, memory_gib: 64, devices: [{model: cpu-rank, count: 1}]}
pool:
  - {model: cpu-rank, count: 2, drawer: falcon1/drawer1}
devices:
  cpu-rank: {runs_on: cpu}
""",
    "import": """\
name: logs-of-2022
system:
  name: old-cluster
  hosts:
    - {name: "host[1-4]", cores: 64, memory_gib: 256, devices: [{model: a100, count: 4}]}
software: {tensorflow: 2.4.1}
configurations:
  - {name: one-host, devices_per_host: 4}
  - {name: spread, hosts: 4}
workloads:
  resnet50: {parser: tf_cnn_benchmarks}
logs:
  - path: "{configuration}/{workload}-b{batch}-{precision}-r{repetition}.log"
    words: {precision: {amp: fp16}}
    times: {start: "^started (.*)", end: "^ended (.*)"}
protocol: {warmup_steps: 10, measured_steps: 100}
""",
}


def configuration() -> str:
    """The reference of all keys."""
    return _page(_blocks())


def _page(blocks: Iterable[str]) -> str:
    return "\n".join(block.rstrip("\n") + "\n" for block in (GENERATED, *blocks))


def fabrics() -> str:
    """The status of all fabrics."""
    rows = (
        (
            f"[`{name}`](configuration.md#{name})",
            sentence(adapter.summary),
            sentence(adapter.tested),
            sentence(adapter.unverified),
        )
        for name, adapter in fabric_kinds().items()
    )
    return _page(
        [
            "# Fabrics",
            "No vendor's control plane has been tried yet. The last column states what is unverified.",
            table(("`fabric.kind`", "Fabric", "Tested with", "Unverified"), rows),
        ]
    )


def accelerators() -> str:
    """All kinds of devices, and what is unverified of each."""
    rows = (
        (
            f"`{kind}`",
            each.title,
            f"`{each.torch_type}`, `{each.backend}`",
            ", ".join(f"`{mask}`" for mask in each.masks[:1]),
            f"`{' '.join(each.list_command)}`" if each.list_command else "",
            each.telemetry,
            sentence(each.unverified) if each.unverified else "",
        )
        for kind, each in ACCELERATORS.items()
    )
    header = ("`runs_on`", "Device", "torch", "Mask", "Listed by", "Telemetry", "Unverified")
    return _page(["# Accelerators", "[How to use and add them](../how-to/accelerators.md).", table(header, rows)])


def workloads() -> str:
    """All kinds of workloads, shipped files and parsers."""
    shipped = [_shipped(path) for path in sorted((CONFIG / "workloads").glob("*.yaml"))]
    kinds = ((f"[`{kind}`](configuration.md#{kind})", _described(kind)) for kind in WORKLOADS)
    return _page(
        [
            "# Workloads",
            "## Kinds",
            table(("`kind`", "Workload"), kinds),
            "## Shipped workload files",
            "`campaign workload list` shows them with the command or model that they run.",
            table(("Name", "Kind", "Precisions", "Description"), shipped),
            "## Parsers",
            "A workload of kind `command` reads the output of these programs with `parser: NAME`.",
            table(("`parser`", "Program"), ((f"`{name}`", sentence(program)) for name, program in PARSERS.items())),
        ]
    )


def _shipped(path: Path) -> tuple[str, ...]:
    data = read_yaml(path).data
    precisions = data["precisions"] if isinstance(data["precisions"], list) else [data["precisions"]]
    return f"`{path.stem}`", f"`{data['kind']}`", ", ".join(map(str, precisions)), sentence(data.get("description", ""))


def _described(kind: str) -> str:
    return sentence(str(_workload_schema(kind).get("description", "")).partition("\n")[0])


def _blocks() -> Iterator[str]:
    yield INTRODUCTION
    yield f"## Campaign\n\n{CAMPAIGN}\n{_yaml(EXAMPLES['campaign'])}"
    yield from sections(schema_of("campaign"), "###")
    yield f"### Expressions\n\n{EXPRESSIONS}"
    yield table(("Name", "Meaning"), ((f"`{name}`", meaning) for name, meaning in AXES.items()))
    yield f"## System\n\n{SYSTEM}\n{_yaml(EXAMPLES['system'])}"
    yield from sections(schema_of("system"), "###")
    yield f"### Fabrics\n\n{FABRIC}"
    for name, adapter in fabric_kinds().items():
        unverified = f"\n\n**Unverified**: {adapter.unverified}." if adapter.unverified else ""
        yield f"#### {name}\n\n{sentence(adapter.summary)}{unverified}"
        options = options_schema(name)
        yield from sections(options, "#####", "fabric") if options.get("properties") else ("It has no options.",)
    yield f"## Workload\n\n{WORKLOAD}"
    for kind in WORKLOADS:
        yield from _workload(kind)
    yield f"## Import map\n\n{IMPORT}\n{_yaml(EXAMPLES['import'])}"
    yield from sections(schema_of("import"), "###")


def _workload(kind: str) -> Iterator[str]:
    """The section of one kind."""
    described = workload_class(kind)
    if not (described.introduction and described.example):
        raise ConfigError(
            f"{WORKLOADS[kind]}: give the class an 'introduction' and an 'example', which the reference shows"
        )
    yield f"### {kind}\n\n{described.introduction}\n{_yaml(described.example)}"
    yield from sections(_workload_schema(kind), "####", described=True)
    for title, text, header, rows in described.tables():
        yield f"#### {title}\n\n{text}"
        yield table(header, ((*row[:-1], sentence(row[-1])) for row in rows))


def _workload_schema(kind: str) -> dict[str, Any]:
    schema = schema_of("workload")
    definitions = schema["$defs"]
    return {**definitions[workload_class(kind).__name__], "$defs": definitions}


def _yaml(example: str) -> str:
    return f"```yaml\n{example}```\n"


def documents() -> dict[Path, str]:
    """Every generated file with its content."""
    schemas = {
        ROOT / "workflow" / "schemas" / f"{noun}.schema.json": json.dumps(schema_of(noun), indent=1, ensure_ascii=False)
        + "\n"
        for noun in NOUNS
    }
    pages = {
        "accelerators": accelerators,
        "configuration": configuration,
        "fabrics": fabrics,
        "workloads": workloads,
    }
    return {**{ROOT / "docs" / "reference" / f"{name}.md": page() for name, page in pages.items()}, **schemas}
