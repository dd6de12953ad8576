"""Response times of queues with Poisson arrivals: exact distributions, as textbooks have them (Kleinrock, Erlang)."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

Distribution = Callable[[float], float]
"""Share of requests that are answered within so many seconds."""


def erlang_c(servers: int, load: float) -> float:
    """Share of requests that wait. load: arrival rate times service time."""
    waits = load**servers / math.factorial(servers) * servers / (servers - load)
    return waits / (sum(load**k / math.factorial(k) for k in range(servers)) + waits)


def mmc(rate: float, service_s: float, servers: int) -> Distribution:
    """M/M/c: waiting is zero or exponential, and the service follows."""
    mu, waits = 1 / service_s, erlang_c(servers, rate * service_s)
    theta = servers * mu - rate

    def within(t: float) -> float:
        if math.isclose(theta, mu):
            late = mu * t * math.exp(-mu * t)
        else:
            late = mu / (theta - mu) * (math.exp(-mu * t) - math.exp(-theta * t))
        return 1 - math.exp(-mu * t) - waits * late

    return within


def md1(rate: float, service_s: float) -> Distribution:
    """M/D/1: Erlang's sum for the waiting time. Its terms grow with both signs: exact enough below 40 service times."""

    def within(t: float) -> float:
        wait = t - service_s
        if wait < 0:
            return 0.0
        late = [rate * (wait - k * service_s) for k in range(int(wait / service_s) + 1)]
        return (1 - rate * service_s) * math.fsum(
            (-x) ** k / math.factorial(k) * math.exp(x) for k, x in enumerate(late)
        )

    return within


def md1_mean(rate: float, service_s: float) -> float:
    """Pollaczek and Khinchine: mean response time."""
    load = rate * service_s
    return service_s + load * service_s / (2 * (1 - load))


def quantile(within: Distribution, share: float, longest_s: float) -> float:
    """Seconds within which that share is answered, less than `longest_s`."""
    found: float = brentq(lambda t: within(t) - share, 1e-9, longest_s, xtol=1e-9)
    return found
