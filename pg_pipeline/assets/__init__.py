"""What Dagster sees: enqueue, process, aggregate, checks. Speaks to Postgres only through coordination."""
