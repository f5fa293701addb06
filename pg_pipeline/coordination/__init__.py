"""The protocol in Python: submit, lease, finish, barrier, dead letters, reaper, audit. No Dagster, no Spark."""
