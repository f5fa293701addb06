-- What people list and show.
set local role pipeline_owner;

create or replace function pipeline.executions(p_pipeline text default null, p_status text default null, p_limit int default 50)
returns setof pipeline.execution_status
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select * from pipeline.execution_status s
  where (p_pipeline is null or s.pipeline = p_pipeline) and (p_status is null or s.status = p_status)
  order by s.id desc limit p_limit;
end;

create or replace function pipeline.dead_letters(
  p_queue text default null, p_pipeline text default null, p_execution text default null, p_limit int default 100
) returns table (
  id bigint, queue text, pipeline text, kind text, execution text, generation int, batch int, tenant text, attempts int,
  reason text, error_class text, error text, died_at timestamptz
)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select d.id, d.queue, d.pipeline, d.kind, x.key, d.generation, d.batch, d.tenant, d.attempts, d.reason, d.error_class, d.error, d.died_at
  from pipeline.dead_letter d left join pipeline.execution x on x.id = d.execution_id
  where d.resolution is null and (p_queue is null or d.queue = p_queue)
    and (p_pipeline is null or d.pipeline = p_pipeline) and (p_execution is null or x.key = p_execution)
  order by d.id limit p_limit;
end;

-- The whole letter with its history, also after it was resolved; null if there is none.
create or replace function pipeline.show_dead_letter(p_letter bigint) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (
  select to_jsonb(d) || jsonb_build_object(
    'execution', x.key,
    'history', (
      select coalesce(jsonb_agg(to_jsonb(a) - 'result' order by a.claimed_at), '[]')
      from pipeline.attempt a
      where a.task_id = d.task_id and a.execution_id is not distinct from d.execution_id and a.queue = d.queue),
    'files', (
      select coalesce(jsonb_agg(f.path order by f.ordinal), '[]') from pipeline.file f
      where f.execution_id = d.execution_id and f.batch = d.batch and d.kind = 'batch'))
  from pipeline.dead_letter d left join pipeline.execution x on x.id = d.execution_id where d.id = p_letter);

create or replace function pipeline.quarantined_files(p_execution text default null, p_limit int default 1000)
returns table (pipeline text, execution text, batch int, ordinal int, path text, version text, size bigint, reason text, detail text, seen_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select x.pipeline, x.key, f.batch, f.ordinal, f.path, f.version, f.size, f.reason, f.detail, f.seen_at
  from pipeline.file f join pipeline.execution x on x.id = f.execution_id
  where f.state = 'quarantined' and (p_execution is null or x.key = p_execution)
  order by f.execution_id desc, f.batch, f.ordinal limit p_limit;
end;

create or replace view pipeline.worker_status as
select w.id, w.name, w.queue, w.run_id, w.pipelines, w.kinds, w.started_at, w.beat_at, w.stopped_at,
  case when w.stopped_at is not null then 'stopped'
       when w.beat_at + w.lease < clock_timestamp() then 'gone'
       when w.beat_at + w.grace < clock_timestamp() then 'late'
       else 'alive' end as status,
  (select count(*) from pipeline.task t where t.worker = w.id and t.token is not null) as leases
from pipeline.worker w;
