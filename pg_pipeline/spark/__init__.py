"""How bytes become rows: the session, the readers and bad-file isolation. Knows neither Dagster nor the queue."""
