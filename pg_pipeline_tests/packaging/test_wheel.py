"""`pip install .` gives a command that works and that finds its SQL, away from the checkout."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from pg_pipeline_tests.helpers import PROJECT


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shipped(root: Path, pattern: str) -> set[str]:
    files = (path for path in root.rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(root)) for path in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pg_pipeline", "sql"):
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *quiet, "--wheel-dir", out, source, cwd=source)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_wheel_carries_every_file_of_the_package_and_of_sql(wheel: Path) -> None:
    """But for the model, which runs nothing: it is checked where it can be changed."""
    with ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {f"pg_pipeline/{name}" for name in shipped(PROJECT / "pg_pipeline", "*")}
    expected |= {f"pg_pipeline/_sql/{name}" for name in shipped(PROJECT / "sql", "*.sql")}
    assert inside == expected
    left_out = shipped(PROJECT / "sql", "*") - shipped(PROJECT / "sql", "*.sql")
    assert {Path(name).parts[0] for name in left_out} == {"model"}


def test_installed_command_works_and_finds_its_sql(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    # The dependencies are ours; only the package itself is installed, and no path of the checkout is known there.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--ignore-installed", wheel, cwd=tmp_path)
    assert "migrate" in run(environment / "bin" / "pg-pipeline", "--help", cwd=tmp_path)
    code = "from pg_pipeline.sqlfiles import sql_root; print(sql_root())"
    found = Path(run(python, "-c", code, cwd=tmp_path).strip())
    assert found == site / "pg_pipeline" / "_sql"
    assert shipped(found, "*.sql") == shipped(PROJECT / "sql", "*.sql")
    where = run(
        python, "-c", "from pg_pipeline.settings import get_settings; print(get_settings().state_dir)", cwd=tmp_path
    )
    assert str(PROJECT) not in where
