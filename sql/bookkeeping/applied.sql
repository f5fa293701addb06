-- The migrations that were applied, oldest first.
select version, name, checksum from pipeline.schema_migration order by version;
