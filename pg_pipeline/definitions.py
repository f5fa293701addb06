"""The default code location: what `dagster dev` loads."""

from pg_pipeline.pipelines.build import definitions
from pg_pipeline.pipelines.orders import orders
from pg_pipeline.pipelines.web_events import web_events

defs = definitions(orders, web_events)
