-- Note the functions and grants in the transaction that applied them.
insert into pipeline.schema_repeatable (name, checksum) values ('functions', %(checksum)s)
on conflict (name) do update set checksum = excluded.checksum, applied_at = now();
