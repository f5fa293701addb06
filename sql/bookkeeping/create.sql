-- What was applied, and when. Runs after the first migration, in its transaction; may run again.
create schema if not exists pipeline;

create table if not exists pipeline.schema_migration (
  version    int primary key check (version > 0),
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default now()
);

-- The files that are applied again whenever one of them changes, as one.
create table if not exists pipeline.schema_repeatable (
  name       text primary key,
  checksum   text not null,
  applied_at timestamptz not null default now()
);

do $$
begin
  -- Owned like the rest, so that another member of the owner role can migrate next time.
  if exists (select from pg_catalog.pg_roles where rolname = 'pipeline_owner') then
    alter table pipeline.schema_migration owner to pipeline_owner;
    alter table pipeline.schema_repeatable owner to pipeline_owner;
  end if;
  if exists (select from pg_catalog.pg_roles where rolname = 'pipeline_reader') then
    grant select on pipeline.schema_migration, pipeline.schema_repeatable to pipeline_reader;
  end if;
end
$$;
