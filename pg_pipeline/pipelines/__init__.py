"""What a user writes: FilePipeline(...) and the example pipelines."""

from pg_pipeline.pipelines.pipeline import FilePipeline

__all__ = ["FilePipeline"]
