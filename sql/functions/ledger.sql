-- The ledger's upkeep: new versions of quarantined files, and what is old enough to be forgotten.
set local role pipeline_owner;

-- The mended version of a quarantined file takes the old one's place, so that a re-run of its batch reads it.
-- Returns the batch. PP002 if an execution has that version already.
create or replace function pipeline.replace_file(
  p_execution text, p_path text, p_version text, p_size bigint, p_modified timestamptz default null
) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
  v_file      pipeline.file;
  v_key       uuid;
begin
  select * into v_execution from pipeline.execution where key = p_execution for update;
  if not found then
    perform pipeline._execution(p_execution);
  end if;
  if v_execution.state in ('open', 'sealed') then
    raise exception using errcode = 'PP005',
      message = format('execution %s is %s: its quarantined files can be replaced when it has ended', p_execution, v_execution.state);
  end if;
  select * into v_file from pipeline.file
  where execution_id = v_execution.id and path = p_path and state = 'quarantined'
  for update;
  if not found then
    raise exception using errcode = 'PP003',
      message = format('execution %s has no quarantined file %s', p_execution, p_path);
  end if;
  v_key := pipeline.file_key(v_execution.pipeline, p_path, p_version);
  if v_key = v_file.key then
    return v_file.batch;  -- asked again, or not changed: the re-run tries it as it is
  end if;
  begin
    update pipeline.file set key = v_key, version = p_version, size = p_size, modified_at = p_modified
    where key = v_file.key;
  exception when unique_violation then  -- also by a submission that had not committed when this began
    raise exception using errcode = 'PP002',
      message = format('version %s of %s was taken by another execution', p_version, p_path),
      hint = 'its rows come from there: nothing to replace';
  end;
  update pipeline.batch set bytes = bytes - v_file.size + p_size
  where execution_id = v_execution.id and number = v_file.batch;
  return v_file.batch;
end
$$;

-- Forgets ended executions whole, with their files, batches and attempts, when every file of theirs is
-- older than the horizon: from then on such files are refused as too old, so none can come in twice.
-- The horizon never goes back. Files whose age is unknown are kept for ever. Returns how many went.
-- A step of at most so many executions, and of a hundred thousand files or one execution: ask again until none went.
create or replace function pipeline.prune_ledger(p_pipeline text, p_horizon timestamptz, p_limit int default 100) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_horizon timestamptz;
  v_ids     bigint[];
begin
  if p_horizon > now() then
    raise exception using errcode = 'PP004', message = 'a horizon in the future would refuse files that are still to come';
  end if;
  select horizon into v_horizon from pipeline.pipeline where name = p_pipeline;
  if not found then
    raise exception using errcode = 'PP003', message = format('pipeline %s not found', p_pipeline);
  end if;
  -- The ledger alone: a submission under way has judged its files by the old horizon. Only to move it: once it
  -- stands, whoever submits knows it, and need not wait for what is deleted here.
  if v_horizon is null or v_horizon < p_horizon then
    perform pipeline.lock_ledger(p_pipeline);
    update pipeline.pipeline set horizon = greatest(horizon, p_horizon), updated_at = now() where name = p_pipeline;
  end if;
  v_ids := array(
    select s.id from (
      select o.id, sum(o.files) over (order by o.id) as files, row_number() over (order by o.id) as n
      from (
        select x.id, (select coalesce(sum(b.files), 0) from pipeline.batch b where b.execution_id = x.id) as files
        from pipeline.execution x
        where x.pipeline = p_pipeline and x.state not in ('open', 'sealed') and x.ended_at < p_horizon
          and not exists (select from pipeline.file f where f.execution_id = x.id and (f.modified_at is null or f.modified_at >= p_horizon))
          and not exists (select from pipeline.task t where t.execution_id = x.id)
          and not exists (select from pipeline.dead_letter d where d.execution_id = x.id and d.resolution is null)
          and not exists (select from pipeline.outbox o where o.execution_id = x.id and o.state = 'pending' and o.destination <> '')
        order by x.id limit p_limit for update of x skip locked
      ) o
    ) s where s.n = 1 or s.files <= 100000
  );
  delete from pipeline.file where execution_id = any (v_ids);
  delete from pipeline.attempt where execution_id = any (v_ids);
  delete from pipeline.dead_letter where execution_id = any (v_ids);
  delete from pipeline.outbox where execution_id = any (v_ids);
  delete from pipeline.execution where id = any (v_ids);  -- its batches go with it
  return cardinality(v_ids);
end
$$;
