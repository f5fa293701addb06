"""What the documents say of the project is so."""

import re
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

from pg_pipeline_tests.helpers import PROJECT, ChildProcess


def names(text: str) -> list[str]:
    return [found[1] for line in text.splitlines() if (found := re.match(r"([A-Za-z0-9-]+)", line.strip()))]


def test_every_dependency_has_its_reason() -> None:
    setup = ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    extras = setup["options.extras_require"]
    listed = (setup["options"]["install_requires"], *extras.values())
    required = [name for text in listed for name in names(text) if name != "pg-pipeline"]  # an extra may name another
    reasons = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (PROJECT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert [name for name, _ in reasons] == required


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    """Tomorrow's release of somebody else's package is not code that we looked at."""
    setup = ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    extras = setup["options.extras_require"]
    lines = [line for text in (setup["options"]["install_requires"], *extras.values()) for line in text.split("\n")]
    bounds = re.compile(r"[A-Za-z0-9-]+(\[[a-z,]+\])? (>=[0-9.]+,<[0-9.]+|==[0-9.]+)")
    assert [line for line in lines if line and not line.startswith("pg-pipeline[") and not bounds.fullmatch(line)] == []
    build = re.findall(r"^requires = \[(.*)\]", (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    assert all("<" in one for one in build)


def test_nothing_in_the_code_fetches_code() -> None:
    """No package, jar, script, style or font comes from the network at run time; only webhooks leave the machine, and
    what reaches a pipeline's own store."""
    fetches = re.compile(
        r"urllib\.request|urlopen|http\.client|ftplib|jars\.packages|jars\.repositories|--packages|ivy\b"
        r"|\bcurl |\bwget |\bpip[\"', ]+install|https?://(?!127\.0\.0\.1|localhost|\{)[a-z0-9]"
    )
    shown = dict.fromkeys(("doctor.py", "remote.py", "sqs.py"), "pip install")  # what a person may type
    for path in sorted(PROJECT.glob("pg_pipeline/**/*")):
        if path.suffix in (".py", ".html", ".properties"):
            for found in fetches.finditer(path.read_text()):
                assert found[0] == shown.get(path.name), f"{path.relative_to(PROJECT)}: {found[0]}"


def test_no_file_names_a_package_registry() -> None:
    """Whoever builds it brings their own; a host in a file would bind everyone to ours."""
    hosts = re.compile(r"pypi\.org|pythonhosted|--(extra-)?index-url|find-links|maven\.org")
    for name in ("Makefile", "setup.cfg", "pyproject.toml", ".ci/run", ".ci/system-packages", "README.md"):
        assert not hosts.search((PROJECT / name).read_text()), name
    assert not [path.name for path in PROJECT.glob("*.lock")]


def test_the_workspace_loads_our_definitions(child: Callable[..., ChildProcess], tmp_path: Path) -> None:
    """What `dagster dev` does in this folder, without the servers."""
    dagster = Path(sys.executable).parent / "dagster"
    command = (str(dagster), "definitions", "validate", "--workspace", "workspace.yaml")
    validation = child(command=command, env={"DAGSTER_HOME": str(tmp_path)})
    assert validation.wait() == 0, validation.stderr
    assert "Validation successful for code location pg_pipeline.definitions" in validation.stdout
