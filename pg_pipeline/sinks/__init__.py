"""How rows become visible: Postgres and Parquet; each knows stage, publish, discard. No Dagster."""
