-- Housekeeping, in small steps, by one leader at a time. Nothing depends on it for progress.
set local role pipeline_owner;

-- One step over every chore; returns what each did, or null while another session leads.
create or replace function pipeline.reap(p_limit int default 1000) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_done    jsonb := '{}';
  v_n       bigint;
  v_workers uuid[];
begin
  perform pipeline._of_now();  -- what it doesn't see, it removes the traces of
  if not pg_try_advisory_xact_lock(hashtextextended('pipeline.reaper', 0)) then
    return null;
  end if;
  -- Taking back may bury, which waits for executions, in order; expiring waits for none. So in this order.
  select coalesce(sum(pipeline._take_back(q.name, p_limit)), 0) into v_n from pipeline.queue q;
  v_done := v_done || jsonb_build_object('tasks_taken_back', v_n);
  v_done := v_done || jsonb_build_object('expired_executions', pipeline.expire_executions(least(p_limit, 100)));

  -- A lease whose worker has no row is found by no claim: nobody holds it.
  perform pipeline._hand_back(t, 'lost', 0, false, null, 'its worker has no row', null, true)
  from (
    select t.* from pipeline.task t
    where t.token is not null and not exists (select from pipeline.worker w where w.id = t.worker)
    order by t.id limit p_limit for update skip locked
  ) t;
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('leases_of_nobody', v_n);

  with over as (
    select t.id from pipeline.task t join pipeline.execution x on x.id = t.execution_id
    join pipeline.lane l on l.id = t.lane_id and l.kind in ('batch', 'callback')
    where t.token is null and t.key is null and t.generation <= x.generation
      and (x.state not in ('open', 'sealed') or t.generation < x.generation)
    order by t.id limit p_limit for update of t skip locked
  )
  delete from pipeline.task t using over o where t.id = o.id;
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('tasks_of_ended_executions', v_n);

  with over as (
    select d.id, x.state from pipeline.dead_letter d join pipeline.execution x on x.id = d.execution_id
    where d.resolution is null and d.kind in ('batch', 'callback') and d.reason <> 'malformed'
      and x.state in ('cancelled', 'aborted', 'expired') and d.generation = x.generation
    order by d.id limit p_limit for update of d skip locked
  )
  update pipeline.dead_letter d set resolution = 'ended', resolved_at = clock_timestamp(), resolved_by = 'reaper',
    resolved_why = format('its execution was %s', o.state)
  from over o where d.id = o.id;
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('dead_letters_of_ended_executions', v_n);

  -- A receipt lives at least as long as its task, its dead letter and its execution.
  with old as (
    select r.queue, r.key from pipeline.queue q
    join pipeline.receipt r on r.queue = q.name and r.created_at < now() - q.receipt_retention
    where not exists (select from pipeline.task t where t.id = r.task_id)
      and not exists (select from pipeline.dead_letter d where d.task_id = r.task_id and d.resolution is null)
      and not exists (
        select from pipeline.attempt a join pipeline.execution x on x.id = a.execution_id
        where a.task_id = r.task_id and a.queue = r.queue and a.ended_at >= r.created_at and x.state in ('open', 'sealed'))
    limit p_limit for update of r skip locked
  )
  delete from pipeline.receipt r using old o where r.queue = o.queue and r.key = o.key;
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('receipts', v_n);

  -- History of live executions stays: finish and audit look at it.
  with old as (
    select a.token from pipeline.queue q
    join pipeline.attempt a on a.queue = q.name and a.ended_at < now() - q.history_retention
    where not exists (select from pipeline.execution x where x.id = a.execution_id and x.state in ('open', 'sealed'))
      and not exists (select from pipeline.attempt_output o where o.token = a.token)
    limit p_limit for update of a skip locked
  )
  delete from pipeline.attempt a using old o where a.token = o.token;
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('attempts', v_n);

  delete from pipeline.dead_letter where id in (
    select d.id from pipeline.dead_letter d join pipeline.queue q on q.name = d.queue
    where d.resolved_at < now() - q.history_retention order by d.id limit p_limit for update of d skip locked);
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('dead_letters', v_n);

  delete from pipeline.outbox where id in (
    select o.id from pipeline.outbox o
    where o.state = 'delivered' and o.delivered_at < now() - '30 days'::interval order by o.id limit p_limit for update skip locked);
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('outbox', v_n);

  delete from pipeline.action where request_id in (
    select request_id from pipeline.action where at < now() - '30 days'::interval limit p_limit for update skip locked);
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('actions', v_n);

  -- A worker row goes when it holds nothing. Locked first, looked at after: a claim that ended between
  -- a snapshot and its lock would leave a lease that belongs to nobody.
  v_workers := array(
    select w.id from pipeline.worker w
    where greatest(w.beat_at, w.stopped_at) < clock_timestamp() - greatest('1 hour'::interval, 10 * w.lease)
    limit p_limit for update skip locked);
  delete from pipeline.worker w where w.id = any (v_workers)
    and not exists (select from pipeline.task t where t.worker = w.id and t.token is not null);
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('workers', v_n);

  delete from pipeline.attempt_output where token in (
    select o.token from pipeline.attempt_output o join pipeline.attempt a on a.token = o.token
    where a.outcome = 'committed' limit p_limit for update of o skip locked);
  get diagnostics v_n = row_count;
  v_done := v_done || jsonb_build_object('outputs_committed', v_n);
  return v_done;
end
$$;

-- Outputs whose attempt a transaction has ended without a commit: nothing will ever show them.
-- Expiry alone is no reason; only an ended attempt is.
-- p_pipelines: only theirs, since only their code knows their sinks.
create or replace function pipeline.orphaned_outputs(p_limit int default 100, p_pipelines text[] default null)
returns table (token uuid, sink text, location jsonb, pipeline text, execution text, generation int, batch int)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select o.token, o.sink, o.location, x.pipeline, x.key, a.generation, a.batch
  from pipeline.attempt_output o join pipeline.attempt a on a.token = o.token
  left join pipeline.execution x on x.id = a.execution_id
  where a.outcome <> 'committed' and (p_pipelines is null or x.pipeline = any (p_pipelines))
  order by o.created_at limit p_limit;
end;

create or replace function pipeline.forget_output(p_token uuid, p_sink text) returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  delete from pipeline.attempt_output where token = p_token and sink = p_sink returning true;
end;

-- Dagster was told of these batches: (execution id, number, generation) each. Locked in order: several
-- may report at once. A batch that has gone on to another generation is told of again anyway.
create or replace function pipeline.mark_reported(p_executions bigint[], p_batches int[], p_generations int[]) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  with told as materialized (
    select b.execution_id, b.number, b.generation
    from unnest(p_executions, p_batches, p_generations) g(execution_id, batch, generation)
    join pipeline.batch b on b.execution_id = g.execution_id and b.number = g.batch and b.generation = g.generation
    where b.state = 'committed' and b.reported_generation < g.generation
    order by b.execution_id, b.number for update of b
  )
  update pipeline.batch b set reported_generation = t.generation
  from told t where b.execution_id = t.execution_id and b.number = t.number;
end;

create or replace function pipeline.mark_summary_reported(p_execution_id bigint, p_generation int) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  update pipeline.execution set reported_generation = p_generation
  where id = p_execution_id and reported_generation < p_generation;
end;
