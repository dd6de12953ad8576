"""Parser of refusals by Slurm, with the remedy for each (wait, try again, or change the request). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

RefusalKind = Literal[
    "wait",  # There are too many jobs. The request will be accepted when some have ended.
    "transient",  # The controller, or a service that it needs, did not answer.
    "mistake",  # The request will never be accepted unchanged.
    "unknown",  # The message is not in the tables of this module.
]

_COMPLAINT = re.compile(r"^\w+: (?:error|fatal): ", re.MULTILINE)
_PROGRAM_PREFIX = re.compile(r"(?:sbatch|srun|scontrol|sinfo|squeue|scancel): ")

# Names of limits, such as `AssocMaxSubmitJobLimit`, `QOSMaxCpuPerJobLimit`, `QOSGrpGRES` and `MaxSubmitJobsPerAccount`. A quality
# of service with DenyOnLimit refuses a job that by itself exceeds a limit, and waiting does not help then.
_LIMIT = re.compile(
    r"\b(?:(?:Assoc|QOS)(?:Grp|Max|Min)\w+|(?:Assoc|QOS|QoS|Max|Grp)\w*?(?:Limit|Minutes|PerAccount|PerUser|PerJob|PerNode|MinGRES)\w*)\b"
)
_SUBMIT_LIMIT = re.compile(r"MaxSubmit|GrpSubmit", re.IGNORECASE)

_WAIT = re.compile(
    r"job submit limit|MaxSubmit|GrpSubmit|too many jobs|Resource temporarily unavailable|temporarily unable to accept job",
    re.IGNORECASE,
)
_TRANSIENT = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (?:refused|timed out|reset)|Zero Bytes were transmitted"
    r"|Transport endpoint is not connected|standby mode|connection failure|Communication (?:shutdown )?failure|no answer for"
    r"|Unexpected message received|authentication|Job credential|munge|Unable to contact .*database|slurm_persist_conn"
    r"|Unable to establish config(?:uration)? source|Required node not available|partition not available|No route to host"
    r"|Temporary failure in name resolution|database is (?:not )?available|Rate limit",
    re.IGNORECASE,
)

# Part of Slurm's message, its meaning, and the key of `slurm` in the system file that has to be changed.
_MISTAKES: tuple[tuple[str, str, str], ...] = (
    ("account or account/partition", "the account is not yours, or it may not use the partition", "account"),
    ("account not permitted", "the account may not use the partition", "account"),
    ("group not permitted", "your group may not use the partition", "partition"),
    ("QOS not permitted", "the quality of service may not be used in the partition", "qos"),
    ("partition", "the partition does not exist, or it is too small for the request", "partition"),
    ("qos", "the quality of service does not exist, or you may not use it", "qos"),
    ("feature spec", "no host has the requested features", "constraint"),
    ("generic resource", "the generic resource does not exist", "gres"),
    ("time limit", "the time limit is not allowed", "time_min"),
    ("--time", "the time limit is malformed", "time_min"),
    ("memory", "no host has that much memory", "memory_gib"),
    ("node name", "some hosts are unknown to Slurm; correct `hosts` in the system file", "nodelist"),
    ("reservation", "the reservation does not exist, or you may not use it", "additional"),
    ("license", "the license does not exist", "additional"),
    ("dependency", "the job that it depends on does not exist", "additional"),
    ("wckey", "the wckey is not accepted", "additional"),
    ("invalid entry for --cluster", "the cluster does not exist, or it cannot be reached", "additional"),
    ("option", "sbatch has no such option", "additional"),
    ("node configuration is not available", "no host has that many devices or CPUs, or that much memory", "gres"),
    ("node count", "there are not that many hosts", "partition"),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why Slurm refused a request.

    Args:
        kind: kind of the refusal.
        words: one sentence with Slurm's own message and the name of the limit that was hit.
        key: key of `slurm` in the system file to change, or `nodelist` for hosts; empty if no key helps.
    """

    kind: RefusalKind
    message: str
    key: str = ""


SINFO_COLUMNS = {
    "partition": ("partitions", "%R"),
    "constraint": ("features", "%f"),
    "gres": ("generic resources", "%G"),
    "nodelist": ("hosts", "%N"),
}
"""Description of the possible values of a `Refusal.key`, and the sinfo format that lists them."""


def parse_refusal(text: str) -> Refusal:
    """Parse the error output of sbatch, srun or scontrol into the reason of the refusal."""
    message = _join_messages(text)
    limit = next((match[0] for match in _LIMIT.finditer(message)), "")
    if limit and not _SUBMIT_LIMIT.search(limit):
        return Refusal(
            "mistake", f"the request exceeds the limit {limit} of its account or quality of service ({message})"
        )
    if limit or _WAIT.search(message):
        name = f", limit {limit}" if limit else ""
        return Refusal("wait", f"Slurm accepts no more jobs until some have ended ({message}{name})")
    if _TRANSIENT.search(message):
        return Refusal("transient", f"Slurm did not answer ({message})")
    for part, meaning, key in _MISTAKES:
        if part.lower() in message.lower():
            see = f"; change `slurm.{key}` in the system file" if key not in ("", "nodelist") else ""
            return Refusal("mistake", f"{meaning} (Slurm says: {message}){see}", key=key)
    return Refusal("unknown", f"Slurm says: {message}")


def _join_messages(text: str) -> str:
    """Join all error messages into one line, without program names, messages on retries, and other output of the site."""
    lines = [line.strip() for line in text.splitlines()]
    message_lines = [
        line for line in lines if line and "sleeping and retrying" not in line and not line.startswith("Try ")
    ]
    for form in (_COMPLAINT, _PROGRAM_PREFIX):
        if messages := [line for line in message_lines if form.match(line)]:
            message_lines = messages
            break
    return (
        "; ".join(dict.fromkeys(_COMPLAINT.sub("", line) for line in message_lines or filter(None, lines))) or "nothing"
    )
