"""`python -m campaign.workloads.gpt_server --port PORT`: serve until SIGTERM.

Environment, where something else starts one process a device: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. The first process serves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from campaign.errors import ConfigError, needs_extra
from campaign.workloads.gpt_server.batching import Batcher, Feed
from campaign.workloads.trainer.rank_interface import live

if TYPE_CHECKING:
    from starlette.applications import Starlette

_STOP_S = 5


@click.command(context_settings={"show_default": True})
@click.option("--model", default="gpt-nano", help="gpt-nano, gpt-mini, gpt2 or gpt2-medium; its weights are random.")
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

        from campaign.workloads.gpt_server.decoder import SIZES, Decoder, random_weights
        from campaign.workloads.gpt_server.device_pace import DevicePace
        from campaign.workloads.gpt_server.tensor_parallel import Orders, ProcessGroup, start_others
    if model not in SIZES:
        raise ConfigError(f"--model {model}: is not known; use one of {', '.join(SIZES)}")
    torch.set_num_threads(1)
    others: list[subprocess.Popen[bytes]] = []
    if tensor_parallel > 1 and "RANK" not in os.environ:
        others = start_others(tensor_parallel, [sys.executable, "-m", __package__ or "", *sys.argv[1:]])
    group = ProcessGroup(os.environ) if tensor_parallel > 1 else None
    rank = group.rank if group else 0
    if group and group.size != tensor_parallel:
        raise ConfigError(f"--tensor-parallel {tensor_parallel}: the environment has WORLD_SIZE={group.size}")
    rates = [float(rate) for rate in pace_gflops.split(",")] if pace_gflops else []
    pace = DevicePace(rates[rank % len(rates)]) if rates else None
    size = SIZES[model]
    decoder = Decoder(size, random_weights(size, seed), slots, context, group, pace, least_tokens)
    if group is None:
        batcher = Batcher(decoder.next_tokens, slots)
    elif rank:
        Orders(slots).follow(decoder.next_tokens)
        return
    else:
        orders = Orders(slots)

        def next_tokens(feeds: Sequence[Feed]) -> Sequence[int]:
            orders.give(feeds)
            return decoder.next_tokens(feeds)

        batcher = Batcher(next_tokens, slots)
    with needs_extra("serve"):
        from campaign.workloads.gpt_server.application import application
    _serve(application(batcher, model, size.vocabulary, context, lambda: decoder.lost_s), batcher, host, port)
    if group:
        with suppress(RuntimeError):  # another process has ended already
            orders.give([])
    for other in others:
        other.wait(_STOP_S)


def _serve(app: Starlette, batcher: Batcher, host: str, port: int) -> None:
    """Answer requests until SIGTERM, SIGINT, or until decoding fails, which is raised."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(
            app, host, port, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="off"
        )
    )
    failures: list[BaseException] = []

    def decode() -> None:
        try:
            batcher.run()
        except BaseException as error:
            failures.append(error)
        finally:
            server.should_exit = True

    # uvicorn raises the signal that has ended it again; the group is still to be ended.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    thread = threading.Thread(target=decode, daemon=True)
    thread.start()
    with suppress(KeyboardInterrupt):
        server.run()
    batcher.stop()
    thread.join(_STOP_S)
    if failures:
        raise failures[0]


def _run(_: Mapping[str, str]) -> int:
    try:
        main.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    # Never unwinds: see `Session.close` of the trainer for what would hang.
    live(_run)
