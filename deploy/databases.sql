-- Beside the database of pg_pipeline, which the image makes by itself.
create database dagster;
