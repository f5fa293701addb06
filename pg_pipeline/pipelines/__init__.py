"""What a user writes: FilePipeline(...) and the example pipelines."""
