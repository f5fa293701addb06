-- The barrier and the ends of an execution. Whoever calls these holds the execution's row lock.
-- One lock order everywhere: dead letters, tasks by id, executions by id, batches, files by key.
set local role pipeline_owner;

-- Makes the callback task if the execution is sealed with nothing remaining and this generation
-- has none yet: the one place where callbacks come from.
create or replace function pipeline._barrier_reached(p_execution_id bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
  v_queue     pipeline.queue;
  v_lane      int;
  v_task      bigint;
begin
  select * into v_execution from pipeline.execution
  where id = p_execution_id and state = 'sealed' and remaining = 0 and callback_generation < generation;
  if not found then
    return false;
  end if;
  if v_execution.expected = 0 then
    update pipeline.execution set state = 'finished', ended_at = clock_timestamp(),
      ended_reason = 'every file was known already: nothing to process, no callback',
      reported_generation = generation
    where id = p_execution_id;
    perform pipeline._tell(p_execution_id, 'finished', '{"batches": 0}');
    return false;
  end if;
  select q.* into v_queue from pipeline.pipeline p join pipeline.queue q on q.name = p.queue
  where p.name = v_execution.pipeline;
  v_lane := pipeline._lane(v_queue.name, v_execution.pipeline, 'callback', v_execution.priority, v_execution.tenant);
  insert into pipeline.task (lane_id, execution_id, generation, max_attempts, ready_at)
  values (v_lane, v_execution.id, v_execution.generation, v_queue.max_attempts, pipeline._ready_at(v_lane))
  returning id into v_task;
  update pipeline.execution set callback_generation = generation, callback_task = v_task
  where id = p_execution_id;
  perform pipeline._wake(v_queue.name);
  return true;
end
$$;

-- Outbox rows of an execution's end: one for Dagster's eyes, one per webhook address.
-- The key is made of what happened, never of when: told again it is the same row.
create or replace function pipeline._tell(p_execution_id bigint, p_event text, p_payload jsonb) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
  insert into pipeline.outbox (key, execution_id, generation, event, destination, payload)
  select x.key || ':g' || x.generation || ':' || p_event || case when d.n = 0 then '' else ':' || d.n end,
         x.id, x.generation, p_event, d.destination,
         jsonb_build_object('event', p_event, 'pipeline', x.pipeline, 'execution', x.key,
                            'generation', x.generation, 'tenant', x.tenant) || p_payload
  from pipeline.execution x
  join pipeline.pipeline p on p.name = x.pipeline
  cross join lateral (
    select '' as destination, 0::bigint as n
    union all select a, n from unnest(p.notify) with ordinality u(a, n)
  ) d
  where x.id = p_execution_id
  on conflict (key) do nothing;
end;

-- Ends an execution before its callback: state, outbox, and the files of unsettled batches.
-- A batch of a re-run whose earlier rows are visible goes back to them: its files stay committed,
-- or another execution could take and double them. Dead letters come before the execution in the
-- lock order, so they are left to the reaper; replay refuses them from now on.
create or replace function pipeline._end_early(p_execution_id bigint, p_state text, p_reason text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update pipeline.execution set state = p_state, ended_at = clock_timestamp(), ended_reason = p_reason
  where id = p_execution_id;

  with freed as (
    update pipeline.batch set state = 'released'
    where execution_id = p_execution_id and state in ('waiting', 'dead') and token is null
    returning number
  ),
  locked as materialized (
    select f.key from pipeline.file f join freed b on b.number = f.batch
    where f.execution_id = p_execution_id and f.state is null
    order by f.key for update of f
  )
  update pipeline.file f set state = 'released' from locked l where f.key = l.key;

  update pipeline.batch set state = 'committed'
  where execution_id = p_execution_id and state in ('waiting', 'dead') and token is not null;

  perform pipeline._tell(p_execution_id, p_state, jsonb_build_object('reason', p_reason));
end
$$;

-- Cancels (a person) or expires (its deadline) a live execution. Locks only the execution row;
-- leases that are out meet the new state when they finish.
create or replace function pipeline.cancel(p_execution text, p_reason text, p_request_id uuid default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
  v_asked     text := concat_ws(': ', p_execution, p_reason);
  v_answer    jsonb;
begin
  v_answer := pipeline._answered(p_request_id, 'cancel', v_asked);
  if v_answer is not null then
    return v_answer;
  end if;
  select * into v_execution from pipeline.execution where key = p_execution for update;
  if not found then
    perform pipeline._execution(p_execution);
  end if;
  if v_execution.state not in ('open', 'sealed') then
    raise exception using errcode = 'PP005',
      message = format('execution %s is %s already', p_execution, v_execution.state),
      hint = 'a finished execution can only be re-run';
  end if;
  perform pipeline._end_early(v_execution.id, 'cancelled', p_reason);
  v_answer := jsonb_build_object('execution', p_execution, 'state', 'cancelled');
  perform pipeline._answer(p_request_id, 'cancel', v_asked, v_answer);
  return v_answer;
end
$$;

-- Ends executions past their deadline, some at a time. Returns how many.
create or replace function pipeline.expire_executions(p_limit int default 100) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_id    bigint;
  v_count int := 0;
begin
  for v_id in
    select id from pipeline.execution
    where state in ('open', 'sealed') and deadline < clock_timestamp()
    order by id limit p_limit for update skip locked
  loop
    perform pipeline._end_early(v_id, 'expired', 'its deadline has passed');
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

-- Re-runs a finished execution, all batches or named ones, as a new generation. The old rows stay
-- visible until the new ones replace them; the callback runs once more.
create or replace function pipeline.rerun(
  p_execution text, p_batches int[] default null, p_request_id uuid default null
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
  v_queue     pipeline.queue;
  v_missing   text;
  v_batches   int;
  v_count     int;
  v_asked     text := p_execution || coalesce(' batches ' || (select string_agg(n::text, ', ' order by n) from (select distinct unnest(p_batches)) b(n)), '');
  v_answer    jsonb;
begin
  v_answer := pipeline._answered(p_request_id, 'rerun', v_asked);
  if v_answer is not null then
    return v_answer;
  end if;
  -- Dead letters come first in the lock order: a replay of this execution waits, or is waited for.
  perform from pipeline.dead_letter d join pipeline.execution x on x.id = d.execution_id
  where x.key = p_execution and d.resolution is null order by d.id for update of d;
  select * into v_execution from pipeline.execution where key = p_execution for update;
  if not found then
    perform pipeline._execution(p_execution);
  end if;
  -- An execution that ended early with every batch in place, such as a cancelled re-run, can be re-run too.
  if v_execution.state in ('open', 'sealed')
     or v_execution.state <> 'finished' and v_execution.generation = 1
        and exists (select from pipeline.batch where execution_id = v_execution.id and state = 'released') then
    raise exception using errcode = 'PP005',
      message = format('execution %s is %s: only a finished one can be re-run', p_execution, v_execution.state),
      hint = 'released files of an ended execution are taken again with submit --released';
  end if;
  -- Batches that a cancelled re-run released have left the execution, with their files.
  select count(*) into v_batches from pipeline.batch where execution_id = v_execution.id and state <> 'released';
  if v_batches = 0 then
    raise exception using errcode = 'PP005', message = format('execution %s has no batches to re-run', p_execution);
  end if;
  select string_agg(n::text, ', ') into v_missing from unnest(p_batches) n
  where not exists (select from pipeline.batch b where b.execution_id = v_execution.id and b.number = n and b.state <> 'released');
  if v_missing is not null or cardinality(p_batches) = 0 then
    raise exception using errcode = 'PP003',
      message = format('execution %s has no batch %s', p_execution, coalesce(v_missing, '(none named)'));
  end if;
  select q.* into v_queue from pipeline.pipeline p join pipeline.queue q on q.name = p.queue
  where p.name = v_execution.pipeline;

  perform from pipeline.batch where execution_id = v_execution.id order by number for update;  -- as mark_reported does
  update pipeline.batch set state = 'waiting', generation = v_execution.generation + 1
  where execution_id = v_execution.id and state <> 'released' and (p_batches is null or number = any (p_batches));
  get diagnostics v_count = row_count;
  update pipeline.dead_letter set resolution = 'superseded', resolved_at = clock_timestamp(),
    resolved_why = format('re-run as generation %s', v_execution.generation + 1)
  where execution_id = v_execution.id and resolution is null
    and (batch is null or p_batches is null or batch = any (p_batches));
  update pipeline.execution set
    generation = generation + 1, state = 'sealed', ended_at = null, ended_reason = null,
    expected = v_batches, settled = v_batches - v_count, deadline = null
  where id = v_execution.id;
  insert into pipeline.task (lane_id, execution_id, generation, batch, max_attempts, ready_at)
  select l.id, v_execution.id, b.generation, b.number, v_queue.max_attempts, l.ready_at
  from pipeline.batch b cross join pipeline._batch_lane(v_execution, v_queue.name) l
  where b.execution_id = v_execution.id and b.state = 'waiting' order by b.number;
  perform pipeline._wake(v_queue.name);
  v_answer := jsonb_build_object('execution', p_execution, 'generation', v_execution.generation + 1, 'batches', v_count);
  perform pipeline._answer(p_request_id, 'rerun', v_asked, v_answer);
  return v_answer;
end
$$;

-- The stored answer to an operator's request, or null. PP002 if the id was used for something else: the subject is
-- all that was asked for, the batches of a re-run and the reason of a discard included.
create or replace function pipeline._answered(p_request_id uuid, p_verb text, p_subject text) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_action pipeline.action;
begin
  if p_request_id is null then
    return null;
  end if;
  perform pg_advisory_xact_lock(hashtextextended('pipeline.action.' || p_request_id, 0));
  select * into v_action from pipeline.action where request_id = p_request_id;
  if not found then
    return null;
  end if;
  if v_action.verb <> p_verb or v_action.subject <> p_subject then
    raise exception using errcode = 'PP002',
      message = format('request id %s was used to %s %s', p_request_id, v_action.verb, v_action.subject);
  end if;
  return v_action.answer;
end
$$;

create or replace function pipeline._answer(p_request_id uuid, p_verb text, p_subject text, p_answer jsonb) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
  insert into pipeline.action (request_id, verb, subject, answer)
  select p_request_id, p_verb, p_subject, p_answer where p_request_id is not null;
end;
