"""The life of a rank as a process, whatever it is to do: it runs, says what went wrong, and ends without unwinding."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from campaign.errors import ConfigError


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
