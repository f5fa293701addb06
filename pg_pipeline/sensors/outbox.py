"""The outbox: what workers did not deliver right after their callback."""

import dagster as dg

from pg_pipeline.resources import CoordinationResource


def outbox_sensor(name: str, *, interval: int = 15) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{name}_outbox",
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Delivers webhooks that were recorded with a commit, at least once, with a key that never changes.",
    )
    def sense(coordination: CoordinationResource) -> dg.SkipReason:
        # Few at a time: a tick must not outlast the slowest receivers.
        done = coordination.dispatcher(timeout=5.0).dispatch(limit=5)
        return dg.SkipReason(f"Delivered {done.delivered}, to be tried again {done.failed}, given up {done.dead}.")

    return sense
