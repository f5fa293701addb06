-- Explain and the views that people and pages read.
set local role pipeline_owner;

-- What an execution waits for, who holds it, since when, and what to do: a line each.
create or replace function pipeline.explain(p_execution text)
returns table (what text, detail text, next_step text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  x       pipeline.execution := pipeline._execution(p_execution);
  v_live  boolean := x.state in ('open', 'sealed');
begin
  perform pipeline._of_now();
  return query select 'state', format('%s, generation %s: %s of %s batches settled%s', x.state, x.generation, x.settled, x.expected,
    coalesce(', ' || x.ended_reason, '')),
    case x.state when 'open' then 'add files, then seal it' when 'finished' then 'nothing to do' when 'sealed' then null
      else 'its files that were not committed are released: submit --released takes them again' end;

  -- The queues its tasks are in; a pipeline may have moved to another one since.
  return query
  select 'paused', format('queue %s is paused by %s since %s: %s', q.name,
      case q.paused_by when 'breaker' then 'the circuit breaker' else 'a person' end, q.paused_at::timestamptz(0), q.pause_reason),
    format('when the cause is gone: pg-pipeline queue resume %s', q.name)
  from pipeline.queue q
  where v_live and q.paused_at is not null and q.name in (
    select l.queue from pipeline.task t join pipeline.lane l on l.id = t.lane_id where t.execution_id = x.id);

  return query
  select 'leased', format('%s%s, attempt %s, by %s%s since %s%s', l.kind, coalesce(' ' || t.batch, ''), t.attempts, coalesce(w.name, t.worker::text),
      coalesce(' (run ' || w.run_id || ')', ''), t.claimed_at::timestamptz(0),
      case when w.beat_at + w.grace < clock_timestamp() then format('; last heard of %s', w.beat_at::timestamptz(0)) else '' end),
    format('nothing: it is taken over when its worker is gone, at the latest at %s', t.run_deadline::timestamptz(0))
  from pipeline.task t join pipeline.lane l on l.id = t.lane_id left join pipeline.worker w on w.id = t.worker
  where t.execution_id = x.id and t.token is not null order by t.claimed_at limit 20;

  return query
  select case when s.delayed then 'backing off' when s.suspect then 'suspect' else 'ready' end,
    format('%s %s task(s), oldest since %s%s', s.n, s.kind, s.oldest::timestamptz(0),
      case when s.delayed then ', next try at ' || s.oldest::timestamptz(0)
           when s.suspect then ': the last worker died with it; it runs alone next' else '' end),
    case when not s.served then format('no running worker takes %s tasks of pipeline %s in queue %s: start one (pg-pipeline up), or deploy the code that has it', s.kind, s.pipeline, s.queue)
         else 'nothing: a worker takes it' end
  from (
    select l.kind, l.pipeline, l.queue, t.suspect, t.ready_at > clock_timestamp() as delayed, count(*) as n, min(t.ready_at) as oldest,
      exists (select from pipeline.worker w where w.queue = l.queue and w.stopped_at is null and w.beat_at + w.lease > clock_timestamp()
              and (w.pipelines is null or l.pipeline = any (w.pipelines)) and (w.kinds is null or l.kind = any (w.kinds))) as served
    from pipeline.task t join pipeline.lane l on l.id = t.lane_id
    where t.execution_id = x.id and t.token is null and t.generation = x.generation and v_live
    group by l.kind, l.pipeline, l.queue, t.suspect, 5
  ) s;

  return query
  select 'dead letter', format('%s: %s %s, %s after %s attempts: %s', d.id, d.kind, coalesce(d.batch::text, ''), d.reason, d.attempts, left(d.error, 300)),
    case when v_live and d.kind = 'batch' and x.policy = 'partial' and x.callback_generation = x.generation
           then 'its callback was made without it: re-run the execution when it has finished'
         when v_live and d.generation = x.generation then format('fix the cause, then: pg-pipeline dlq replay %s (or discard it)', d.id)
         else 're-run the execution, or discard the letter' end
  from pipeline.dead_letter d where d.execution_id = x.id and d.resolution is null order by d.id limit 20;

  return query
  select 'quarantine', format('%s file(s): %s', count(*), string_agg(distinct f.reason, ', ')),
    format('look: pg-pipeline quarantine list %s', x.key)
  from pipeline.file f where f.execution_id = x.id and f.state = 'quarantined' having count(*) > 0;

  return query
  select 'released', format('%s file(s) were released when the execution ended', count(*)), 'take them again with: pg-pipeline submit --released'::text
  from pipeline.file f where f.execution_id = x.id and f.state = 'released' having count(*) > 0;

  return query
  select 'outbox', format('%s %s: %s, %s attempts%s', o.event, o.destination, o.state, o.attempts, coalesce(': ' || o.error, '')),
    case o.state when 'dead' then format('when the receiver is well: select pipeline.replay_outbox(%s)', o.id)
                 else format('nothing: next try at %s', o.next_at::timestamptz(0)) end
  from pipeline.outbox o where o.execution_id = x.id and o.state <> 'delivered' and o.destination <> '' order by o.id limit 20;

  if v_live and x.deadline is not null then
    return query select 'deadline', format(case when x.deadline < clock_timestamp() then 'should have ended at %s' else 'ends by itself at %s' end, x.deadline::timestamptz(0)),
      case when x.deadline < clock_timestamp() then 'nobody has reaped since: pg-pipeline reap' end;
  end if;
end
$$;

create or replace view pipeline.queue_status as
select q.name as queue, q.paused_at, q.paused_by, q.pause_reason,
  coalesce(t.ready, 0) as ready, coalesce(t.delayed, 0) as delayed, coalesce(t.leased, 0) as leased,
  coalesce(t.suspects, 0) as suspects, t.oldest_ready_at,
  (select count(*) from pipeline.dead_letter d where d.queue = q.name and d.resolution is null) as dead_letters,
  (select count(*) from pipeline.worker w where w.queue = q.name and w.stopped_at is null and w.beat_at + w.lease > clock_timestamp()
     and w.pipelines is distinct from '{}') as workers
from pipeline.queue q
left join (
  select l.queue,
    count(*) filter (where t.token is null and t.ready_at <= clock_timestamp()) as ready,
    count(*) filter (where t.token is null and t.ready_at > clock_timestamp()) as delayed,
    count(*) filter (where t.token is not null) as leased,
    count(*) filter (where t.suspect) as suspects,
    min(t.ready_at) filter (where t.token is null and t.ready_at <= clock_timestamp()) as oldest_ready_at
  from pipeline.task t join pipeline.lane l on l.id = t.lane_id group by l.queue
) t on t.queue = q.name;

-- "blocked" is not stored: it is what a live execution is while a letter holds its barrier.
create or replace view pipeline.execution_status as
select x.id, x.key as execution, x.pipeline, x.generation,
  case when x.state in ('open', 'sealed') and d.letters > 0 and (x.policy = 'strict' or d.callbacks > 0) then 'blocked' else x.state end as status,
  x.state, x.policy, x.tenant, x.priority, x.expected, x.settled, x.remaining, d.letters as dead_letters,
  b.files, b.bytes, b.rows_in, b.rows_out, b.rows_rescued, b.quarantined,
  x.request_key, x.created_at, x.sealed_at, x.ended_at, x.ended_reason, x.deadline, x.summary, x.submission
from pipeline.execution x
cross join lateral (
  select count(*) as letters, count(*) filter (where d.kind = 'callback') as callbacks
  from pipeline.dead_letter d where d.execution_id = x.id and d.generation = x.generation and d.resolution is null
) d
cross join lateral (
  select coalesce(sum(b.files), 0) as files, coalesce(sum(b.bytes), 0) as bytes, coalesce(sum(b.rows_in), 0) as rows_in,
         coalesce(sum(b.rows_out), 0) as rows_out, coalesce(sum(b.rows_rescued), 0) as rows_rescued, coalesce(sum(b.quarantined), 0) as quarantined
  from pipeline.batch b where b.execution_id = x.id
) b;

-- Every lease there was and is; a living one has no outcome, and its token is its worker's secret.
create or replace view pipeline.attempt_status as
select a.token, a.task_id, a.queue, a.kind, x.key as execution, a.generation, a.batch, a.number, a.worker, w.name as worker_name, w.run_id,
  a.alone, a.claimed_at, a.ended_at, a.outcome, a.error_class, a.error
from pipeline.attempt a
left join pipeline.execution x on x.id = a.execution_id
left join pipeline.worker w on w.id = a.worker
union all
select null::uuid, t.id, l.queue, l.kind, x.key, t.generation, t.batch, t.attempts, t.worker, w.name, w.run_id, t.suspect, t.claimed_at, null, null, null, null
from pipeline.task t join pipeline.lane l on l.id = t.lane_id
left join pipeline.execution x on x.id = t.execution_id
left join pipeline.worker w on w.id = t.worker
where t.token is not null;

-- Where each file is now (P1): one word per file.
create or replace view pipeline.file_status as
select x.pipeline, x.key as execution, f.batch, f.ordinal, f.path, f.version, f.size, f.seen_at, f.reason, f.detail,
  case
    when f.state is not null then f.state
    when b.state <> 'waiting' then case b.state when 'dead' then 'dead_lettered' else b.state end
    when exists (select from pipeline.task t where t.execution_id = f.execution_id and t.batch = f.batch and t.token is not null) then 'leased'
    else 'waiting'
  end as place
from pipeline.file f
join pipeline.execution x on x.id = f.execution_id
join pipeline.batch b on b.execution_id = f.execution_id and b.number = f.batch;
