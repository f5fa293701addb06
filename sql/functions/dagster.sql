-- What Dagster's window asks: partitions, reports, depth, and the runs behind workers. Reads only.
set local role pipeline_owner;

-- A batch as it is shown: its result, and the attempt whose rows are visible.
create or replace view pipeline.batch_report as
select x.id as execution_id, x.key as execution, x.pipeline, b.number, b.generation, b.state, b.reported_generation,
  b.files, b.bytes, b.rows_in, b.rows_out, b.rows_rescued, b.quarantined, b.token, b.committed_at,
  coalesce(b.result->'metadata', '{}') as metadata,
  a.number as attempts, a.claimed_at, extract(epoch from a.ended_at - a.claimed_at)::float8 as seconds,
  w.name as worker, w.run_id
from pipeline.batch b
join pipeline.execution x on x.id = b.execution_id
left join pipeline.attempt a on a.token = b.token
left join pipeline.worker w on w.id = a.worker;

create or replace function pipeline._is_live(p_worker pipeline.worker) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
return p_worker.stopped_at is null and p_worker.beat_at + p_worker.lease > clock_timestamp();

-- Committed batches that Dagster was not told of, and whose worker can no longer tell.
create or replace function pipeline.unreported_batches(p_pipelines text[], p_limit int default 500)
returns setof pipeline.batch_report
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select r.* from pipeline.batch_report r
  left join pipeline.attempt a on a.token = r.token
  left join pipeline.worker w on w.id = a.worker
  where r.state = 'committed' and r.reported_generation < r.generation and r.pipeline = any (p_pipelines)
    and (w.id is null or not pipeline._is_live(w))
  order by r.execution_id, r.number limit p_limit;
end;

-- Finished executions whose callback Dagster was not told of, and whose worker can no longer tell.
create or replace function pipeline.unreported_summaries(p_pipelines text[], p_limit int default 100)
returns table (execution text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select x.key from pipeline.execution x
  where x.state = 'finished' and x.reported_generation < x.generation and x.pipeline = any (p_pipelines)
    and not exists (
      select from pipeline.attempt a join pipeline.worker w on w.id = a.worker
      where a.execution_id = x.id and a.kind = 'callback' and a.generation = x.generation
        and a.outcome = 'committed' and pipeline._is_live(w))
  order by x.id limit p_limit;
end;

-- Where the named batches of an execution are, for a run that wants exactly those.
create or replace function pipeline.batch_places(p_execution text, p_batches int[])
returns table (number int, generation int, state text, holder text, holder_run text, since timestamptz, live boolean, dead_letter bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select b.number, b.generation, b.state, coalesce(w.name, t.worker::text), w.run_id, t.claimed_at,
         t.token is not null and t.worker <> all (pipeline._gone_workers(l.queue)) and t.run_deadline > clock_timestamp(),
         (select max(d.id) from pipeline.dead_letter d
          where d.execution_id = b.execution_id and d.batch = b.number and d.generation = b.generation
            and d.kind = 'batch' and d.resolution is null)
  from pipeline._execution(p_execution) x
  join pipeline.batch b on b.execution_id = x.id and b.number = any (p_batches)
  left join pipeline.task t on t.execution_id = b.execution_id and t.batch = b.number and t.generation = b.generation
    and t.token is not null
  left join pipeline.lane l on l.id = t.lane_id
  left join pipeline.worker w on w.id = t.worker
  order by b.number;
end
$$;

-- Who runs the callback of an execution now, or null.
create or replace function pipeline.callback_holder(p_execution text)
returns table (holder text, holder_run text, since timestamptz, live boolean, dead_letter bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select coalesce(w.name, t.worker::text), w.run_id, t.claimed_at,
         t.token is not null and t.worker <> all (pipeline._gone_workers(l.queue)) and t.run_deadline > clock_timestamp(),
         d.id
  from pipeline._execution(p_execution) x
  left join pipeline.task t on t.id = x.callback_task
  left join pipeline.lane l on l.id = t.lane_id
  left join pipeline.worker w on w.id = t.worker
  left join pipeline.dead_letter d on d.task_id = x.callback_task and d.resolution is null;
end
$$;

-- What is there to do in a queue for these pipelines, and who does it. Counting stops at p_enough.
create or replace function pipeline.depth(p_queue text, p_pipelines text[], p_enough int default 10000)
returns table (batches bigint, callbacks bigint, workers bigint, runs text[], paused boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_gone uuid[] := pipeline._gone_workers(p_queue);
begin
  return query
  with lanes as (
    select l.id, l.kind, l.floor from pipeline.lane l
    where l.queue = p_queue and l.pipeline = any (p_pipelines) and l.kind in ('batch', 'callback')
  ),
  waiting as (
    select l.kind, c.n from lanes l cross join lateral (
      select count(*) as n from (
        select from pipeline.task t
        where t.lane_id = l.id and t.token is null and not t.suspect
          and t.ready_at between l.floor and clock_timestamp() limit p_enough) s) c
    union all
    select l.kind, count(*) from pipeline.task t join lanes l on l.id = t.lane_id
    where t.token is null and t.suspect and t.ready_at <= clock_timestamp() group by l.kind
    union all
    select l.kind, count(*) from pipeline.task t join lanes l on l.id = t.lane_id
    where t.token is not null and t.worker = any (v_gone) group by l.kind
  ),
  living as (
    select w.run_id from pipeline.worker w
    where w.queue = p_queue and pipeline._is_live(w) and w.id <> all (v_gone)
      and (w.kinds is null or 'batch' = any (w.kinds))
      and (w.pipelines is null or w.pipelines && p_pipelines)
  )
  select coalesce((select sum(n) from waiting where kind = 'batch'), 0)::bigint,
         coalesce((select sum(n) from waiting where kind = 'callback'), 0)::bigint,
         (select count(*) from living),
         array(select run_id from living where run_id is not null),
         coalesce((select q.paused_at is not null from pipeline.queue q where q.name = p_queue), false);
end
$$;

-- Callbacks that wait and that nobody holds: one row each, with the attempts there were.
create or replace function pipeline.waiting_callbacks(p_pipelines text[], p_limit int default 20)
returns table (pipeline text, execution text, generation int, attempts int)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select x.pipeline, x.key, t.generation, t.attempts
  from pipeline.execution x
  join pipeline.task t on t.id = x.callback_task and t.generation = x.generation
  join pipeline.lane l on l.id = t.lane_id
  where x.state = 'sealed' and x.pipeline = any (p_pipelines) and t.ready_at <= clock_timestamp()
    and (t.token is null or t.worker = any (pipeline._gone_workers(l.queue)))
    and not exists (select from pipeline.queue q where q.name = l.queue and q.paused_at is not null)
  order by x.priority desc, t.id limit p_limit;
end
$$;

-- How the workers of each run are: live is true while one lives, false when one died without a word and
-- none lives, null when all of them said goodbye; quiet is how long ago the last of them was heard of.
create or replace function pipeline.run_lives()
returns table (run_id text, live boolean, quiet interval)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with gone as materialized (
    select g.id from pipeline.queue q cross join lateral unnest(pipeline._gone_workers(q.name)) g(id)
  )
  select w.run_id,
         case when bool_or(w.stopped_at is null and g.id is null) then true
              when bool_or(w.stopped_at is null) then false end,
         clock_timestamp() - max(greatest(w.beat_at, w.stopped_at))
  from pipeline.worker w left join gone g on g.id = w.id
  where w.run_id is not null
  group by w.run_id;
end
$$;

-- Of these request keys, those that an execution has answered.
create or replace function pipeline.known_requests(p_pipeline text, p_keys text[]) returns table (request_key text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select x.request_key from pipeline.execution x where x.pipeline = p_pipeline and x.request_key = any (p_keys);
end;

-- Of these executions, those that ended longer ago than p_age, or are gone from the ledger.
create or replace function pipeline.ended_before(p_executions text[], p_age interval) returns table (execution text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select k.key from unnest(p_executions) k(key) left join pipeline.execution x on x.key = k.key
  where x.id is null or x.ended_at < now() - p_age;
end;

-- Dead letters after a number, for an alert each. Some seconds old: ids are given out before their commit.
create or replace function pipeline.dead_letter_news(p_pipelines text[], p_after bigint, p_limit int default 50)
returns table (id bigint, pipeline text, kind text, execution text, generation int, batch int, attempts int, reason text, error text, died_at timestamptz)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select d.id, d.pipeline, d.kind, x.key, d.generation, d.batch, d.attempts, d.reason, d.error, d.died_at
  from pipeline.dead_letter d left join pipeline.execution x on x.id = d.execution_id
  where d.id > p_after and d.pipeline = any (p_pipelines) and d.died_at < clock_timestamp() - '2 s'::interval
  order by d.id limit p_limit;
end;

-- Batches that set files aside after a moment. Some seconds old, for the same reason.
create or replace function pipeline.quarantine_news(p_pipelines text[], p_after timestamptz, p_limit int default 50)
returns setof pipeline.batch_report
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select r.* from pipeline.batch_report r
  where r.quarantined > 0 and r.state = 'committed' and r.pipeline = any (p_pipelines)
    and r.committed_at > p_after and r.committed_at < clock_timestamp() - '2 s'::interval
  order by r.committed_at limit p_limit;
end;

-- Committed batches of an execution whose rows don't add up: the files' counts are not the batch's.
create or replace function pipeline.unbalanced_batches(p_execution text)
returns table (number int, rows_in bigint, rows_out bigint, files_rows_in bigint, files_rows_out bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select b.number, b.rows_in, b.rows_out, s.rows_in, s.rows_out
  from pipeline._execution(p_execution) x
  join pipeline.batch b on b.execution_id = x.id and b.state = 'committed'
  cross join lateral (
    select (select sum(v::bigint) from jsonb_array_elements_text(b.result->'files'->'rows_in') v)::bigint as rows_in,
           (select sum(v::bigint) from jsonb_array_elements_text(b.result->'files'->'rows_out') v)::bigint as rows_out
  ) s
  where b.result ? 'files'
    and (s.rows_in <> b.rows_in
         or (coalesce((b.result->'metadata'->>'rows_out_by_file')::boolean, false) and s.rows_out <> b.rows_out));
end;
