"""How bytes are turned into rows: session, readers, bad-file isolation. No Dagster."""
