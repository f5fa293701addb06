-- What a check-up wants to know of a server and of the login it was reached with.
select clock_timestamp()                                                      as clock,
       current_setting('server_version')                                      as version,
       current_user                                                           as login,
       current_setting('fsync') = 'on'                                        as fsync,
       current_setting('synchronous_commit') <> 'off'                         as synchronous_commit,
       (select rolsuper or rolcreaterole from pg_catalog.pg_roles where rolname = current_user) as may_create_roles,
       pg_catalog.has_database_privilege(current_database(), 'create')        as may_create_schemas,
       exists (select from pg_catalog.pg_database where datname = 'dagster')   as dagster_database,
       (select rolsuper or rolcreatedb from pg_catalog.pg_roles where rolname = current_user) as may_create_databases;
