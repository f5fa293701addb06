"""Which pipelines there are in code: the examples, or those of the module that PG_PIPELINE_PIPELINES names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pg_pipeline.errors import ConfigurationError, NotFound
from pg_pipeline.settings import get_settings

if TYPE_CHECKING:
    from pg_pipeline.pipelines.pipeline import FilePipeline

EXAMPLES = ("pg_pipeline.pipelines.orders", "pg_pipeline.pipelines.web_events")


def known() -> dict[str, FilePipeline]:
    from pg_pipeline.pipelines.pipeline import FilePipeline

    given = get_settings().pipelines
    here = str(Path.cwd())
    if given and here not in sys.path:
        sys.path.insert(0, here)  # as `dagster dev -m` does; a console script does not
    found: dict[str, FilePipeline] = {}
    for name in (given,) if given else EXAMPLES:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise ConfigurationError(
                f"The module {name} cannot be imported ({error}): check PG_PIPELINE_PIPELINES, "
                "and that you are in the project's folder."
            ) from None
        found |= {value.name: value for value in vars(module).values() if isinstance(value, FilePipeline)}
    return found


def named(name: str) -> FilePipeline:
    pipelines = known()
    if name not in pipelines:
        raise NotFound(
            f"Pipeline {name} not found among {', '.join(sorted(pipelines)) or 'none'}: "
            "set PG_PIPELINE_PIPELINES to the module that has it, such as my_project.pipelines."
        )
    return pipelines[name]
