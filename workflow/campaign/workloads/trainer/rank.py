"""One rank of one training run: `python -m campaign.workloads.trainer.rank`, or forked by `campaign.workloads.trainer.forkserver`.

Environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, CAMPAIGN_SPEC (path of a TrainSpec as JSON), CAMPAIGN_OUT
(directory of the results). GLOO_SOCKET_IFNAME is set to `lo` if it is not set and MASTER_ADDR is a loopback address.

The rank writes `rank<r>.json` (schema rank/1). Exit code 0: the file has the status `ok`, `nan` or `unsupported`. Exit code 1:
the rank failed, and the file has the reason if it could still be written. Exit code 2: the environment or the specification is
invalid.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import NoReturn

from pydantic import ValidationError

from campaign.common.accelerators import TORCH_WARNINGS
from campaign.common.errors import ConfigError
from campaign.spec.record import Status
from campaign.workloads.failures import classify_failure
from campaign.workloads.trainer.rank_interface import (
    RankEnvironment,
    TrainSpec,
    result_path,
    run_rank_process,
    write_result,
)

_EVIDENCE_CHARACTERS = 500


def main() -> NoReturn:
    """Run this process as one rank of a training run, and end it. Never returns, and never unwinds the stack.

    `TrainingSession.close` describes what would hang otherwise.
    """
    run_rank_process(_run_rank)


def _run_rank(environment: Mapping[str, str]) -> int:
    rank_environment = RankEnvironment.from_environment(environment)
    try:
        spec = TrainSpec.model_validate_json(rank_environment.spec_path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{rank_environment.spec_path} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise ConfigError(f"{rank_environment.spec_path}: {error}") from error
    # The result of an earlier attempt must not be mistaken for that of this attempt.
    result_path(rank_environment.results_directory, rank_environment.rank).unlink(missing_ok=True)
    faulthandler.enable()
    if not sys.warnoptions:
        # Warnings of torch about its own interfaces would appear in every rank and hide relevant lines of the log.
        warnings.simplefilter("ignore")
    # Work that falls back to the CPU makes the run invalid, so this warning is always shown.
    warnings.filterwarnings("always", message=f".*(?:{TORCH_WARNINGS})")
    if rank_environment.world_size > 1 and rank_environment.local_ranks is not None:
        # Without an interface, gloo resolves the host's name, which may not lead to this host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # A forked rank has torch already. Any other process imports it here.
    started_s = time.perf_counter()
    from campaign.workloads.trainer import training_session

    import_s = time.perf_counter() - started_s
    session = training_session.TrainingSession(spec, rank_environment, import_s)
    try:
        result = session.run()
    except Exception as error:
        # The error goes into the log, with the rank before every line, and into the result file.
        text = "".join(traceback.format_exception(error))
        print(
            "".join(f"[rank{rank_environment.rank}]: {line}\n" for line in text.splitlines()), end="", file=sys.stderr
        )
        status, reason, evidence = classify_exception(error, text, session.describe_full_device())
        write_result(rank_environment.results_directory, session.build_result(status, reason=reason, evidence=evidence))
        return 1
    write_result(rank_environment.results_directory, result)
    session.close()
    return 0


def classify_exception(error: BaseException, traceback_text: str, full_device: str = "") -> tuple[Status, str, str]:
    """Classify an exception that ended a rank. Returns the rank's status, the reason and the evidence."""
    verdict = classify_failure(
        traceback_text, [1], timed_out=False, killed_by_launcher=False, device_full=bool(full_device)
    )
    if isinstance(error, MemoryError) and (verdict is None or verdict[0] != "oom_host"):
        return "oom_host", "the host could not allocate the requested memory", traceback_text[-_EVIDENCE_CHARACTERS:]
    if verdict is None:
        return "crashed", type(error).__name__, str(error)[:_EVIDENCE_CHARACTERS]
    evidence = f"{verdict[1].evidence}\n{full_device}".strip() if verdict[0] == "oom_device" else verdict[1].evidence
    return verdict[0], verdict[1].reason, evidence


if __name__ == "__main__":
    main()
