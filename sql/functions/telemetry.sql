-- Telemetry: numbers for monitoring, of one moment. Reads the views, so it comes after them.
set local role pipeline_owner;

-- One row per sample. Attempts are counted over the window that has just passed: history is pruned, so a
-- running total would go back. Unfinished is work that was done and could not finish: another had the task by then
-- (fenced), the execution had ended, or the finish itself failed, as when a sink can't publish.
create or replace function pipeline.metrics(p_window interval default '5 min')
returns table (name text, labels jsonb, value float8)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  with q as (select * from pipeline.queue_status),
  a as (select a.* from pipeline.queue n cross join lateral (
    select r.* from pipeline.attempt r where r.queue = n.name and r.ended_at > now() - p_window order by r.ended_at) a)
  select 'tasks', jsonb_build_object('queue', q.queue, 'state', s.state), s.n::float8
  from q cross join lateral (values ('ready', q.ready), ('delayed', q.delayed), ('leased', q.leased), ('suspect', q.suspects)) s(state, n)
  union all
  select 'oldest_task_seconds', jsonb_build_object('queue', q.queue),
         coalesce(extract(epoch from clock_timestamp() - q.oldest_ready_at), 0)::float8 from q
  union all
  select 'queue_paused', jsonb_build_object('queue', q.queue, 'by', k.by), (q.paused_by is not distinct from k.by)::int::float8
  from q cross join (values ('person'), ('breaker')) k(by)
  union all
  select 'workers', jsonb_build_object('queue', w.queue, 'status', w.status), count(*)::float8
  from pipeline.worker_status w where w.status <> 'stopped' group by w.queue, w.status
  union all
  select 'executions', jsonb_build_object('pipeline', x.pipeline, 'status', x.status), count(*)::float8
  from pipeline.execution_status x where x.state in ('open', 'sealed') group by x.pipeline, x.status
  union all
  select 'attempts_recent', jsonb_build_object('queue', a.queue, 'kind', a.kind, 'outcome', a.outcome), count(*)::float8
  from a group by a.queue, a.kind, a.outcome
  union all
  select 'attempt_seconds_recent', jsonb_build_object('queue', d.queue, 'kind', d.kind, 'quantile', p.q),
         (d.seconds)[p.n]
  from (
    select a.queue, a.kind,
           percentile_cont(array[0.5, 0.95, 1]) within group (order by extract(epoch from a.ended_at - a.claimed_at)::float8) as seconds
    from a where a.outcome = 'committed' group by a.queue, a.kind
  ) d cross join (values (1, '0.5'), (2, '0.95'), (3, '1')) p(n, q)
  union all
  select 'finish_seconds_recent', jsonb_build_object('queue', d.queue, 'kind', d.kind, 'quantile', p.q),
         (d.seconds)[p.n]
  from (
    select a.queue, a.kind,
           percentile_cont(array[0.5, 0.95, 1]) within group (order by extract(epoch from a.ended_at - a.settle_began_at)::float8) as seconds
    from a where a.outcome = 'committed' and a.settle_began_at is not null group by a.queue, a.kind
  ) d cross join (values (1, '0.5'), (2, '0.95'), (3, '1')) p(n, q)
  union all
  select 'unfinished_recent', jsonb_build_object('queue', q.queue, 'why', y.why), count(a.token)::float8
  from q cross join (values ('taken over', 'fenced'), ('execution ended', 'released'), ('finish failed', 'failed')) y(why, outcome)
  left join a on a.queue = q.queue and a.outcome = y.outcome
    and (a.outcome = 'fenced' or a.error = 'its execution ended' or a.error_class like '% at finish')
  group by q.queue, y.why
  union all
  select 'dead_letters', jsonb_build_object('queue', d.queue, 'pipeline', d.pipeline, 'reason', d.reason), count(*)::float8
  from pipeline.dead_letter d where d.resolution is null group by d.queue, d.pipeline, d.reason
  union all
  select 'quarantined_files', jsonb_build_object('pipeline', x.pipeline), count(*)::float8
  from pipeline.file f join pipeline.execution x on x.id = f.execution_id where f.state = 'quarantined' group by x.pipeline
  union all
  select 'outbox', jsonb_build_object('state', s.state), count(o.id)::float8
  from (values ('pending'), ('dead')) s(state) left join pipeline.outbox o on o.state = s.state and o.destination <> '' group by s.state
  union all
  select 'outbox_oldest_seconds', '{}'::jsonb, coalesce(extract(epoch from clock_timestamp() - min(o.created_at)), 0)::float8
  from pipeline.outbox o where o.state = 'pending' and o.destination <> '';
end;

-- The workers of a host that have not stopped, the newest of each name, and for how long each has been silent. Names
-- are host:process unless a program chose its own. The limit is twice the lease: by then its leases are another's
-- anyway, so whoever restarts it costs nobody anything. After a restart of Postgres silence counts from that.
create or replace function pipeline.worker_health(p_host text)
returns table (worker uuid, name text, queue text, run_id text, started_at timestamptz, silent_seconds float8, limit_seconds float8)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select distinct on (w.name) w.id, w.name, w.queue, w.run_id, w.started_at,
    extract(epoch from clock_timestamp() - greatest(w.beat_at, (select max(b.seen_at) from pipeline.boot b), pg_postmaster_start_time()))::float8,
    extract(epoch from 2 * w.lease)::float8
  from pipeline.worker w
  where w.stopped_at is null and starts_with(w.name, p_host || ':')
  order by w.name, w.started_at desc;
end;

-- How long anything may be silent before a restart is right: twice the longest lease, in seconds.
create or replace function pipeline.health_limit() returns float8
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (select extract(epoch from coalesce(2 * max(q.lease), '1 min'))::float8 from pipeline.queue q);
