"""How well forecasts of leases hold: `python -m tests.benchmarks.forecasts` prints a table (half a minute).

held: leases whose time is in the interval (80 to 97 % wanted); error: median, in percent of the expected time; factor: median of
the upper end of an interval over the expected time.
"""

from __future__ import annotations

from tests.forecasts_held import rows


def main() -> None:
    print(f"{'forecast':55} {'leases':>6} {'held':>6} {'error':>6} {'factor':>6}")
    for name, held in rows():
        print(f"{name:55} {held.leases:6} {held.held_pct:6.1f} {held.error_pct:6.1f} {held.factor:6.2f}")


if __name__ == "__main__":
    main()
