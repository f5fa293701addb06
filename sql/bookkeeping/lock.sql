-- One migration at a time in this database. Held to the end of the transaction, so that it also holds behind a
-- transaction pooler; whoever waits reads the bookkeeping afresh afterwards.
select pg_catalog.set_config('lock_timeout', '60s', true),
       pg_catalog.pg_advisory_xact_lock(7022, 1);
