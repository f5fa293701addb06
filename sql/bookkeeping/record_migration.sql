-- Note a migration in the transaction that applied it.
insert into pipeline.schema_migration (version, name, checksum) values (%(version)s, %(name)s, %(checksum)s);
