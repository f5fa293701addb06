"""What Dagster starts by itself: landing, queue depth, callbacks, outbox, dead letters, the reaper."""
