"""The default code location: what `dagster dev` loads."""

import dagster as dg

defs = dg.Definitions()
