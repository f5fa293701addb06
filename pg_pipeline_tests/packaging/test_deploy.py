"""deploy/, as far as it can be checked without an engine for containers."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
import yaml
from packaging.requirements import Requirement
from psycopg.conninfo import conninfo_to_dict

from pg_pipeline.resources.instance import instance_config
from pg_pipeline.settings import Settings
from pg_pipeline_tests.e2e.stack import free_ports
from pg_pipeline_tests.helpers import PROJECT, ChildProcess, wait_until

DEPLOY = PROJECT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
TEXT = (DEPLOY / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name in SERVICES if "build" in SERVICES[name]]
# What the programs of others read.
THEIRS = {
    *("POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "SPARK_MASTER", "SPARK_DRIVER_HOST"),
    *("SPARK_NO_DAEMONIZE", "SPARK_WORKER_OPTS"),
}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
PROGRAMS = Path(sys.executable).parent


def variables_of(name: str) -> set[str]:
    """The variables that a file of deploy/ reads."""
    return set(re.findall(r"\{env: (\w+)\}", (DEPLOY / name).read_text()))


def test_services_refer_to_what_there_is() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS
            assert needed in SERVICES, f"{name} waits for {needed}"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed], f"{name} waits for the health of {needed}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), f"{name} mounts {source}"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} listens to everybody"


def test_nothing_waits_for_itself() -> None:
    waits = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    while ready := {name for name, needed in waits.items() if not needed & set(waits)}:
        waits = {name: needed for name, needed in waits.items() if name not in ready}
    assert not waits


def test_every_variable_is_read_by_somebody() -> None:
    ours = {f"PG_PIPELINE_{name.upper()}" for name in Settings.model_fields}
    read = ours | THEIRS | variables_of("dagster.yaml") | variables_of("workspace.yaml")
    for name, service in SERVICES.items():
        assert set(service.get("environment", {})) <= read, name
    for reader in ("code", "webserver", "daemon"):
        given = set(SERVICES[reader]["environment"])
        assert variables_of("dagster.yaml") | variables_of("workspace.yaml") <= given, reader


def test_secrets_come_from_the_environment_only() -> None:
    assert re.findall(r"password:? *[\"']?(\w+)", TEXT, re.IGNORECASE) == []
    for path in DEPLOY.iterdir():
        for line in path.read_text().splitlines():
            if re.search(r"password", line, re.IGNORECASE) and not line.lstrip().startswith("#"):
                assert "POSTGRES_PASSWORD" in line, f"{path.name}: {line}"
    assert conninfo_to_dict(_dsn("x"))["password"] == "x"


def _dsn(password: str) -> str:
    given: str = SERVICES["code"]["environment"]["PG_PIPELINE_DSN"]
    return re.sub(r"\$\{POSTGRES_PASSWORD:\?[^}]*\}", password, given)


@pytest.mark.parametrize("name", OURS)
def test_commands_of_our_image_are_those_of_what_it_installs(name: str, child: Callable[..., ChildProcess]) -> None:
    """Asked for help, each knows the words and options that the file gives it."""
    service = SERVICES[name]
    asked = (
        [service["command"], service["healthcheck"]["test"][1:]] if "healthcheck" in service else [service["command"]]
    )
    for command in asked:
        program = PROGRAMS / command[0]
        assert program.exists(), f"{name}: nothing installs {command[0]}"
        if command[0] == "spark-class":
            continue  # what it takes is shown by the tests on a real cluster
        words = []
        for word in command[1:]:
            if not re.fullmatch(r"[a-z-]+", word) or word.startswith("-"):
                break
            words.append(word)
        process = child(command=(str(program), *words, "--help"), env={"COLUMNS": "200", "PYTHONWARNINGS": "ignore"})
        assert process.wait() == 0, process.stderr
        for option in [word for word in command if word.startswith("--")]:
            assert option in process.stdout, f"{name}: {command[0]} has no {option}"


def test_the_health_check_tells_well_from_unwell(child: Callable[..., ChildProcess], dsn: str) -> None:
    (_, *command) = SERVICES["code"]["healthcheck"]["test"]
    for given, code in ((dsn, 0), ("host=127.0.0.1 port=1 dbname=nobody", 3)):
        program = str(PROGRAMS / command[0])
        process = child(command=(program, *command[1:]), env={"PG_PIPELINE_DSN": given})
        assert process.wait() == code, process.stdout + process.stderr


def copied() -> Iterator[tuple[list[str], str]]:
    for line in re.sub(r"\\\n", " ", DOCKERFILE).splitlines():
        word, *rest = shlex.split(line, comments=True) or [""]
        if word == "COPY":
            *sources, target = [part for part in rest if not part.startswith("--")]
            yield sources, target


def test_what_the_image_copies_is_there_and_is_enough_to_build_the_wheel() -> None:
    """The wheel itself is built and installed by test_wheel.py, from the same files."""
    found = [source for sources, _ in copied() for source in sources]
    assert [source for source in found if not (PROJECT / source).exists()] == []
    assert {"pyproject.toml", "setup.cfg", "README.md", "LICENSE", "pg_pipeline", "sql"} <= set(found)
    assert {"deploy/dagster.yaml", "deploy/workspace.yaml", "deploy/my_project.py"} <= set(found)


def test_executors_get_the_versions_that_the_driver_gets() -> None:
    setup = ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    ours = {r.name: r.specifier for r in map(Requirement, setup["options"]["install_requires"].split("\n")[1:])}
    lines = [line for line in (DEPLOY / "executors.txt").read_text().splitlines() if not line.startswith("#")]
    for one in map(Requirement, lines):
        assert ours.get(one.name, one.specifier) == one.specifier, one.name
    assert {"psycopg", "pyarrow", "pgpq"} <= set(ours)


def test_the_image_is_slim_and_runs_as_nobody_in_particular() -> None:
    assert re.search(r"^FROM python:3\.\d+-slim", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^USER (\w+)", DOCKERFILE, re.MULTILINE)[-1] not in ("root", "0")
    assert "jre-headless" in DOCKERFILE


@pytest.fixture
def instance(server: Any, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A DAGSTER_HOME with the production file, on this run's Postgres: only its socket is not what a host has."""
    parts = conninfo_to_dict(empty_dsn)
    config = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
    config["storage"]["postgres"]["postgres_db"]["params"] = {"host": str(parts["host"])}
    monkeypatch.setenv("DAGSTER_POSTGRES_HOST", "")
    monkeypatch.setenv("DAGSTER_POSTGRES_DB", str(parts["dbname"]))
    monkeypatch.setenv("DAGSTER_POSTGRES_USER", str(parts["user"]))
    monkeypatch.setenv("DAGSTER_POSTGRES_PASSWORD", str(parts.get("password", "")))
    monkeypatch.setenv("DAGSTER_LOGS", str(tmp_path / "logs"))
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_dagster_takes_the_instance_and_keeps_its_runs_in_postgres(instance: Path, empty_dsn: str) -> None:
    with dg.DagsterInstance.from_config(str(instance)) as made:
        assert made.run_monitoring_enabled
        assert made.run_retries_enabled
        assert made.run_retries_max_retries == 3
        assert not made.run_retries_retry_on_asset_or_op_failure
        assert made.get_concurrency_config().pool_config.pool_granularity.value == "run"
        assert made.get_concurrency_config().run_queue_config.max_concurrent_runs == 20
        made.add_dynamic_partitions("keys", ["a"])
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select partition from dynamic_partitions").fetchall() == [("a",)]


def test_production_says_what_up_says_wherever_both_say_something() -> None:
    production = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
    ours = instance_config("host=h dbname=d user=u")
    for name in ("run_monitoring", "run_retries", "sensors", "telemetry"):
        assert production[name] == ours[name], name
    assert production["concurrency"]["pools"] == ours["concurrency"]["pools"]
    assert production["storage"]["postgres"]["postgres_db"]["scheme"] == "postgresql+psycopg2"


def test_dagster_loads_the_workspace_of_the_image(instance: Path, child: Callable[..., ChildProcess], dsn: str) -> None:
    """The code location of the image, as the web server and the daemon reach it."""
    (port,) = free_ports(1)
    shutil.copy(DEPLOY / "my_project.py", instance)
    command = SERVICES["code"]["command"]
    command = [{"0.0.0.0": "127.0.0.1", "4000": str(port)}.get(word, word) for word in command]
    environment = {
        "PG_PIPELINE_DSN": dsn,
        "DAGSTER_HOME": str(instance),
        "DAGSTER_CODE_HOST": "127.0.0.1",
        "DAGSTER_CODE_PORT": str(port),
        "PYTHONPATH": f"{instance}:{PROJECT}",
        "PYTHONWARNINGS": "ignore",
    }
    server = child(command=(str(PROGRAMS / command[0]), *command[1:]), env=environment, cwd=instance)
    wait_until(lambda: "Started" in server.stderr + server.stdout, timeout=120, what="the code location to start")
    validate = ("definitions", "validate", "--workspace", str(DEPLOY / "workspace.yaml"))
    done = child(None, *validate, module="dagster", env=environment, cwd=instance)
    assert done.wait() == 0, done.stdout + done.stderr
    assert "my_project" in done.stdout + done.stderr
