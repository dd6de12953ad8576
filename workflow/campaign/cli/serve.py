"""`campaign serve`: all campaigns' results in a browser, read-only."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

import click

from campaign.cli.options import results_option
from campaign.errors import ConfigError, needs_extra

_TOKEN = "CAMPAIGN_SERVE_TOKEN"


@click.command()
@results_option
@click.option("--host", default="127.0.0.1", help="Address to listen on; any except loopback needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8451, help="Port; 0: any free port.")
@click.option(
    "--token/--no-token",
    "wanted",
    default=None,
    help=f"Require a token: ${_TOKEN}, or a random one, which is printed. Default: required unless --host is loopback.",
)
def serve(results: Path, host: str, port: int, wanted: bool | None) -> None:
    """Show the results of all campaigns in a browser: progress, coverage, figures, comparisons. Ctrl-C stops it.

    It only reads, follows a running campaign, and loads nothing from the internet. To reach it on a login node, run
    'ssh -L 8451:localhost:8451 LOGIN-NODE' on your machine, then open http://localhost:8451.
    """
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ConfigError(f"--host {host}: is no address; give one of this machine's, such as 127.0.0.1") from None
    if wanted is False and not local:
        raise ConfigError(
            f"--no-token: {host} can be reached from other machines; leave it out, or listen on 127.0.0.1"
        )
    given = os.environ.get(_TOKEN, "")
    token = (given or secrets.token_urlsafe(24)) if wanted or not local or given else None
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            f"--port {port}: cannot listen on {host} ({error.strerror}); choose another, or 0 for any that is free"
        ) from error
    bound = listening.getsockname()[1]
    # The name by which a browser reaches it, where that is not the address.
    name = "localhost" if local else f"[{host}]" if ":" in host else socket.gethostname() if host == "0.0.0.0" else host
    with needs_extra("serve"):
        import uvicorn

        from campaign.results_site.application import application

    if not results.is_dir():
        click.echo(f"{results}: there are no results yet; campaigns appear here as they start", err=True)
    server = uvicorn.Server(
        uvicorn.Config(application(results, token), log_level="warning", access_log=False, timeout_keep_alive=5)
    )
    click.echo(f"Results below {results}: http://{name}:{bound}/" + (f"?token={token}" if token else ""))
    with suppress(KeyboardInterrupt):  # the server ends by it first, and then raises it again
        server.run(sockets=[listening])
