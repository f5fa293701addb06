-- Finish, fail, release: fenced by the token, in one transaction with what they make durable.
-- A stale token changes nothing but the history, where its attempt becomes "fenced".
set local role pipeline_owner;

-- Locks the tasks whose tokens are current, by id, and returns them. What a finish publishes in
-- its own transaction, it publishes under these locks: nobody can take the lease meanwhile.
create or replace function pipeline.lock_leases(p_tasks bigint[], p_tokens uuid[]) returns setof bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select pipeline._bound_idle(greatest('2 min', 2 * max(w.lease)))
  from pipeline.worker w where w.id = any (array(select t.worker from pipeline.task t where t.id = any (p_tasks)));
  select t.id from unnest(p_tasks, p_tokens) g(task, token)
  join pipeline.task t on t.id = g.task and t.token = g.token
  where t.id = any (p_tasks) order by t.id for update of t;
end;

-- The answer to a token that holds no lease: what its attempt came to, and the stored result.
-- A lost one that comes back is a zombie: remembered as fenced.
create or replace function pipeline._past(p_token uuid) returns table (outcome text, result jsonb)
language sql volatile
set search_path = pg_catalog, pg_temp
begin atomic
  select pipeline._of_now();  -- or a snapshot that shows no tasks would say of a living lease that it is lost
  update pipeline.attempt set outcome = 'fenced' where token = p_token and outcome = 'lost';
  select case a.outcome when 'fenced' then 'lost' else a.outcome end,
         coalesce(a.result, (select b.result from pipeline.batch b
                             where b.execution_id = a.execution_id and b.number = a.batch and b.token = a.token))
  from pipeline.attempt a where a.token = p_token
  union all
  select 'lost', null where not exists (select from pipeline.attempt where token = p_token);
end;

-- Settles any number of leases: history, batch results, file states, barrier, callback and ack.
-- One row per lease: committed (also when asked again), or what became of a token that is stale.
-- PP001 if an execution ended meanwhile: the caller rolls back what it published with this.
-- A batch's result: {"rows_in", "rows_out", "rows_rescued", "files": {"rows_in": […], "rows_out": […],
-- "rows_rescued": […]} in order of ordinal, "quarantined": [{"ordinal", "reason", "detail"}], "metadata"}.
-- A callback's: {"summary", "outbox": [{"event", "destination", "payload"}]}.
create or replace function pipeline.finish(p_tasks bigint[], p_tokens uuid[], p_results jsonb[])
returns table (task_id bigint, token uuid, outcome text, result jsonb, callback boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- The tasks that are still leased with these tokens: an array per column, since unnest is the quickest way to many rows.
  v_live       bigint[];
  v_tokens     uuid[];
  v_kinds      text[];
  v_queues     text[];
  v_executions bigint[];
  v_generations int[];
  v_batches    int[];
  v_attempts   int[];
  v_workers    uuid[];
  v_suspects   boolean[];
  v_claimed    timestamptz[];
  v_results    jsonb[];
  v_reached    bigint[];
  v_fired      bigint[] := '{}';
  v_flaws      jsonb;
  v_ended      jsonb;
  v_id         bigint;
  v_of_execution boolean;
  v_healing    boolean;
  v_quarantine boolean;
  v_called     boolean;
begin
  if cardinality(p_tasks) is distinct from cardinality(p_tokens) or cardinality(p_tasks) is distinct from cardinality(p_results) then
    raise exception using errcode = 'PP004', message = 'tasks, tokens and results must have the same length';
  end if;
  if current_setting('synchronous_commit') = 'off' then
    perform pipeline._durable();
  end if;
  select array_agg(t.id), array_agg(t.token), array_agg(t.kind), array_agg(t.queue), array_agg(t.execution_id),
    array_agg(t.generation), array_agg(t.batch), array_agg(t.attempts), array_agg(t.worker), array_agg(t.suspect),
    array_agg(t.claimed_at), array_agg(t.result), bool_or(t.execution_id is not null)
  into v_live, v_tokens, v_kinds, v_queues, v_executions, v_generations, v_batches, v_attempts, v_workers, v_suspects,
    v_claimed, v_results, v_of_execution
  from (  -- as lock_leases does; and as they stay, locked
    select t.*, l.kind, l.queue, g.result
    from (select distinct on (u.task, u.token) u.* from unnest(p_tasks, p_tokens, p_results) with ordinality u(task, token, result, n)
          order by u.task, u.token, u.n) g
    join pipeline.task t on g.task = t.id and g.token = t.token
    join pipeline.lane l on l.id = t.lane_id
    where t.id = any (p_tasks) order by t.id for update of t) t;
  if v_live is null then
    return query
    select g.task, g.token, p.outcome, p.result, false
    from unnest(p_tasks, p_tokens) with ordinality g(task, token, n) cross join lateral pipeline._past(g.token) p
    order by g.n;
    return;
  end if;

  -- The shared rows, last and briefly. Batches and files come after their execution in the lock
  -- order: a cancel that holds the execution goes on to them.
  if v_of_execution then
    perform from pipeline.execution x
    where x.id = any (v_executions) order by x.id for update;
  end if;
  -- No value of a result may fail further down: it would sink the whole group without a name.
  select jsonb_agg(t.token) filter (where t.kind in ('batch', 'callback')
           and (x.state in ('open', 'sealed') and x.generation = t.generation
                and (t.kind = 'callback' or b.state = 'waiting')) is not true),
         jsonb_agg(jsonb_build_array(t.token, v.flaw)) filter (where v.flaw is not null),
         coalesce(bool_or(t.kind = 'batch' and t.generation > 1), false),
         coalesce(bool_or(t.kind = 'batch' and t.result ? 'quarantined'), false), coalesce(bool_or(t.kind = 'callback'), false)
  into v_ended, v_flaws, v_healing, v_quarantine, v_called
  from unnest(v_tokens, v_kinds, v_executions, v_generations, v_batches, v_results)
    t(token, kind, execution_id, generation, batch, result)
  left join pipeline.execution x on x.id = t.execution_id
  left join pipeline.batch b on b.execution_id = t.execution_id and b.number = t.batch
  cross join lateral (select case
    when t.result is null then null
    when jsonb_typeof(t.result) <> 'object' then 'a result must be a json object'
    when pg_column_size(t.result) > 16777216 then 'a result must have at most 16 MiB'
    when t.kind = 'callback' and (jsonb_typeof(t.result->'outbox') <> 'array' or t.result @? '$.outbox[*] ? (@.type() != "object")')
      then 'the outbox of a callback''s result must be a list of objects'
    when t.kind <> 'batch' then null
    when coalesce(t.result->>'rows_in', '0') !~ '^[0-9]{1,18}$' or coalesce(t.result->>'rows_out', '0') !~ '^[0-9]{1,18}$'
      or coalesce(t.result->>'rows_rescued', '0') !~ '^[0-9]{1,18}$'
      then format('batch %s: rows_in, rows_out and rows_rescued must be whole numbers, not negative', b.number)
    when jsonb_typeof(t.result->'files') <> 'object'
      or t.result ? 'files' and exists (
        select from jsonb_each(t.result->'files') f
        where case jsonb_typeof(f.value) when 'array' then jsonb_array_length(f.value) <> b.files else true end)
      then format('batch %s has %s files: its result must account for each of them', b.number, b.files)
    when jsonb_typeof(t.result->'quarantined') <> 'array'
      or t.result ? 'quarantined' and jsonb_array_length(t.result->'quarantined') <> (
        select count(distinct f.ordinal) from jsonb_array_elements(t.result->'quarantined') q
        join pipeline.file f on f.execution_id = b.execution_id and f.batch = b.number
          and f.ordinal = case when q->>'ordinal' ~ '^[0-9]{1,9}$' then (q->>'ordinal')::int end
        where q->>'reason' is not null)
      then format('batch %s: each quarantined file needs an ordinal of the batch and a reason', b.number)
    end as flaw) v;
  if v_ended is not null then
    raise exception using errcode = 'PP001',
      message = 'lease lost: the execution ended before its batch could finish', detail = v_ended::text,
      hint = 'nothing of these batches became visible; release them';
  end if;
  perform pipeline._bound_idle(greatest('2 min', 2 * max(w.lease)))
  from pipeline.worker w where w.id = any (v_workers);
  if v_flaws is not null then
    raise exception using errcode = 'PP004', message = v_flaws->0->>1, detail = (
      select jsonb_agg(f->0)::text from jsonb_array_elements(v_flaws) f where f->1 = v_flaws->0->1);
  end if;

  insert into pipeline.attempt
    (token, task_id, queue, kind, execution_id, generation, batch, number, worker, alone, claimed_at, outcome, result)
  select t.token, t.id, t.queue, t.kind, t.execution_id, t.generation, t.batch, t.attempts, t.worker, t.suspect, t.claimed_at, 'committed',
         case when t.kind <> 'batch' then t.result end  -- a batch's result is kept with the batch
  from unnest(v_live, v_tokens, v_kinds, v_queues, v_executions, v_generations, v_batches, v_attempts, v_workers, v_suspects, v_claimed, v_results)
    t(id, token, kind, queue, execution_id, generation, batch, attempts, worker, suspect, claimed_at, result);
  delete from pipeline.task t where t.id = any (v_live);
  if v_of_execution then
    update pipeline.batch b set
      state = 'committed', token = t.token, committed_at = clock_timestamp(), result = t.result,
      rows_in = (t.result->>'rows_in')::bigint, rows_out = (t.result->>'rows_out')::bigint,
      rows_rescued = (t.result->>'rows_rescued')::bigint,
      quarantined = coalesce(jsonb_array_length(t.result->'quarantined'), 0)
    from unnest(v_tokens, v_kinds, v_executions, v_batches, v_results) t(token, kind, execution_id, batch, result)
    where t.kind = 'batch' and b.execution_id = t.execution_id and b.number = t.batch;
  end if;
  if v_healing then  -- a re-run may find good what an earlier generation set aside
    update pipeline.file f set state = null, reason = null, detail = null
    from unnest(v_kinds, v_executions, v_generations, v_batches, v_results) t(kind, execution_id, generation, batch, result)
    where t.kind = 'batch' and t.generation > 1 and f.execution_id = t.execution_id and f.batch = t.batch and f.state = 'quarantined'
      and not exists (select from jsonb_array_elements(t.result->'quarantined') q where (q->>'ordinal')::int = f.ordinal);
  end if;
  if v_quarantine then
    update pipeline.file f set state = 'quarantined', reason = q.value->>'reason', detail = pipeline._clip(q.value->>'detail', 4000)
    from unnest(v_kinds, v_executions, v_batches, v_results) t(kind, execution_id, batch, result)
    cross join lateral jsonb_array_elements(t.result->'quarantined') q
    where t.kind = 'batch' and f.execution_id = t.execution_id and f.batch = t.batch and f.ordinal = (q.value->>'ordinal')::int;
  end if;
  if v_called then
    insert into pipeline.outbox (key, execution_id, generation, event, destination, payload)
    select x.key || ':g' || x.generation || ':callback:' || o.n, x.id, x.generation,
           coalesce(o.value->>'event', 'callback'), coalesce(o.value->>'destination', ''),
           coalesce(o.value->'payload', '{}')
    from unnest(v_kinds, v_executions, v_results) t(kind, execution_id, result)
    join pipeline.execution x on x.id = t.execution_id
    cross join lateral jsonb_array_elements(t.result->'outbox') with ordinality o(value, n)
    where t.kind = 'callback';
  end if;

  -- The barrier goes down once per execution, by what was really settled here.
  if v_of_execution then
    with settled as (
      select t.execution_id, count(*) filter (where t.kind = 'batch') as batches, bool_or(t.kind = 'callback') as called
      from unnest(v_kinds, v_executions) t(kind, execution_id) where t.kind in ('batch', 'callback')
      group by t.execution_id
    ),
    down as (
      update pipeline.execution x set
        settled = x.settled + s.batches,
        state = case when s.called then 'finished' else x.state end,
        ended_at = case when s.called then clock_timestamp() else x.ended_at end,
        summary = case when s.called then (
          select t.result->'summary' from unnest(v_live, v_results) t(id, result)
          where t.id = x.callback_task) else x.summary end
      from settled s where x.id = s.execution_id
      returning x.id, x.remaining = 0 or x.state = 'finished' as reached
    )
    select array_agg(d.id order by d.id) into v_reached from down d where d.reached;
    foreach v_id in array coalesce(v_reached, '{}') loop
      if pipeline._barrier_reached(v_id) then
        v_fired := v_fired || v_id;
      end if;
      perform pipeline._tell(x.id, 'finished', jsonb_build_object('summary', x.summary))
      from pipeline.execution x where x.id = v_id and x.state = 'finished';
    end loop;
  end if;
  if cardinality(v_tokens) = cardinality(p_tokens) then
    return query
    select t.id, t.token, 'committed', t.result, coalesce(t.execution_id = any (v_fired), false)
    from unnest(v_live, v_tokens, v_executions, v_results) t(id, token, execution_id, result)
    order by array_position(p_tokens, t.token);
    return;
  end if;

  return query
  select a.task, a.token, a.outcome, a.result, a.fired from (
    select g.n, g.task, g.token, 'committed' as outcome, g.result, coalesce(t.execution_id = any (v_fired), false) as fired
    from unnest(p_tasks, p_tokens, p_results) with ordinality g(task, token, result, n)
    join unnest(v_tokens, v_executions) t(token, execution_id) on t.token = g.token
    union all
    select g.n, g.task, g.token, p.outcome, p.result, false
    from unnest(p_tasks, p_tokens) with ordinality g(task, token, n)
    cross join lateral pipeline._past(g.token) p
    where g.token <> all (v_tokens)
  ) a order by a.n;
end
$$;

drop function if exists pipeline.finish_and_claim(bigint[], uuid[], jsonb[], uuid, uuid, int, text);

-- Finishes and claims the next in one round trip and one commit. A claim waits for nobody, so it may
-- follow while the executions are locked. PP001 and PP004 as in finish: then nothing was claimed either.
create or replace function pipeline.finish_and_claim(
  p_tasks bigint[], p_tokens uuid[], p_results jsonb[],
  p_worker uuid, p_claim_id uuid, p_limit int default 1, p_after_tenant text default ''
) returns json
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_finished json;
  v_leases   json;
begin
  select coalesce(json_agg(row_to_json(f)), '[]') into v_finished from pipeline.finish(p_tasks, p_tokens, p_results) f;
  select coalesce(json_agg(row_to_json(c)), '[]') into v_leases from pipeline.claim(p_worker, p_claim_id, p_limit, p_after_tenant) c;
  return json_build_object('finished', v_finished, 'leases', v_leases);
end
$$;

-- An attempt that went wrong. Retryable: back off and hand back; otherwise, or with no attempts
-- left, a dead letter. Returns {"outcome": "failed", "retry_at"} or {"outcome": "failed", "dead_letter"};
-- asked again, the same; {"outcome": "lost"} for a stale token.
create or replace function pipeline.fail(
  p_task bigint, p_token uuid, p_error_class text, p_error text, p_retryable boolean default true, p_reason text default 'error'
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task   pipeline.task;
  v_queue  pipeline.queue;
  v_delay  float8;
  v_result jsonb;
  v_letter bigint;
begin
  select * into v_task from pipeline.task where id = p_task and token = p_token for update;
  if not found then
    return (select coalesce(p.result, '{}') || jsonb_build_object('outcome', p.outcome) from pipeline._past(p_token) p);
  end if;
  select q.* into v_queue from pipeline.lane l join pipeline.queue q on q.name = l.queue where l.id = v_task.lane_id;
  if pipeline._is_over(v_task) then
    v_result := '{"outcome": "failed", "ended": true}';
    perform pipeline._hand_back(v_task, 'failed', 0, false, p_error_class, p_error, v_result);
  elsif p_retryable and v_task.attempts < v_task.max_attempts then
    v_delay := least(extract(epoch from v_queue.backoff_cap),
                     extract(epoch from v_queue.backoff_base) * power(2, least(v_task.attempts - 1, 30))) * (0.5 + random() / 2);
    v_result := jsonb_build_object('outcome', 'failed', 'retry_at', clock_timestamp() + make_interval(secs => v_delay));
    perform pipeline._hand_back(v_task, 'failed', v_delay, false, p_error_class, p_error, v_result, false);
  else
    v_letter := pipeline._bury(v_task,
      case when p_retryable then 'attempts_exhausted' else p_reason end, p_error_class, p_error);
    v_result := jsonb_build_object('outcome', 'failed', 'dead_letter', v_letter);
    perform pipeline._end_attempt(v_task, 'failed', p_error_class, p_error, v_result);
  end if;
  perform pipeline._breaker(v_queue.name);
  return v_result;
end
$$;

-- Hands the task back uncounted: a graceful stop. {"outcome": "released"}, or "lost" for a stale token.
create or replace function pipeline.release(p_task bigint, p_token uuid, p_why text default null) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task pipeline.task;
begin
  select * into v_task from pipeline.task where id = p_task and token = p_token for update;
  if not found then
    return (select jsonb_build_object('outcome', p.outcome) from pipeline._past(p_token) p);
  end if;
  perform pipeline._hand_back(v_task, 'released', 0, true, null, p_why);
  return '{"outcome": "released"}';
end
$$;

-- Notes where an attempt is about to write, so that the reaper can discard it. Fenced like a finish.
create or replace function pipeline.note_output(p_task bigint, p_token uuid, p_sink text, p_location jsonb) returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  insert into pipeline.attempt_output (token, sink, location)
  select t.token, p_sink, p_location from pipeline.task t where t.id = p_task and t.token = p_token
  on conflict (token, sink) do update set location = excluded.location
  returning true;
end;

-- The files of a batch, in order. Quarantined ones are tried again by a re-run.
create or replace function pipeline.batch_files(p_execution_id bigint, p_batch int)
returns table (ordinal int, path text, version text, size bigint)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select f.ordinal, f.path, f.version, f.size from pipeline.file f
  where f.execution_id = p_execution_id and f.batch = p_batch and f.state is distinct from 'released'
  order by f.ordinal;
end;
