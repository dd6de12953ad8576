"""A rank as a process: where it stands in its run, by its environment, and how it ends. Without torch."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from campaign.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this is, and where it reads and writes; local_ranks: how many share this host, None when that is not known."""

    rank: int
    world_size: int
    local_rank: int
    spec: Path
    out: Path
    local_ranks: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Place:
        """ConfigError names the variable that is missing or not a number."""
        try:
            rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            local_rank = int(environment["LOCAL_RANK"])
            spec, out = Path(environment["CAMPAIGN_SPEC"]), Path(environment["CAMPAIGN_OUT"])
            if world_size > 1:
                int(environment["MASTER_PORT"])
            address = environment["MASTER_ADDR"] if world_size > 1 else "localhost"
        except KeyError as error:
            raise ConfigError(f"the environment of a rank needs {error.args[0]}") from error
        except ValueError as error:
            raise ConfigError(
                f"RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT have to be whole numbers ({error})"
            ) from error
        if not 0 <= rank < world_size:
            raise ConfigError(f"RANK has to be from 0 to WORLD_SIZE - 1 = {world_size - 1}, not {rank}")
        one_host = re.match(r"127\.|localhost$|::1$", address) is not None
        return cls(rank, world_size, local_rank, spec, out, world_size if one_host else None)


def live(run: Callable[[Mapping[str, str]], int]) -> NoReturn:
    """Run this process as one rank and end it with the code that `run` gives for its environment; 2: ConfigError, 1: any other.

    Never returns and never unwinds: threads of a process group can hang what does.
    """
    code = 1
    try:
        code = run(os.environ)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
