"""Every landed file processed exactly once, with Postgres, Dagster and Spark."""

import sys

# Kept first, and in syntax that an old Python can parse, so that it gets a sentence and not a traceback.
if sys.version_info < (3, 11):
    sys.stderr.write(
        "pg_pipeline needs Python 3.11 or newer, and this is Python %d.%d: "
        "run it with a newer interpreter.\n" % sys.version_info[:2]
    )
    raise SystemExit(1)

__version__ = "0.1.0"
