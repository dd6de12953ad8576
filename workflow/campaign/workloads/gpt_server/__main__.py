"""`python -m campaign.workloads.gpt_server --port PORT`: serve until SIGTERM.

Environment, where something else starts one process a device: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. The first process serves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from campaign.errors import ConfigError, needs_extra
from campaign.workloads.gpt_server.application import Batcher, application
from campaign.workloads.rank_launchers import free_port
from campaign.workloads.trainer.rank_interface import live

if TYPE_CHECKING:
    from starlette.applications import Starlette

_STOP_S = 5
_LOCAL = "127.0.0.1"


@click.command(context_settings={"show_default": True})
@click.option("--model", default="gpt-nano", help="gpt-nano, gpt2 or gpt2-medium; its weights are random.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Port to listen on.")
@click.option("--seed", default=1234, help="Seed of the weights.")
@click.option("--slots", type=click.IntRange(1), default=8, help="Sequences that are decoded at the same time.")
@click.option("--context", type=click.IntRange(2, 1024), default=512, help="Longest sequence, prompt and answer.")
@click.option("--tensor-parallel", type=click.IntRange(1), default=1, help="Processes that share each layer.")
@click.option(
    "--pace-gflops",
    envvar="CAMPAIGN_PACE_GFLOPS",
    help="Rate of each process's emulated device in GFLOP/s, separated by commas. Default: as fast as this machine.",
)
@click.option(
    "--least-tokens",
    type=click.IntRange(1),
    default=8,
    help="With a pace: a device takes as long for an iteration of fewer tokens, because it reads the whole network.",
)
def main(
    model: str,
    host: str,
    port: int,
    seed: int,
    slots: int,
    context: int,
    tensor_parallel: int,
    pace_gflops: str | None,
    least_tokens: int,
) -> None:
    """Serve a GPT-2 with random weights through the OpenAI interface until SIGTERM."""
    with needs_extra("train"):
        import torch

        from campaign.workloads.gpt_server.decoder import Decoder, join_group, random_weights
        from campaign.workloads.trainer.transformer_sizes import GPT_SIZES
    if model not in GPT_SIZES:
        raise ConfigError(f"--model {model}: is not known; use one of {', '.join(GPT_SIZES)}")
    torch.set_num_threads(1)
    others: list[subprocess.Popen[bytes]] = []
    if tensor_parallel > 1 and "RANK" not in os.environ:
        words = [sys.executable, "-m", __package__ or "", *sys.argv[1:]]
        shared = {"WORLD_SIZE": f"{tensor_parallel}", "MASTER_ADDR": _LOCAL, "MASTER_PORT": f"{free_port(_LOCAL)}"}
        os.environ.update(shared, RANK="0")
        others = [subprocess.Popen(words, env={**os.environ, "RANK": f"{n}"}) for n in range(1, tensor_parallel)]
    if tensor_parallel > 1:
        if os.environ["WORLD_SIZE"] != str(tensor_parallel):
            raise ConfigError(
                f"--tensor-parallel {tensor_parallel}: the environment has WORLD_SIZE={os.environ['WORLD_SIZE']}"
            )
        join_group()
    rank = int(os.environ["RANK"]) if tensor_parallel > 1 else 0
    rates = [float(rate) for rate in (pace_gflops or "").split(",") if rate]
    gflops = rates[rank % len(rates)] if rates else None
    weights = random_weights(GPT_SIZES[model], seed)
    decoder = Decoder(GPT_SIZES[model], weights, slots, context, gflops=gflops, least_tokens=least_tokens)
    if rank:
        decoder.follow()
        return
    batcher = Batcher(decoder.next_tokens, slots)
    with needs_extra("serve"):
        app = application(batcher, model, GPT_SIZES[model].vocabulary, context, lambda: decoder.lost_s)
        asyncio.run(serve(app, batcher, host, port))
    with suppress(RuntimeError):  # another process has ended already
        decoder.next_tokens([])
    for other in others:
        other.wait(_STOP_S)


async def serve(app: Starlette, batcher: Batcher, host: str, port: int) -> None:
    """Answer requests until SIGTERM, SIGINT, or until decoding fails, which is raised."""
    import uvicorn

    config = uvicorn.Config(
        app, host, port, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="off"
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signal that has ended it again; the group is still to be ended.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    decoding = asyncio.create_task(batcher.run())
    decoding.add_done_callback(lambda _: setattr(server, "should_exit", True))
    await server.serve()
    decoding.cancel()
    with suppress(asyncio.CancelledError):
        await decoding


def _run(_: Mapping[str, str]) -> int:
    try:
        main.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    # Never unwinds: see `TrainingSession.close` of the trainer for what would hang.
    live(_run)
