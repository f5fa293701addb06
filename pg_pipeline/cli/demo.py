"""`pg-pipeline demo`: the main job, end to end."""

from typing import Annotated

import typer


def demo(
    files: Annotated[int, typer.Option(min=20, max=5000, help="How many files to make.")] = 300,
    rows: Annotated[int, typer.Option(min=1, help="Orders in each file.")] = 400,
) -> None:
    """Process a delivery with broken files, kill a worker halfway, and count."""
    from pg_pipeline.cli.demo_run import run  # Dagster and Spark: seconds that no other command should pay

    run(files, rows)
