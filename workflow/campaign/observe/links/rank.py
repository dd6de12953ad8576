"""One rank of the links stage: `python -m campaign.observe.links.rank`, or forked by `campaign.workloads.trainer.forkserver`.

Environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, CAMPAIGN_SPEC (path of a LinkSpec as JSON), CAMPAIGN_OUT
(directory of the results). GLOO_SOCKET_IFNAME defaults to `lo` if MASTER_ADDR is a loopback address.

The result is `rank<r>.json` (schema links-rank/1). Exit code 0: everything was measured. 1: the measurement failed; the file holds
the error and the earlier measurements. 2: the environment or the specification is invalid.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Mapping
from typing import NoReturn

from campaign.common.errors import ConfigError
from campaign.observe.links.spec import read_spec, write_links
from campaign.workloads.trainer.rank_interface import RankEnvironment, result_path, run_rank_process

_ERROR_CHARACTERS = 500


def main() -> NoReturn:
    """Run this process as one rank of the link measurement, and exit with its exit code."""
    run_rank_process(_run)


def _run(environment: Mapping[str, str]) -> int:
    environment_of_rank = RankEnvironment.from_environment(environment)
    spec = read_spec(environment_of_rank.spec_path)
    if len(spec.hosts) != environment_of_rank.world_size:
        raise ConfigError(
            f"{environment_of_rank.spec_path}: has hosts for {len(spec.hosts)} "
            f"ranks, but WORLD_SIZE is {environment_of_rank.world_size}"
        )
    # The result of an earlier attempt must not be mistaken for that of this one.
    result_path(environment_of_rank.results_directory, environment_of_rank.rank).unlink(missing_ok=True)
    faulthandler.enable()
    if environment_of_rank.world_size > 1 and environment_of_rank.local_ranks is not None:
        # Without an interface, gloo resolves the host's name, which may lead to another host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from campaign.observe.links.rank_measurement import RankMeasurement

    session = RankMeasurement(spec, environment_of_rank)
    try:
        session.run()
    except Exception as error:
        for line in traceback.format_exc().splitlines():
            print(f"[rank{environment_of_rank.rank}]: {line}", file=sys.stderr)
        write_links(
            environment_of_rank.results_directory,
            session.build_result(f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS]),
        )
        return 1
    write_links(environment_of_rank.results_directory, session.build_result())
    session.leave_group()
    return 0


if __name__ == "__main__":
    main()
