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
  v_live       bigint[];
  v_tasks      pipeline.task[];
  v_tokens     uuid[];
  v_executions bigint[];
  v_fired      bigint[] := '{}';
  v_flaws      jsonb;
  v_ended      jsonb;
  v_id         bigint;
begin
  if cardinality(p_tasks) is distinct from cardinality(p_tokens) or cardinality(p_tasks) is distinct from cardinality(p_results) then
    raise exception using errcode = 'PP004', message = 'tasks, tokens and results must have the same length';
  end if;
  perform pipeline._durable();
  v_tasks := array(  -- as lock_leases does; and as they stay, locked
    select t from pipeline.task t
    join (select distinct u.task, u.token from unnest(p_tasks, p_tokens) u(task, token)) g on g.task = t.id and g.token = t.token
    where t.id = any (p_tasks) order by t.id for update of t);
  v_live := array(select t.id from unnest(v_tasks) t);
  v_tokens := array(select t.token from unnest(v_tasks) t);
  perform pipeline._bound_idle(greatest('2 min', 2 * max(w.lease)))
  from pipeline.worker w where w.id = any (array(select t.worker from unnest(v_tasks) t));

  -- The shared rows, last and briefly. Batches and files come after their execution in the lock
  -- order: a cancel that holds the execution goes on to them.
  v_executions := array(
    select x.id from pipeline.execution x
    where x.id = any (array(select t.execution_id from unnest(v_tasks) t))
    order by x.id for update
  );
  -- No value of a result may fail further down: it would sink the whole group without a name.
  select jsonb_agg(t.token) filter (where l.kind in ('batch', 'callback')
           and (x.state in ('open', 'sealed') and x.generation = t.generation
                and (l.kind = 'callback' or b.state = 'waiting')) is not true),
         jsonb_agg(jsonb_build_array(t.token, v.flaw)) filter (where v.flaw is not null)
  into v_ended, v_flaws
  from unnest(p_tokens, p_results) r(token, result)
  join unnest(v_tasks) t on t.token = r.token
  join pipeline.lane l on l.id = t.lane_id
  left join pipeline.execution x on x.id = t.execution_id
  left join pipeline.batch b on b.execution_id = t.execution_id and b.number = t.batch
  cross join lateral (select case
    when r.result is null then null
    when jsonb_typeof(r.result) <> 'object' then 'a result must be a json object'
    when pg_column_size(r.result) > 16777216 then 'a result must have at most 16 MiB'
    when l.kind = 'callback' and (jsonb_typeof(r.result->'outbox') <> 'array' or r.result @? '$.outbox[*] ? (@.type() != "object")')
      then 'the outbox of a callback''s result must be a list of objects'
    when l.kind <> 'batch' then null
    when coalesce(r.result->>'rows_in', '0') !~ '^[0-9]{1,18}$' or coalesce(r.result->>'rows_out', '0') !~ '^[0-9]{1,18}$'
      or coalesce(r.result->>'rows_rescued', '0') !~ '^[0-9]{1,18}$'
      then format('batch %s: rows_in, rows_out and rows_rescued must be whole numbers, not negative', b.number)
    when jsonb_typeof(r.result->'files') <> 'object'
      or r.result ? 'files' and exists (
        select from jsonb_each(r.result->'files') f
        where case jsonb_typeof(f.value) when 'array' then jsonb_array_length(f.value) <> b.files else true end)
      then format('batch %s has %s files: its result must account for each of them', b.number, b.files)
    when jsonb_typeof(r.result->'quarantined') <> 'array'
      or r.result ? 'quarantined' and jsonb_array_length(r.result->'quarantined') <> (
        select count(distinct f.ordinal) from jsonb_array_elements(r.result->'quarantined') q
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
  if v_flaws is not null then
    raise exception using errcode = 'PP004', message = v_flaws->0->>1, detail = (
      select jsonb_agg(f->0)::text from jsonb_array_elements(v_flaws) f where f->1 = v_flaws->0->1);
  end if;

  with live as materialized (
    select distinct on (t.id) t.*, l.kind, l.queue, r.result
    from unnest(p_tokens, p_results) with ordinality r(token, result, n)
    join unnest(v_tasks) t on t.token = r.token
    join pipeline.lane l on l.id = t.lane_id
    order by t.id, r.n
  ),
  history as (
    insert into pipeline.attempt
      (token, task_id, queue, kind, execution_id, generation, batch, number, worker, alone, claimed_at, outcome, result)
    select token, id, queue, kind, execution_id, generation, batch, attempts, worker, suspect, claimed_at, 'committed',
           case when kind <> 'batch' then result end  -- a batch's result is kept with the batch
    from live
  ),
  batches as (
    update pipeline.batch b set
      state = 'committed', token = l.token, committed_at = clock_timestamp(), result = l.result,
      rows_in = (l.result->>'rows_in')::bigint, rows_out = (l.result->>'rows_out')::bigint,
      rows_rescued = (l.result->>'rows_rescued')::bigint,
      quarantined = coalesce(jsonb_array_length(l.result->'quarantined'), 0)
    from live l where l.kind = 'batch' and b.execution_id = l.execution_id and b.number = l.batch
  ),
  healed as (  -- a re-run may find good what an earlier generation set aside
    update pipeline.file f set state = null, reason = null, detail = null
    from live l where l.kind = 'batch' and l.generation > 1
      and f.execution_id = l.execution_id and f.batch = l.batch and f.state = 'quarantined'
      and not exists (select from jsonb_array_elements(l.result->'quarantined') q where (q->>'ordinal')::int = f.ordinal)
  ),
  set_aside as (
    update pipeline.file f set state = 'quarantined', reason = q.value->>'reason', detail = pipeline._clip(q.value->>'detail', 4000)
    from live l cross join lateral jsonb_array_elements(l.result->'quarantined') q
    where l.kind = 'batch' and f.execution_id = l.execution_id and f.batch = l.batch and f.ordinal = (q.value->>'ordinal')::int
  ),
  effects as (
    insert into pipeline.outbox (key, execution_id, generation, event, destination, payload)
    select x.key || ':g' || x.generation || ':callback:' || o.n, x.id, x.generation,
           coalesce(o.value->>'event', 'callback'), coalesce(o.value->>'destination', ''),
           coalesce(o.value->'payload', '{}')
    from live l join pipeline.execution x on x.id = l.execution_id
    cross join lateral jsonb_array_elements(l.result->'outbox') with ordinality o(value, n)
    where l.kind = 'callback'
  )
  delete from pipeline.task t where t.id = any (v_live);

  -- The barrier goes down once per execution, by what was really settled here.
  with settled as (
    select t.execution_id, count(*) filter (where l.kind = 'batch') as batches, bool_or(l.kind = 'callback') as called
    from unnest(v_tasks) t join pipeline.lane l on l.id = t.lane_id and l.kind in ('batch', 'callback')
    group by t.execution_id
  )
  update pipeline.execution x set
    settled = x.settled + s.batches,
    state = case when s.called then 'finished' else x.state end,
    ended_at = case when s.called then clock_timestamp() else x.ended_at end,
    summary = case when s.called then (
      select r.result->'summary' from unnest(p_tasks, p_tokens, p_results) r(task, token, result)
      where r.task = x.callback_task and r.token = any (v_tokens) limit 1) else x.summary end
  from settled s where x.id = s.execution_id;
  for v_id in
    select id from pipeline.execution where id = any (v_executions) and (remaining = 0 or state = 'finished') order by id
  loop
    if pipeline._barrier_reached(v_id) then
      v_fired := v_fired || v_id;
    end if;
    perform pipeline._tell(x.id, 'finished', jsonb_build_object('summary', x.summary))
    from pipeline.execution x where x.id = v_id and x.state = 'finished';
  end loop;

  return query
  select a.task, a.token, a.outcome, a.result, a.fired from (
    select g.n, g.task, g.token, 'committed' as outcome, g.result, coalesce(t.execution_id = any (v_fired), false) as fired
    from unnest(p_tasks, p_tokens, p_results) with ordinality g(task, token, result, n)
    join unnest(v_tasks) t on t.token = g.token
    union all
    select g.n, g.task, g.token, p.outcome, p.result, false
    from unnest(p_tasks, p_tokens) with ordinality g(task, token, n)
    cross join lateral pipeline._past(g.token) p
    where g.token <> all (v_tokens)
  ) a order by a.n;
end
$$;

-- Finishes and claims the next in one round trip and one commit. A claim waits for nobody, so it may
-- follow while the executions are locked. PP001 and PP004 as in finish: then nothing was claimed either.
create or replace function pipeline.finish_and_claim(
  p_tasks bigint[], p_tokens uuid[], p_results jsonb[],
  p_worker uuid, p_claim_id uuid, p_limit int default 1, p_after_tenant text default ''
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_finished jsonb;
  v_leases   jsonb;
begin
  select coalesce(jsonb_agg(to_jsonb(f)), '[]') into v_finished from pipeline.finish(p_tasks, p_tokens, p_results) f;
  select coalesce(jsonb_agg(to_jsonb(c)), '[]') into v_leases from pipeline.claim(p_worker, p_claim_id, p_limit, p_after_tenant) c;
  return jsonb_build_object('finished', v_finished, 'leases', v_leases);
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
