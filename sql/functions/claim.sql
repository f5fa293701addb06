-- Claim: one short transaction that waits for no task.
set local role pipeline_owner;

-- Takes tasks back from workers that are gone and from runs past their deadline, some at a time.
-- Such a task is a suspect: it runs alone next, and only an attempt that ran alone can use up its
-- attempts by being lost. Returns how many were taken back or buried.
create or replace function pipeline._take_back(p_queue text, p_limit int) returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_gone  uuid[] := pipeline._gone_workers(p_queue);
  v_now   timestamptz := clock_timestamp();
  v_task  pipeline.task;
  v_why   text;
  v_count int := 0;
begin
  for v_task in
    select t.* from pipeline.task t
    where t.id = any (array(
        select o.id from pipeline.worker w
        cross join lateral (
          select t2.id from pipeline.task t2
          where t2.worker = w.id and t2.token is not null and t2.claimed_at >= w.floor
            and (w.id = any (v_gone) or t2.run_deadline < v_now)
          order by t2.claimed_at limit p_limit
        ) o
        where w.queue = p_queue
      ))
      and t.token is not null and (t.worker = any (v_gone) or t.run_deadline < v_now)  -- still so under the lock
    order by t.execution_id nulls first, t.id  -- burying locks executions: in order
    limit p_limit for update of t skip locked
  loop
    -- Burying locks the execution; whoever holds it is about to be done, so leave the task to the next pass.
    if v_task.attempts >= v_task.max_attempts and v_task.suspect and v_task.execution_id is not null then
      perform from pipeline.execution where id = v_task.execution_id for update skip locked;
      continue when not found and exists (select from pipeline.execution where id = v_task.execution_id);
    end if;
    v_count := v_count + 1;
    v_why := case when v_task.worker = any (v_gone) then 'its worker is gone' else 'it ran past its maximum time' end;
    if v_task.attempts >= v_task.max_attempts and v_task.suspect and not pipeline._is_over(v_task) then
      perform pipeline._end_attempt(v_task, 'lost', null, v_why);
      perform pipeline._bury(v_task, 'attempts_exhausted', null,
        format('attempt %s of %s ran alone and was lost: %s', v_task.attempts, v_task.max_attempts, v_why));
    else
      perform pipeline._hand_back(v_task, 'lost', 0, false, null, v_why, null, true);
    end if;
  end loop;
  return v_count;
end
$$;

-- Of tasks that the caller has locked: removes what is over, buries what is malformed, returns the rest.
create or replace function pipeline._sift(p_ids bigint[]) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task pipeline.task;
  v_bad  record;
  v_good bigint[];
begin
  for v_bad in
    select t as task, v.flaw
    from pipeline.task t
    join pipeline.lane l on l.id = t.lane_id
    left join pipeline.execution x on x.id = t.execution_id
    left join pipeline.batch b on b.execution_id = t.execution_id and b.number = t.batch
    cross join lateral (select case
      when l.kind not in ('batch', 'callback') then null
      when x.id is null then format('its execution %s does not exist', coalesce(t.execution_id::text, '(none)'))
      when t.generation is null or t.generation > x.generation then format('execution %s has no generation %s', x.key, coalesce(t.generation::text, '(none)'))
      when t.key is null and (t.generation < x.generation or x.state not in ('open', 'sealed')) then 'over'
      when l.pipeline <> x.pipeline then format('execution %s is of pipeline %s', x.key, x.pipeline)
      when t.key is not null then format('a %s task comes from a submission, not from send', l.kind)
      when t.payload is not null and jsonb_typeof(t.payload) <> 'object' then 'its payload is not a json object'
      when l.kind = 'callback' and x.callback_task is distinct from t.id then format('it is not the callback of execution %s', x.key)
      when l.kind = 'batch' and b.number is null then format('execution %s has no batch %s', x.key, coalesce(t.batch::text, '(none)'))
      when l.kind = 'batch' and b.state <> 'waiting' then format('batch %s of execution %s is %s already', b.number, x.key, b.state)
    end as flaw) v
    where t.id = any (p_ids) and v.flaw is not null
    order by t.execution_id nulls first, t.id
  loop
    v_task := v_bad.task;
    if v_bad.flaw = 'over' then
      delete from pipeline.task where id = v_task.id;
      -- With it goes what else is left of the ended execution: it must not stand before living work.
      delete from pipeline.task t where t.id <> all (p_ids) and t.id = any (array(
        select o.id from pipeline.task o join pipeline.lane l on l.id = o.lane_id and l.kind in ('batch', 'callback')
        where o.execution_id = v_task.execution_id and o.token is null and o.generation <= v_task.generation
          and o.key is null  -- what came from send is a dead letter, never silently gone
        limit 10000 for update of o skip locked));
    else
      perform pipeline._bury(v_task, 'malformed', null, v_bad.flaw);
    end if;
    v_good := coalesce(v_good, p_ids);
    v_good := array_remove(v_good, v_task.id);
  end loop;
  return coalesce(v_good, p_ids);
end
$$;

-- Leases for a worker: priority first, then tenants in turn after p_after_tenant, then age.
-- With p_execution only tasks of that execution, of p_kind and of p_batches, ready or backing off.
-- p_claim_id is the caller's: asked again after a lost answer, the same leases come back.
create or replace function pipeline.claim(
  p_worker uuid, p_claim_id uuid, p_limit int default 1, p_after_tenant text default '',
  p_execution text default null, p_kind text default 'batch', p_batches int[] default null
) returns table (
  task_id bigint, token uuid, kind text, pipeline text, tenant text, priority smallint,
  execution_id bigint, execution text, generation int, batch int, attempt int, alone boolean,
  claimed_at timestamptz, run_deadline timestamptz, payload jsonb
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_worker   pipeline.worker;
  v_found    record;
  v_now      timestamptz;
  v_held     int;
  v_alone    boolean := false;
  v_top      smallint;
  v_ids      bigint[];
  v_stamp    text;
  v_due      boolean;
  v_suspects boolean;
  v_limit    int := greatest(0, least(coalesce(p_limit, 1), 1000));
begin
  if p_claim_id is null then
    raise exception using errcode = 'PP004', message = 'a claim needs an id, so that a lost answer can be asked for again';
  end if;
  -- A retry waits here until the first call, whose answer was lost, has ended.
  -- And a worker claims once at a time, or alone would not be alone.
  perform pg_advisory_xact_lock(hashtextextended(p_worker::text, 2));
  -- Key share: the row can't be pruned while this claim leases to it; beats pass.
  select w as worker, q.paused_at, q.max_run into v_found
  from pipeline.worker w join pipeline.queue q on q.name = w.queue
  where w.id = p_worker and w.stopped_at is null for key share of w;
  if not found then
    raise exception using errcode = 'PP006', message = format('worker %s is not registered (any more)', p_worker),
      hint = 'register a new worker; the id of an ended one is never reused';
  end if;
  v_worker := v_found.worker;
  for v_turn in 1 .. 2 loop
    v_now := clock_timestamp();
    select array_agg(t.id) filter (where t.claim_id = p_claim_id), count(*), coalesce(bool_or(t.suspect), false),
      v_turn = 1 and exists (
        select from pipeline.worker w cross join lateral (
          select from pipeline.task o where o.worker = w.id and o.token is not null and o.claimed_at >= w.floor
            and (o.run_deadline < v_now or w.stopped_at is not null or w.beat_at + least(w.grace, w.lease) < v_now)
          limit 1) due  -- a limit, or the planner would join, and walk the whole index
        where w.queue = v_worker.queue),
      exists (select from pipeline.task where token is null and suspect)
    into v_ids, v_held, v_alone, v_due, v_suspects
    from pipeline.task t where t.worker = p_worker and t.token is not null and t.claimed_at >= v_worker.floor;
    exit when v_ids is not null or v_found.paused_at is not null or v_limit = 0 or not v_due;
    perform pipeline._take_back(v_worker.queue, 100);  -- and look again
  end loop;

  if v_ids is null then
    v_ids := '{}';
    v_now := greatest(v_now, v_worker.floor);
    if v_alone or v_found.paused_at is not null or v_limit = 0 then
      return;  -- it runs a suspect: alone means alone
    end if;

    if p_execution is not null then
      v_ids := pipeline._sift(array(
        select t.id from pipeline.task t
        join pipeline.lane l on l.id = t.lane_id
        where t.execution_id = (select x.id from pipeline.execution x where x.key = p_execution)
          and l.kind = p_kind and (p_batches is null or t.batch = any (p_batches))
          and t.token is null and l.queue = v_worker.queue and not (t.suspect and v_held > 0)
        order by t.suspect desc, t.batch, t.id limit v_limit for update of t skip locked
      ));
      -- A suspect runs alone also here: the rest stays for the next claim.
      if exists (select from pipeline.task t where t.id = any (v_ids) and t.suspect) then
        v_ids := array(select t.id from pipeline.task t where t.id = any (v_ids) and t.suspect order by t.batch, t.id limit 1);
      end if;
      v_alone := v_held = 0 and cardinality(v_ids) = 1
        and exists (select from pipeline.task where id = v_ids[1] and suspect);
    else
      while v_suspects and cardinality(v_ids) = 0 and exists (select from pipeline.task where token is null and suspect) loop
        -- A suspect goes before its equals, and never before work of a higher priority.
        select max(r.priority) into v_top from pipeline._ready_lanes(v_worker, v_now) r;
        select array[t.id] into v_ids from pipeline.task t join pipeline.lane l on l.id = t.lane_id
        where t.token is null and t.suspect and l.queue = v_worker.queue and l.priority >= coalesce(v_top, l.priority)
          and t.ready_at <= v_now - case when v_held = 0 then '0 s'::interval else '5 s' end
          and (v_worker.pipelines is null or l.pipeline = any (v_worker.pipelines))
          and (v_worker.kinds is null or l.kind = any (v_worker.kinds))
        order by l.priority desc, t.ready_at, t.id limit 1 for update of t skip locked;
        if not found then
          v_ids := '{}';
          exit;
        end if;
        v_ids := pipeline._sift(v_ids);  -- one that is over is gone now: look for the next
        continue when cardinality(v_ids) = 0;
        v_alone := v_held = 0;
        if v_held > 0 and pipeline._should_rest(v_worker, v_ids[1], v_now) then
          return;  -- a suspect has waited long: take nothing more, so that this worker comes to rest and can run it alone
        elsif v_held > 0 then
          v_ids := '{}';  -- another one comes to rest for it
          exit;
        end if;
      end loop;
      if cardinality(v_ids) = 0 then
        v_ids := pipeline._pick(v_worker, v_limit, p_after_tenant, v_now);
      end if;
    end if;

    if cardinality(v_ids) = 0 then
      return;
    end if;
    v_stamp := left(pipeline._new_token()::text, 13);  -- the time of it; the rest is each token's own
    return query
    with leased as (
      update pipeline.task t set
        token = overlay(gen_random_uuid()::text placing v_stamp from 1 for 13)::uuid, worker = p_worker, claim_id = p_claim_id,
        claimed_at = v_now, run_deadline = v_now + v_found.max_run,
        attempts = attempts + 1, suspect = v_alone
      where t.id = any (v_ids)
      returning t.*
    )
    select t.id, t.token, l.kind, l.pipeline, l.tenant, l.priority, t.execution_id, x.key, t.generation, t.batch,
           t.attempts, t.suspect, t.claimed_at, t.run_deadline, t.payload
    from leased t
    join pipeline.lane l on l.id = t.lane_id
    left join pipeline.execution x on x.id = t.execution_id
    order by l.priority desc, t.ready_at, t.id;
    return;
  end if;

  return query
  select t.id, t.token, l.kind, l.pipeline, l.tenant, l.priority, t.execution_id, x.key, t.generation, t.batch,
         t.attempts, t.suspect, t.claimed_at, t.run_deadline, t.payload
  from pipeline.task t
  join pipeline.lane l on l.id = t.lane_id
  left join pipeline.execution x on x.id = t.execution_id
  where t.id = any (v_ids)
  order by l.priority desc, t.ready_at, t.id;
end
$$;

-- Whether this worker is the one that should take nothing more until it can run a suspect alone: of the
-- living workers that may take it, the one that holds least; every one of them once it has waited a minute.
create or replace function pipeline._should_rest(p_worker pipeline.worker, p_task bigint, p_now timestamptz) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
return (
  select t.ready_at <= p_now - '1 min'::interval or p_worker.id = (
    select w.id from pipeline.worker w
    where w.queue = l.queue and w.stopped_at is null and w.beat_at + w.lease > p_now
      and (w.pipelines is null or l.pipeline = any (w.pipelines)) and (w.kinds is null or l.kind = any (w.kinds))
    order by (select count(*) from pipeline.task h where h.worker = w.id and h.token is not null), w.id limit 1)
  from pipeline.task t join pipeline.lane l on l.id = t.lane_id where t.id = p_task);

-- The lanes that have ready tasks which this worker may take: one probe per lane of its queue, from the lane's
-- floor on, however many tasks there are or were.
create or replace function pipeline._ready_lanes(p_worker pipeline.worker, p_now timestamptz) returns setof pipeline.lane
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  return query select l.* from pipeline.lane l cross join lateral (
    select from pipeline.task t
    where t.lane_id = l.id and t.token is null and not t.suspect and t.ready_at between l.floor and p_now
    order by t.ready_at, t.id limit 1
  ) ready
  where l.queue = p_worker.queue
    and (p_worker.pipelines is null or l.pipeline = any (p_worker.pipelines))
    and (p_worker.kinds is null or l.kind = any (p_worker.kinds));
end
$$;

-- Locks ready tasks, skipping what others hold: the highest priority first; within it each lane
-- gets its share, tenants in turn, and what is left over goes to whoever has more.
create or replace function pipeline._pick(
  p_worker pipeline.worker, p_limit int, p_after_tenant text, p_now timestamptz
) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids    bigint[] := '{}';
  v_more   bigint[];
  v_good   bigint[];
  v_sifted boolean;
  v_sound  boolean;
  v_group  record;
begin
  for v_round in 1 .. 100 loop
    v_sifted := false;
    for v_group in
      select b.priority, array_agg(b.id order by b.turn) as lanes, array_agg(b.floor order by b.turn) as floors,
        array_agg(b.kind order by b.turn) as kinds, array_agg(b.pipeline order by b.turn) as pipelines
      from (
        select l.*, row_number() over (
          order by (l.kind = 'callback') desc, (l.tenant > p_after_tenant) desc, l.tenant, l.pipeline, l.kind) as turn
        from pipeline._ready_lanes(p_worker, p_now) l
      ) b
      group by b.priority order by b.priority desc
    loop
      for v_turn in 1 .. case when cardinality(v_group.lanes) = 1 then 1 else 2 end loop
        for i in 1 .. cardinality(v_group.lanes) loop
          exit when cardinality(v_ids) >= p_limit;
          -- What is surely sound need not be sifted: nearly all.
          select array_agg(t.id), bool_and(coalesce(
            v_group.kinds[i] not in ('batch', 'callback')
            or t.key is null and x.state in ('open', 'sealed') and t.generation = x.generation
              and x.pipeline = v_group.pipelines[i] and (t.payload is null or jsonb_typeof(t.payload) = 'object')
              and case v_group.kinds[i] when 'batch' then b.state = 'waiting' else x.callback_task = t.id end, false))
          into v_more, v_sound
          from (
            select t.id, t.execution_id, t.generation, t.batch, t.key, t.payload from pipeline.task t
            where t.lane_id = v_group.lanes[i] and t.token is null and not t.suspect
              and t.ready_at between v_group.floors[i] and p_now
              and (cardinality(v_ids) = 0 or t.id <> all (v_ids))
            order by t.ready_at, t.id
            limit case v_turn
              when 1 then ceil((p_limit - cardinality(v_ids))::numeric / (cardinality(v_group.lanes) - i + 1))::int
              else p_limit - cardinality(v_ids) end
            for update skip locked
          ) t
          left join pipeline.execution x on x.id = t.execution_id
          left join pipeline.batch b on b.execution_id = t.execution_id and b.number = t.batch;
          if v_more is not null then
            v_good := case when v_sound then v_more else pipeline._sift(v_more) end;
            v_sifted := v_sifted or cardinality(v_good) < cardinality(v_more);
            v_ids := v_ids || v_good;
          end if;
        end loop;
      end loop;
      exit when cardinality(v_ids) >= p_limit;
    end loop;
    -- Only tasks that were sifted out make another round worth it; they are gone now.
    exit when cardinality(v_ids) >= p_limit or not v_sifted;
  end loop;
  return v_ids;
end
$$;
