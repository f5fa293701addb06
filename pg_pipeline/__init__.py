"""Every landed file processed exactly once, with Postgres, Dagster and Spark."""
