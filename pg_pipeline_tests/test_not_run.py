"""A test that did not run is never green in silence (lesson D10)."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pg_pipeline_tests.helpers import ChildProcess

MISSING = "import pytest\n@pytest.mark.system('no-such-program')\ndef test_it(): pass\n"
SKIPPED = "import pytest\ndef test_it(): pytest.skip('not today')\n"
GOOD = "def test_it(): pass\n"


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(
    ("source", "all_or_fail", "code", "printed"),
    [
        (GOOD, "1", 0, "1 passed"),
        (MISSING, None, 0, "NOT RUN  test_it.py::test_it  there is no no-such-program here"),
        (MISSING, "1", 1, "NOT RUN  test_it.py::test_it"),
        (SKIPPED, None, 1, "NOT RUN  test_it.py::test_it  not today"),
    ],
)
def test_what_did_not_run_is_said_and_counts(
    child: Callable[..., ChildProcess],
    tmp_path: Path,
    source: str,
    all_or_fail: str | None,
    code: int,
    printed: str,
    processes: str,
) -> None:
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = system\n")
    plugins = ("-p", "xdist", "-p", "pg_pipeline_tests.not_run", "-p", "no:cacheprovider")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TEST_ALL_OR_FAIL": all_or_fail}
    run = child(command=(sys.executable, "-m", "pytest", *plugins, "-n", processes, "."), cwd=tmp_path, env=alone)
    assert run.wait() == code, run.stdout
    assert printed in run.stdout
