-- Roles are groups: nobody logs in as them. Grant them to your own logins.
-- They are cluster-wide, so another database of this cluster may have made them already.
do $$
declare
  v_role text;
begin
  foreach v_role in array array[
    'pipeline_owner', 'pipeline_reader', 'pipeline_submitter',
    'pipeline_worker', 'pipeline_operator'
  ] loop
    begin
      if not exists (select from pg_catalog.pg_roles where rolname = v_role) then
        execute format('create role %I nologin', v_role);
      end if;
    exception when duplicate_object or unique_violation then
      null;  -- another database of this cluster was quicker
    end;
  end loop;
  -- The migrating login acts as the owner; a superuser can without being a member.
  if not pg_catalog.pg_has_role(current_user, 'pipeline_owner', 'set') then
    execute format('grant pipeline_owner to %I', current_user);
  end if;
end
$$;

do $$
declare
  v_role text;
begin
  -- Whoever submits, works or operates may also look.
  foreach v_role in array array['pipeline_submitter', 'pipeline_worker', 'pipeline_operator'] loop
    if not pg_catalog.pg_has_role(v_role, 'pipeline_reader', 'usage') then
      execute format('grant pipeline_reader to %I', v_role);
    end if;
  end loop;
end
$$;

create schema if not exists pipeline;
alter schema pipeline owner to pipeline_owner;
revoke all on schema pipeline from public;
grant usage on schema pipeline to pipeline_reader;

-- Attempt-scoped tables that nobody reads live here; workers make and drop them.
create schema if not exists pipeline_staging;
alter schema pipeline_staging owner to pipeline_owner;
revoke all on schema pipeline_staging from public;
grant usage, create on schema pipeline_staging to pipeline_worker;

-- New functions start with no rights for public; sql/grants.sql opens the ones that are doors.
alter default privileges for role pipeline_owner revoke execute on functions from public;
