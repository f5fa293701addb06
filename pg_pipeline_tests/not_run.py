"""A test that did not run is never green in silence.

A test marked `system("program", …)` whose program is missing is listed as NOT RUN ("root" stands for the right to be
root); any other skip is a failure. Where TEST_ALL_OR_FAIL is set, as in `.ci/run`, NOT RUN is one too.
"""

import os
import shutil

import pytest

NOT_RUN = "NOT RUN: "


def _missing(item: pytest.Item) -> list[str]:
    programs = [program for mark in item.iter_markers("system") for program in mark.args]
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    found = {program: shutil.which(program, path=path) is not None for program in programs}
    if "root" in found:
        found["root"] = os.geteuid() == 0
    return [program for program in programs if not found[program]]


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = _missing(item)
    if missing:
        pytest.skip(f"{NOT_RUN}there is no {' and no '.join(missing)} here")


def _skips(config: pytest.Config) -> list[tuple[str, str]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found.append((report.nodeid, reason.removeprefix("Skipped: ")))
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):  # one of several processes: the one that started them counts
        return
    skips = _skips(session.config)
    silent = [reason for _, reason in skips if not reason.startswith(NOT_RUN)]
    if exitstatus == 0 and (silent or (skips and os.environ.get("TEST_ALL_OR_FAIL"))):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skips = _skips(config)
    if skips:
        terminalreporter.section(f"{len(skips)} NOT RUN", sep="!", red=True, bold=True)
        for test, reason in skips:
            terminalreporter.line(f"NOT RUN  {test}  {reason.removeprefix(NOT_RUN)}", red=True)
