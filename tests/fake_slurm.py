"""Slurm's commands, as small programs on PATH: they keep what they are given, and answer as they are told to.

They stand in at the process boundary, where the real ones are slow or would have to be broken first. What real daemons do is
tested in tests/cluster.
"""

from __future__ import annotations

import fcntl
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacct", "srun")
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
UNREACHABLE = "Unable to contact slurm controller (connect failure)"


class FakeSlurm:
    """The programs in `directory`/bin, and their common memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        for name in PROGRAMS:
            program = self.bin / name
            program.write_text(
                f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
                f"from fake_slurm import main\nmain({name!r}, {str(directory)!r}, sys.argv[1:])\n"
            )
            program.chmod(0o755)
        with self.memory() as memory:
            memory.update(last=0, jobs={}, sbatch=[], reachable=True, partitions=["gpu", "wide"], hosts=[])

    @contextmanager
    def memory(self) -> Iterator[dict[str, Any]]:
        """What all programs know, changed under a lock."""
        with _memory(self.directory) as memory:
            yield memory

    # What the test says

    def answer(
        self, words: str = "", times: int = 1, *, taken: bool = False, kill: bool = False, code: int = 1
    ) -> None:
        """How the next calls of sbatch end: with an error, although the job was taken, or with the death of who called it."""
        with self.memory() as memory:
            memory["sbatch"] += [{"words": words, "taken": taken, "kill": kill, "code": code}] * times

    def most_jobs(self, number: int, words: str) -> None:
        """Refuse more than so many queued jobs."""
        with self.memory() as memory:
            memory["most_jobs"] = [number, words]

    def reachable(self, yes: bool) -> None:
        with self.memory() as memory:
            memory["reachable"] = yes

    def add(self, name: str, **fields: Any) -> str:
        """Somebody's job; gives its id."""
        with self.memory() as memory:
            memory["last"] += 1
            memory["jobs"][str(memory["last"])] = {**_job(name, ""), **fields}
            return str(memory["last"])

    def set(self, job_id: str, **fields: Any) -> None:
        with self.memory() as memory:
            memory["jobs"][job_id].update(fields)

    def forget(self, job_id: str) -> None:
        with self.memory() as memory:
            del memory["jobs"][job_id]

    def put(self, **fields: Any) -> None:
        """partitions, hosts (`NAME|STATE|GRES|REASON`, where states are joined by `+`)."""
        with self.memory() as memory:
            memory.update(fields)

    # What the programs were asked

    def jobs(self) -> dict[str, dict[str, Any]]:
        with self.memory() as memory:
            return dict(memory["jobs"])

    def files(self) -> list[str]:
        """The batch files that were taken, in order."""
        return [path.read_text() for path in sorted((self.directory / "taken").glob("*.sh"))]

    def calls(self, program: str) -> list[list[str]]:
        """Arguments of every call of a program, in order."""
        path = self.directory / f"{program}.calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def _memory(directory: Path) -> Iterator[dict[str, Any]]:
    with (directory / "memory.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = directory / "memory.json"
        memory = json.loads(path.read_text()) if path.exists() else {}
        yield memory
        # A program may be killed at any moment, and others read what it has left.
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(memory))
        whole.replace(path)


def _job(name: str, comment: str) -> dict[str, Any]:
    return {"name": name, "comment": comment, "state": "PENDING", "reason": "Priority", "hosts": ""}


# -- the programs ----------------------------------------------------------------------------------------------------------


def main(program: str, directory: str, arguments: list[str]) -> None:
    here = Path(directory)
    with (here / f"{program}.calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    with _memory(here) as memory:
        code, out, err, kill = _answer(program, here, memory, arguments)
    if kill:
        import os
        import signal

        os.kill(os.getppid(), signal.SIGKILL)
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(code)


def _answer(program: str, here: Path, memory: dict[str, Any], arguments: list[str]) -> tuple[int, str, str, bool]:
    """Exit status, output, errors, and whether the caller is to be killed."""
    if program == "sbatch":
        code, out, err, kill = _sbatch(here, memory, Path(arguments[-1]).read_text())
        plain = "--parsable" in arguments or not out.strip().isdecimal()
        return code, out if plain else f"Submitted batch job {out}", err, kill
    if not memory["reachable"]:
        return 1, "", f"{program}: error: {UNREACHABLE}\n", False
    given = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--"))
    match program:
        case "squeue":
            return _squeue(memory["jobs"], given)
        case "scontrol":
            return 0, "SLURM_VERSION           = 22.05.8\n", "", False
        case "scancel":
            for job_id in arguments:
                if job_id in memory["jobs"]:
                    memory["jobs"][job_id]["state"] = "CANCELLED"
            return 0, "", "", False
        case "sinfo":
            if given.get("format") == "%P|%l":
                return (
                    0,
                    "".join(f"{name}|{memory.get('longest', 'infinite')}\n" for name in memory["partitions"]),
                    "",
                    False,
                )
            lines = memory["partitions"] if given.get("format") == "%R" else []
            for row in memory["hosts"] if not lines else []:
                lines += [_node(row, given)] if "Format" in given else _listed(row, memory["partitions"])
            return 0, "".join(f"{line}\n" for line in lines), "", False
        case _:
            return 1, "", "Slurm accounting storage is disabled\n", False


def _sbatch(here: Path, memory: dict[str, Any], text: str) -> tuple[int, str, str, bool]:
    told = memory["sbatch"].pop(0) if memory["sbatch"] else {"words": "", "taken": True, "kill": False}
    if not memory["reachable"]:
        told = {"words": UNREACHABLE, "taken": False, "kill": False}
    flags = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH --")]
    given = dict(flag[2:].partition("=")[::2] for flag in flags)
    most, words = memory.get("most_jobs", (10**9, ""))
    if sum(job["state"] not in ENDED for job in memory["jobs"].values()) >= most:
        told = {"words": words, "taken": False, "kill": False}
    if told["taken"]:
        memory["last"] += 1
        job_id = str(memory["last"])
        (here / "taken").mkdir(exist_ok=True)
        (here / "taken" / f"{job_id:0>6}.sh").write_text(text)
        memory["jobs"][job_id] = _job(given["job-name"], given["comment"])
        if not told["words"]:
            return 0, f"{job_id}\n", "", told["kill"]
    if not told.get("code", 1):
        return 0, told["words"], "", told["kill"]
    return 1, "", f"sbatch: error: Batch job submission failed: {told['words']}\n", told["kill"]


def _node(row: str, given: dict[str, str]) -> str:
    """A line of sinfo in columns of the widths that are asked for."""
    widths = [int(column.partition(":")[2]) for column in given["Format"].split(",")]
    return "".join(f"{cell:{width}}" for cell, width in zip(row.split("|"), widths, strict=True))


def _listed(row: str, partitions: list[str]) -> list[str]:
    """Lines of sinfo in the format %N|%R|%T|%G|%f: a line for each partition."""
    name, state, gres, _ = row.split("|")
    return [f"{name}|{partition}|{state.lower()}|{gres}|(null)" for partition in partitions]


def _squeue(jobs: dict[str, dict[str, Any]], given: dict[str, str]) -> tuple[int, str, str, bool]:
    wanted = given["jobs"].split(",") if "jobs" in given else list(jobs)
    if "jobs" in given and not any(job_id in jobs for job_id in wanted):
        return 1, "", "slurm_load_jobs error: Invalid job id specified\n", False
    lines = []
    for job_id in wanted:
        job = jobs.get(job_id)
        if job is None or (job["state"] in ENDED and given.get("states") != "all"):
            continue
        line = given["format"]
        values = {"i": job_id, "T": job["state"], "r": job["reason"], "N": job["hosts"], "j": job["name"]}
        for letter, value in {**values, "k": job["comment"] or "(null)"}.items():
            line = line.replace(f"%{letter}", value)
        lines.append(line + "\n")
    return 0, "".join(lines), "", False
