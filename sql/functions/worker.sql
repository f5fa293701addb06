-- Workers: registration, heartbeat, and who is gone.
set local role pipeline_owner;

-- One incarnation of one process. Called on the connection that will beat: p_lock takes the
-- session's advisory lock, whose absence later tells a death sooner than the lease does.
create or replace function pipeline.register_worker(
  p_worker uuid, p_queue text, p_name text, p_pipelines text[] default null, p_kinds text[] default null,
  p_run_id text default null, p_lock boolean default true
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue pipeline.queue;
  v_key   bigint := case when p_lock then hashtextextended(p_worker::text, 1) end;
begin
  select * into v_queue from pipeline.queue where name = p_queue;
  if not found then
    raise exception using errcode = 'PP003', message = format('queue %s not found', p_queue),
      hint = 'make it with pipeline.configure_queue';
  end if;
  perform pipeline._server_ready();
  insert into pipeline.worker (id, queue, name, run_id, pipelines, kinds, lease, grace, lock_key)
  values (p_worker, p_queue, p_name, p_run_id, p_pipelines, p_kinds, v_queue.lease, v_queue.grace, v_key)
  on conflict (id) do nothing;  -- asked again after a lost answer
  if v_key is not null then
    perform pg_try_advisory_lock(v_key);
  end if;
end
$$;

drop function if exists pipeline.beat(uuid, bigint[], uuid[], uuid[], boolean);

-- One beat: renews the worker row and reconciles. Waits for no task lock, so that a finish can't stall it.
-- Returns {"lost": tokens held but gone, "ended": tokens whose execution ended, "released": leases
-- the process did not know, "at", "locked", "bloated"}. p_pending are claims whose answer is still on its way. p_listed_after
-- is the "at" of the beat before: what was claimed since may have come back after the process
-- listed what it holds, so it is left to the next beat. It also moves the floors that keep claims quick, and says which
-- hot table wants pipeline.compact ("bloated"), and whether a claim would find something to look at ("work"): so a
-- waiting worker hears of what no notification tells, a retry that is due or a worker that is gone.
create or replace function pipeline.beat(
  p_worker uuid, p_tasks bigint[], p_tokens uuid[], p_pending uuid[] default '{}', p_relock boolean default false,
  p_listed_after timestamptz default 'infinity'
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_worker  pipeline.worker;
  v_locked  boolean := true;
  v_lost    jsonb;
  v_ended   jsonb;
  v_task    pipeline.task;
  v_count   int := 0;
  v_floor   timestamptz;
  v_lanes   int[];
begin
  -- The floor moves only while no claim of this worker is under way, which could lease below it.
  if pg_try_advisory_xact_lock(hashtextextended(p_worker::text, 2)) then
    select floor into v_floor from pipeline.worker where id = p_worker;
    select least(clock_timestamp(), min(t.claimed_at)), array_agg(distinct t.lane_id) into v_floor, v_lanes
    from pipeline.task t where t.worker = p_worker and t.token is not null and t.claimed_at >= v_floor;
  end if;
  update pipeline.worker set beat_at = clock_timestamp(), floor = greatest(floor, v_floor)
  where id = p_worker and stopped_at is null
  returning * into v_worker;
  if not found then
    raise exception using errcode = 'PP006', message = format('worker %s is not registered (any more)', p_worker),
      hint = 'its leases are lost; register a new worker';
  end if;
  if p_relock and v_worker.lock_key is not null then
    v_locked := pg_try_advisory_lock(v_worker.lock_key);
  end if;
  select coalesce(jsonb_agg(g.token) filter (where t.id is null), '[]'),
         coalesce(jsonb_agg(g.token) filter (where l.kind in ('batch', 'callback') and (x.state not in ('open', 'sealed') or x.generation <> t.generation)), '[]')
  into v_lost, v_ended
  from unnest(p_tasks, p_tokens) g(task, token)
  left join pipeline.task t on t.id = g.task and t.token = g.token and t.id = any (p_tasks)
  left join pipeline.lane l on l.id = t.lane_id
  left join pipeline.execution x on x.id = t.execution_id;

  for v_task in
    select * from pipeline.task t
    where t.worker = p_worker and t.token is not null and t.claimed_at >= v_worker.floor
      and t.token <> all (p_tokens) and t.claim_id <> all (p_pending) and t.claimed_at < p_listed_after
    order by t.claimed_at for update skip locked
  loop
    perform pipeline._hand_back(v_task, 'released', 0, true, null, 'its process did not know of the lease');
    v_count := v_count + 1;
  end loop;
  if v_lanes is not null then
    perform pipeline._move_floors(v_lanes);
  end if;
  return jsonb_build_object('lost', v_lost, 'ended', v_ended, 'released', v_count, 'at', v_worker.beat_at, 'locked', v_locked,
    'bloated', pipeline._bloated(), 'work', pipeline._any_work(v_worker));
end
$$;

-- Whether there is anything that this worker might be given: something ready, a suspect, or a lease to take back.
create or replace function pipeline._any_work(p_worker pipeline.worker) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return exists (select from pipeline.queue q where q.name = p_worker.queue and q.paused_at is null)
    and (exists (select from pipeline._ready_lanes(p_worker, v_now))
      or exists (select from pipeline.task where token is null and suspect and ready_at <= v_now)
      or exists (
        select from pipeline.worker w cross join lateral (
          select from pipeline.task o where o.worker = w.id and o.token is not null and o.claimed_at >= w.floor limit 1) holds
        where w.queue = p_worker.queue and w.id = any (pipeline._gone_workers(p_worker.queue))));
end
$$;

-- A graceful end: every lease goes back uncounted, and the row says so.
create or replace function pipeline.stop_worker(p_worker uuid) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task  pipeline.task;
  v_count int := 0;
begin
  for v_task in
    select * from pipeline.task where worker = p_worker and token is not null order by id for update
  loop
    perform pipeline._hand_back(v_task, 'released', 0, true, null, 'its worker stopped');
    v_count := v_count + 1;
  end loop;
  update pipeline.worker set stopped_at = coalesce(stopped_at, clock_timestamp()) where id = p_worker;
  return v_count;
end
$$;

-- The workers of a queue whose tasks may be taken: stopped, past their lease, or, sooner, without
-- their session's lock while their last beat and the server's readiness are older than the grace.
create or replace function pipeline._gone_workers(p_queue text) returns uuid[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_ready timestamptz;
begin
  if not exists (
    select from pipeline.worker
    where queue = p_queue and (stopped_at is not null or beat_at + least(grace, lease) < v_now)
  ) then
    return '{}';
  end if;
  v_ready := pipeline._server_ready();
  return array(
    select w.id from pipeline.worker w
    where w.queue = p_queue and (
      w.stopped_at is not null
      or greatest(w.beat_at, v_ready) + w.lease < v_now
      or (w.lock_key is not null and greatest(w.beat_at, v_ready) + w.grace < v_now
          and not exists (
            select from pg_locks l
            where l.locktype = 'advisory' and l.granted and l.objsubid = 1
              and l.database = (select d.oid from pg_database d where d.datname = current_database())
              and l.classid = ((w.lock_key >> 32) & 4294967295)::oid
              and l.objid = (w.lock_key & 4294967295)::oid)))
  );
end
$$;

-- Hands a leased task back to its queue and records how the attempt ended.
-- p_uncount gives the attempt back. A task whose execution ended meanwhile leaves the queue instead.
-- Caller: holds the task's lock.
create or replace function pipeline._hand_back(
  p_task pipeline.task, p_outcome text, p_delay_seconds float8, p_uncount boolean,
  p_error_class text default null, p_error text default null, p_result jsonb default null, p_suspect boolean default null
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue text;
begin
  v_queue := pipeline._end_attempt(p_task, p_outcome, p_error_class, p_error, p_result);
  if pipeline._is_over(p_task) then
    delete from pipeline.task where id = p_task.id;
    return;
  end if;
  update pipeline.task set
    token = null, worker = null, claim_id = null, claimed_at = null, run_deadline = null,
    attempts = attempts - p_uncount::int,
    suspect = coalesce(p_suspect, suspect),
    ready_at = pipeline._ready_at(p_task.lane_id) + make_interval(secs => p_delay_seconds)
  where id = p_task.id;
  if p_delay_seconds = 0 then
    perform pipeline._wake(v_queue);
  end if;
end
$$;

-- True when the task's execution ended or went on to another generation. Both are final for the
-- task, so no lock is needed.
create or replace function pipeline._is_over(p_task pipeline.task) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
return exists (
  select from pipeline.execution x join pipeline.lane l on l.id = p_task.lane_id and l.kind in ('batch', 'callback')
  where x.id = p_task.execution_id and p_task.generation <= x.generation
    and (x.state not in ('open', 'sealed') or p_task.generation < x.generation));

-- Writes the attempt's row; returns the task's queue.
create or replace function pipeline._end_attempt(
  p_task pipeline.task, p_outcome text, p_error_class text default null, p_error text default null, p_result jsonb default null
) returns text
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
  insert into pipeline.attempt
    (token, task_id, queue, kind, execution_id, generation, batch, number, worker, alone, claimed_at, outcome, error_class, error, result)
  select p_task.token, p_task.id, l.queue, l.kind, p_task.execution_id, p_task.generation, p_task.batch, p_task.attempts,
         p_task.worker, p_task.suspect, p_task.claimed_at, p_outcome, p_error_class, pipeline._clip(p_error), p_result
  from pipeline.lane l where l.id = p_task.lane_id
  returning queue;
end;
