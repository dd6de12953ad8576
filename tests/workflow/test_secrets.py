"""A secret that a program needs and prints stands in no file but the program's own log."""

from __future__ import annotations

from tests.workflow.checkout_twin import Project

# One is known by its name alone, as nothing in its shape tells.
SECRETS = {"HF_TOKEN": "correct-horse", "LICENCE": "battery.staple"}


def test_what_a_failing_program_prints_of_its_secrets_is_masked(project: Project) -> None:
    project.environment |= SECRETS
    project.write(
        "workloads/logged.yaml",
        {
            "name": "logged",
            "kind": "command",
            "command": ["sh", "-c", 'echo "RuntimeError: 401 for $HF_TOKEN, $LICENCE"; exit 1'],
            "environment": {name: {"from": "environment"} for name in SECRETS},
            "precisions": ["fp32"],
            "parsers": [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}],
        },
    )
    project.campaign()
    said = project.run("tables") + project.page("precision")

    (record,) = project.record_files().values()
    assert b"401 for ***, ***" in record
    results = project.results_root
    written = {path for path in results.rglob("*") if path.is_file() and not path.is_symlink()}
    assert len(written) > 10
    shown = {path for path in written for secret in SECRETS.values() if secret.encode() in path.read_bytes()}
    assert {path.relative_to(results).parts[1] for path in shown} == {"logs"}
    assert not any(secret in said for secret in SECRETS.values())
