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
    listed = (setup["options"]["install_requires"], extras["docs"], extras["bench"], extras["test"])
    required = [name for text in listed for name in names(text) if name != "pg-pipeline"]  # an extra may name another
    reasons = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (PROJECT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert [name for name, _ in reasons] == required


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
