"""docs/protocol.sql: the whole protocol from psql alone."""

import subprocess

from pg_pipeline.coordination.database import Database
from pg_pipeline.coordination.executions import audit, get, listed
from pg_pipeline.embedded.cluster import installation
from pg_pipeline_tests.conftest import POSTGRES_VERSION
from pg_pipeline_tests.helpers import PROJECT


def test_psql_alone_drives_the_whole_protocol(dsn: str) -> None:
    script = PROJECT / "docs" / "protocol.sql"
    command = [
        str(installation(POSTGRES_VERSION) / "bin" / "psql"),
        "--no-psqlrc",
        "--quiet",
        "--file",
        str(script),
        dsn,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    for text in (
        "has 2 batches.",
        "The same execution: t",
        "and the execution is blocked",
        "fix the cause, then: pg-pipeline dlq replay",
        "what it came to: failed",
        "is replayed",
        "Violations: 0",
        "Generation 2 is cancelled",
    ):
        assert text in ran.stdout, ran.stdout
    with Database(dsn) as db:
        (row,) = listed(db)
        assert get(db, row["execution"])["summary"] == {"rows": 12}
        assert audit(db) == []
