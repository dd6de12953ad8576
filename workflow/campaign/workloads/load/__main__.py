"""Apply a load to a server that runs: `python -m campaign.workloads.load URL KEY=VALUE...`"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click
import yaml

from campaign.workloads.load.generator import apply
from campaign.workloads.load.load_file import Load
from campaign.workloads.load.request_latencies import columns, flags, summary, window


@click.command()
@click.argument("url")
@click.argument("keys", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--model", help="Model to ask for. Default: the first one that the server has.")
@click.option(
    "--requests", "requests_file", type=click.Path(path_type=Path), help="Write every request to this JSON file."
)
def main(url: str, keys: tuple[str, ...], model: str | None, requests_file: Path | None) -> None:
    """Apply a load to an OpenAI-compatible server and print what its requests met.

    Keys are those of `load` in a workload file, such as rate_per_s=4 duration_s=30 prompt_tokens='{uniform: [16, 64]}'.
    """
    try:
        named: dict[str, Any] = {name: yaml.safe_load(value) for name, _, value in (key.partition("=") for key in keys)}
        load = Load.model_validate(named).for_run({})
        done = asyncio.run(apply(load, url, model))
    except (ValueError, yaml.YAMLError) as error:
        raise click.ClickException(str(error)) from error
    within = window(load, done)
    if requests_file:
        requests_file.write_text(json.dumps(columns(done)))
    for name, value in summary(done, within).items():
        click.echo(f"{name:24} {value:.6g}")
    for flag in flags(done, within):
        click.echo(f"flag: {flag}")
    for words in sorted({request.error for request in done if request.error})[:5]:
        click.echo(f"error: {words}")


if __name__ == "__main__":
    main()
