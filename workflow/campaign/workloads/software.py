"""Software environment of an external program: a check that it exists, and a description of its content for records.

The environment is inspected once per session on the host of the driver, before the first run that needs it. Values that cannot
be determined are left out. Apptainer, conda and modules were not tested; their output is parsed as documented.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.common.errors import LaunchError
from campaign.common.files import read_json, write_json
from campaign.common.processes.command import CompletedCommand, run_command
from campaign.spec.cell import Scalar
from campaign.spec.fields import MODULE_PATTERN, OPERAND_PATTERN, FileModel
from campaign.workloads.command_template import fill_template

TemplateText = Annotated[str, StringConstraints(pattern=OPERAND_PATTERN)]
ModuleName = Annotated[str, StringConstraints(pattern=MODULE_PATTERN, max_length=200)]

SCHEMA = "software/1"
_QUERY_TIMEOUT_S = 120.0  # long enough for an environment on a busy shared file system
_PACKAGES_SCRIPT = (
    "import json, importlib.metadata as m; "
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)
_LOADED_MODULES_SCRIPT = 'printf "campaign:%s\\n" "$LOADEDMODULES"'
# Old Tcl modules exit with 0 even if a module could not be loaded.
_MODULE_NOT_FOUND = re.compile(
    r"Unable to locate a modulefile|ERROR:105|module\(s\) (?:are unknown|cannot be loaded)", re.I
)
# Module names and command are arguments, not text of the script, so that they reach the program unchanged.
_MODULES_SCRIPT = """\
command -v module >/dev/null || . /etc/profile >/dev/null 2>&1
while test "$1" != --; do module load "$1" || exit 127; shift; done
shift
exec "$@"
"""


class Container(FileModel):
    """Apptainer image that a program runs in."""

    image: TemplateText
    """Image file. Options of the workload in braces are replaced by their values, here and in the rest of `software`."""
    nv: bool = True
    """If true, the host's driver is passed into the container (`--nv`, or `--rocm` for AMD) for GPUs that need it."""
    binds: tuple[TemplateText, ...] = ()
    """Directories of the host to mount, in the syntax of `--bind`."""
    program: Literal["apptainer", "singularity"] = "apptainer"
    """Program that starts the container."""


class Software(FileModel):
    """Software environment of a program. Exactly one of these keys is allowed. Every record lists the installed packages."""

    conda: TemplateText | None = None
    """Name or directory of a conda environment."""
    apptainer: Container | None = None
    """Apptainer or Singularity image."""
    modules: tuple[ModuleName, ...] | None = Field(default=None, min_length=1)
    """Environment modules (Lmod or Tcl), loaded in this order."""
    venv: TemplateText | None = None
    """Directory of a Python virtual environment."""

    @model_validator(mode="after")
    def _require_one_key(self) -> Software:
        if sum(value is not None for value in (self.conda, self.apptainer, self.modules, self.venv)) != 1:
            raise ValueError("give exactly one of 'conda', 'apptainer', 'modules' and 'venv'")
        return self


def build_software_words(software: Software | None, *, runs_on: AcceleratorKind) -> list[str]:
    """Build the words to put before a command to start it in its software environment.

    A virtual environment needs no such words, because its programs are found through PATH (see `build_search_path`).
    """
    if software is None or software.venv is not None:
        return []
    if software.conda is not None:
        selector = "-p" if "/" in software.conda else "-n"
        return ["conda", "run", "--no-capture-output", selector, software.conda]
    if software.apptainer is not None:
        image = software.apptainer
        option = ACCELERATORS[runs_on].container_option
        driver = [option] if image.nv and option else []
        return [image.program, "exec", *driver, *(f"--bind={bind}" for bind in image.binds), image.image]
    # 'campaign' is the name of the script, as ps shows it.
    return ["bash", "-c", _MODULES_SCRIPT, "campaign", *(software.modules or ()), "--"]


def build_search_path(software: Software | None, path: str) -> str | None:
    """Build the PATH for programs in a virtual environment. Returns None if PATH need not be changed."""
    return f"{software.venv}/bin:{path}" if software is not None and software.venv is not None else None


def fill_software(software: Software, values: Mapping[str, Scalar], location: str) -> Software:
    """Return a copy of a software environment in which names in braces are replaced with the workload's option values."""

    def fill_value(value: str) -> str:
        return fill_template(value, values, f"{location}: software")

    image = software.apptainer
    if image is not None:
        image = image.model_copy(
            update={"image": fill_value(image.image), "binds": tuple(map(fill_value, image.binds))}
        )
    changes = {name: fill_value(value) for name in ("conda", "venv") if (value := getattr(software, name)) is not None}
    return software.model_copy(update={**changes, "apptainer": image})


def build_software_document(
    software: Software | None, launcher: str | None, cache: Path, location: str
) -> dict[str, Any] | None:
    """Describe the software environment in which a program is started, including the version of its launcher.

    Returns None if the program uses the host's software. Raises LaunchError if the environment does not exist.

    Args:
        software: software environment, with names filled in.
        launcher: program that starts the ranks, such as mpirun; None if there is none.
        cache: directory for cached digests of images, which are expensive to compute.
        location: location of the workload for error messages.
    """
    if software is None and launcher is None:
        return None
    environment = {} if software is None else describe_environment(software, cache, location)
    return {"schema_version": SCHEMA, **environment} | (
        {"launcher": _read_launcher_version(launcher, software, location)} if launcher else {}
    )


def describe_environment(software: Software, cache: Path, location: str = "software") -> dict[str, Any]:
    """Describe the content of a software environment as a JSON-serialisable dict. Raises LaunchError if it does not exist."""
    if software.conda is not None:
        return _describe_conda(software.conda, location)
    if software.apptainer is not None:
        return _describe_container(software.apptainer, cache, location)
    if software.venv is not None:
        return _describe_venv(software.venv, location)
    return _describe_modules(software, location)


def compute_image_digest(image: Path, cache: Path) -> str:
    """Return the SHA-256 of an image file in hex.

    The digest is cached. A file whose path, size and modification time are unchanged is not read again.
    """
    status = image.stat()
    state = [status.st_size, status.st_mtime_ns]
    cache_file, name = cache / "images.json", str(image.resolve())
    entries = read_json(cache_file)
    entry = entries.get(name)
    if isinstance(entry, dict) and entry.get("state") == state and isinstance(entry.get("sha256"), str):
        return str(entry["sha256"])
    with image.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # The cache only saves time. If it cannot be written, the image is read again.
    with suppress(OSError):
        write_json(cache_file, {**entries, name: {"state": state, "sha256": digest}})
    return digest


def _describe_conda(name: str, location: str) -> dict[str, Any]:
    """Describe a conda environment by its installed packages. Raises LaunchError if it does not exist."""
    _require_program("conda", location, "load or install it, or give the environment as `venv`")
    code, out, error_output = _run_query(["conda", "list", "--json", "-p" if "/" in name else "-n", name])
    if code != 0:
        raise _missing_software_error(
            location, f"the conda environment '{name}'", out + error_output, "create it, or correct `software.conda`"
        )
    document: dict[str, Any] = {"kind": "conda", "environment": name}
    with suppress(ValueError, TypeError, KeyError):
        document["packages"] = {
            package["name"]: " ".join(filter(None, (package["version"], package.get("build_string"))))
            for package in json.loads(out)
        }
    return document


def _describe_container(container: Container, cache: Path, location: str) -> dict[str, Any]:
    """Describe an Apptainer image by its digest, labels and Python packages. Raises LaunchError if it does not exist."""
    image = Path(container.image)
    _require_program(container.program, location, "install it, or set `program: singularity` if that is its name")
    if "://" in container.image:
        raise LaunchError(
            f"{location}: '{container.image}' is an address, whose image may change; fetch it once with "
            f"`{container.program} pull IMAGE.sif {container.image}`, and set software.apptainer.image to that file"
        )
    if not image.exists():
        raise LaunchError(
            f"{location}: the image '{image}' does not exist on {os.uname().nodename}; build or copy it, or correct "
            "software.apptainer.image"
        )
    document: dict[str, Any] = {"kind": "apptainer", "image": str(image)}
    if image.is_file():  # else a sandbox
        try:
            document["sha256"] = compute_image_digest(image, cache)
        except OSError as error:
            raise LaunchError(f"{location}: the image '{image}' cannot be read ({error.strerror})") from error
    code, out, _ = _run_query([container.program, "inspect", "--json", str(image)])
    if code == 0:
        with suppress(ValueError, TypeError, KeyError):
            document["labels"] = dict(json.loads(out)["data"]["attributes"]["labels"])
    words = build_software_words(Software(apptainer=container.model_copy(update={"binds": ()})), runs_on="cpu")
    return document | _list_python_packages([*words, "python3"])


def _describe_venv(directory: str, location: str) -> dict[str, Any]:
    """Describe a Python virtual environment by its installed packages. Raises LaunchError if it does not exist."""
    python = Path(directory) / "bin/python"
    if not python.exists():
        raise LaunchError(
            f"{location}: '{directory}' is not a virtual environment on {os.uname().nodename} (it has no bin/python); create it "
            f"with `python -m venv {directory}`, or correct software.venv"
        )
    return {"kind": "venv", "directory": directory, **_list_python_packages([str(python)])}


def _describe_modules(software: Software, location: str) -> dict[str, Any]:
    """Load environment modules, and list those that are then loaded. Raises LaunchError if one cannot be loaded."""
    names = software.modules or ()
    module_names = " ".join(names)
    code, out, error_output = _run_query(
        [*build_software_words(software, runs_on="cpu"), "bash", "-c", _LOADED_MODULES_SCRIPT]
    )
    if code != 0 or _MODULE_NOT_FOUND.search(error_output):
        raise _missing_software_error(
            location, f"the modules '{module_names}'", error_output, "see `module avail`, or correct `software.modules`"
        )
    document: dict[str, Any] = {"kind": "modules", "modules": list(names)}
    loaded_modules = [line.removeprefix("campaign:") for line in out.splitlines() if line.startswith("campaign:")]
    if loaded_modules and loaded_modules[-1]:
        document["loaded"] = loaded_modules[-1].split(":")
    return document


def _list_python_packages(python: Sequence[str]) -> dict[str, Any]:
    """List the packages, with versions, that a Python interpreter can import. The result is empty if it fails."""
    code, out, _ = _run_query([*python, "-c", _PACKAGES_SCRIPT])
    with suppress(ValueError, TypeError, IndexError):
        packages = json.loads(out.strip().splitlines()[-1])
        if code == 0 and packages:
            return {"packages": dict(sorted(packages.items()))}
    return {}


def _read_launcher_version(program: str, software: Software | None, location: str) -> str:
    """Return the first line of the output in which a launcher states its version."""
    launcher_software = None if software is not None and software.apptainer is not None else software
    path = build_search_path(launcher_software, os.environ.get("PATH", os.defpath))
    argv = [*build_software_words(launcher_software, runs_on="cpu"), program, "--version"]
    code, out, error_output = _run_query(argv, {} if path is None else {"PATH": path})
    first_line = next((line.strip() for line in (out + error_output).splitlines() if line.strip()), "")
    if code != 0:
        raise _missing_software_error(
            location, program, out + error_output, "install or load it, or choose another `launch`"
        )
    return first_line


def _require_program(name: str, location: str, remedy: str) -> None:
    """Raise LaunchError, with a remedy, if a program is not found on the PATH."""
    if shutil.which(name) is None:
        raise LaunchError(f"{location}: {name} is not on the PATH of {os.uname().nodename}; {remedy}")


def _missing_software_error(location: str, component: str, output: str, remedy: str) -> LaunchError:
    """Build the error for a software component that cannot be used, from its last output and a remedy."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    details = f" ({' '.join(lines)[-300:]})" if lines else ""
    return LaunchError(f"{location}: {component} cannot be used on {os.uname().nodename}{details}; {remedy}")


def _run_query(argv: Sequence[str], variables: Mapping[str, str] | None = None) -> CompletedCommand:
    """Run a query command and return its result, with exit code 127 if it does not exist and 124 after a timeout."""
    try:
        return run_command(argv, _QUERY_TIMEOUT_S, {**os.environ, **(variables or {})})
    except OSError as error:
        return CompletedCommand(127, "", f"{argv[0]}: {error.strerror}")
