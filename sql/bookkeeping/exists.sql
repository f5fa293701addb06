-- Whether anything was ever applied here.
select pg_catalog.to_regclass('pipeline.schema_migration') is not null;
