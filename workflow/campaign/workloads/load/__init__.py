"""An open-loop load on a server of language models: requests at intended times, and what each of them met.

Latencies count from the time at which a request was intended to start. A generator that waits for a slow server, or is late itself,
would otherwise leave out the requests that suffer (coordinated omission).
"""

from campaign.workloads.load.load_file import Load
from campaign.workloads.load.request_latencies import PERCENTILES, SentRequest, columns, counted, flags, summary, window

__all__ = ["PERCENTILES", "Load", "SentRequest", "columns", "counted", "flags", "summary", "window"]
