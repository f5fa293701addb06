-- Submit: execution, files, batches, barrier and every batch task, in the caller's one transaction.
set local role pipeline_owner;

-- Greedy cut of files into batches: (number, files, bytes) of the batch that the next file joins.
create or replace function pipeline._cut_step(p_state bigint[], p_size bigint, p_files bigint, p_bytes bigint)
returns bigint[]
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_state[2] >= p_files or (p_state[2] > 0 and p_state[3] + p_size > p_bytes) then
    return array[p_state[1] + 1, 1, p_size];
  end if;
  return array[p_state[1], p_state[2] + 1, p_state[3] + p_size];
end
$$;

do $$
begin
  if to_regprocedure('pipeline._cut(bigint, bigint, bigint)') is null then
    create aggregate pipeline._cut(bigint, bigint, bigint) (
      sfunc = pipeline._cut_step, stype = bigint[], initcond = '{0,0,0}'
    );
  end if;
end
$$;

-- The stored answer to a request, or null. PP002 if the same key asked for something else.
-- Called before anything is listed, so that asking twice costs one look-up.
create or replace function pipeline.find_submission(p_pipeline text, p_request_key text, p_fingerprint bytea)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
begin
  select * into v_execution from pipeline.execution
  where pipeline = p_pipeline and request_key = p_request_key;
  if not found then
    return null;
  end if;
  if v_execution.fingerprint <> p_fingerprint then
    raise exception using errcode = 'PP002',
      message = format('request key %s of pipeline %s was used for another request (execution %s)',
                       p_request_key, p_pipeline, v_execution.key),
      hint = 'use a new request key, or ask for the same files with the same options';
  end if;
  return v_execution.submission || jsonb_build_object('execution', v_execution.key, 'state', v_execution.state);
end
$$;

-- Opens an execution. Returns {"execution", "created"}; the same request gets the same one.
create or replace function pipeline.open_execution(
  p_pipeline text, p_request_key text, p_fingerprint bytea,
  p_tenant text default '', p_priority smallint default 0, p_deadline interval default null
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_pipeline pipeline.pipeline;
  v_id       bigint;
  v_key      text;
  v_found    jsonb;
begin
  perform pipeline._durable();
  select * into v_pipeline from pipeline.pipeline where name = p_pipeline;
  if not found then
    raise exception using errcode = 'PP003', message = format('pipeline %s not found', p_pipeline),
      hint = 'it is registered when its definitions load, or with pipeline.register_pipeline';
  end if;
  v_found := pipeline.find_submission(p_pipeline, p_request_key, p_fingerprint);
  if v_found is not null then
    return v_found || '{"created": false}';
  end if;
  v_id := nextval(pg_get_serial_sequence('pipeline.execution', 'id'));
  v_key := to_char(now() at time zone 'UTC', 'YYYYMMDD') || '-' || lpad(to_hex(v_id), greatest(4, length(to_hex(v_id))), '0');
  insert into pipeline.execution (id, key, pipeline, request_key, fingerprint, state, policy, tenant, priority, deadline, submission)
  overriding system value
  values (v_id, v_key, p_pipeline, p_request_key, p_fingerprint, 'open', v_pipeline.policy, p_tenant, p_priority,
          now() + coalesce(p_deadline, v_pipeline.deadline),
          '{"taken": 0, "bytes": 0, "batches": 0, "left_out": {}, "left_out_examples": []}')
  on conflict (pipeline, request_key) do nothing;
  if not found then  -- a racing submit with the same key has committed meanwhile
    return pipeline.find_submission(p_pipeline, p_request_key, p_fingerprint) || '{"created": false}';
  end if;
  return jsonb_build_object('execution', v_key, 'state', 'open', 'created', true);
end
$$;

-- What would be taken and left out, changing nothing.
create or replace function pipeline.preview_files(
  p_pipeline text, p_paths text[], p_versions text[], p_modified timestamptz[] default null, p_released boolean default false
) returns table (path text, version text, verdict text, owner text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select f.path, f.version,
    case
      when k.key is null and f.modified < p.horizon then 'too_old'
      when k.key is null then 'take'
      when k.state = 'released' and p_released then 'take'
      when k.state = 'released' then 'released'
      else 'known'
    end,
    x.key
  from unnest(p_paths, p_versions, p_modified) with ordinality f(path, version, modified, n)
  join pipeline.pipeline p on p.name = p_pipeline
  left join pipeline.file k on k.key = pipeline.file_key(p_pipeline, f.path, f.version)
  left join pipeline.execution x on x.id = k.execution_id
  order by f.n;
end;

-- A submission of several chunks holds the pipeline's ledger alone, from before its first chunk
-- to its commit: keys are in order within a chunk only, and would deadlock across chunks.
create or replace function pipeline.lock_ledger(p_pipeline text) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  select pipeline._bound_idle('15 min');
  select pg_advisory_xact_lock(hashtextextended('pipeline.ledger.' || p_pipeline, 0));
end;

-- Adds files to an open execution: ledger rows in key order (racing submissions don't deadlock),
-- batches cut by number and bytes, a task each, and the barrier, under the execution's lock.
-- Files that another execution has are left out and counted; released ones are taken only when asked.
create or replace function pipeline.add_files(
  p_execution text, p_paths text[], p_versions text[], p_sizes bigint[],
  p_modified timestamptz[] default null, p_released boolean default false
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution  pipeline.execution;
  v_pipeline   pipeline.pipeline;
  v_answer     jsonb;
  v_retaken    jsonb := '{"taken": 0, "bytes": 0, "batches": 0}';
  v_keys       uuid[] := '{}';
  v_constraint text;
begin
  if cardinality(p_paths) is distinct from cardinality(p_versions)
     or cardinality(p_paths) is distinct from cardinality(p_sizes) then
    raise exception using errcode = 'PP004', message = 'paths, versions and sizes must have the same length';
  end if;
  if cardinality(p_paths) > 100000 then
    raise exception using errcode = 'PP004', hint = 'nothing was stored: open an execution and add them in several calls',
      message = format('%s files in one call, of at most 100000', cardinality(p_paths));
  end if;
  perform pipeline._bound_idle('15 min');  -- what lists the files lists between two calls
  -- The ledger before the execution: a submission of several chunks comes with the ledger in hand.
  select * into v_execution from pipeline._execution(p_execution);
  perform pg_advisory_xact_lock_shared(hashtextextended('pipeline.ledger.' || v_execution.pipeline, 0));
  select * into v_execution from pipeline.execution where id = v_execution.id for update;
  if v_execution.state <> 'open' then
    raise exception using errcode = 'PP005',
      message = format('execution %s is %s: files can be added only while it is open', p_execution, v_execution.state),
      hint = 'submit them with a new request key';
  end if;
  select * into v_pipeline from pipeline.pipeline where name = v_execution.pipeline;

  if p_released then
    select r.answer, r.keys into v_retaken, v_keys from pipeline._retake(v_execution, v_pipeline, p_paths, p_versions) r;
  end if;
  -- `on conflict do nothing` would cost every file a second look into each index and a third record in the WAL.
  -- What a racing submission took and has committed is known at the second look, and nobody takes it back.
  loop
    begin
      v_answer := pipeline._take(v_execution, v_pipeline, p_paths, p_versions, p_sizes, p_modified, v_keys);
      exit;
    exception when unique_violation then
      get stacked diagnostics v_constraint = constraint_name;
      if v_constraint <> 'file_pkey' or current_setting('transaction_isolation') <> 'read committed' then
        raise;  -- an old snapshot would look for ever
      end if;
    end;
  end loop;

  v_answer := v_answer || (select jsonb_object_agg(k, (v_answer->>k)::bigint + (v_retaken->>k)::bigint)
                           from unnest(array['taken', 'bytes', 'batches']) k);
  update pipeline.execution x set
    expected = expected + (v_answer->>'batches')::int,
    submission = pipeline._merge_answers(x.submission, v_answer)
  where id = v_execution.id;
  perform pipeline._wake(v_pipeline.queue);
  return v_answer || jsonb_build_object('execution', p_execution);
end
$$;

-- Takes the files that nobody has, and says what was left out and why. A unique violation when another
-- submission takes one of them at the same moment. Caller: holds the execution's lock.
create or replace function pipeline._take(
  p_execution pipeline.execution, p_pipeline pipeline.pipeline,
  p_paths text[], p_versions text[], p_sizes bigint[], p_modified timestamptz[], p_retaken uuid[]
) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_first  int;
  v_answer jsonb;
begin
  select coalesce(max(number) + 1, 0) into v_first from pipeline.batch where execution_id = p_execution.id;
  with asked as materialized (  -- sorted, the ledger's index is walked and not jumped about in
    select pipeline.file_key(p_execution.pipeline, f.path, f.version) as key, f.*
    from unnest(p_paths, p_versions, p_sizes, p_modified) with ordinality f(path, version, size, modified, n)
    order by key, n
  ),
  judged as materialized (
    select a.*, k.execution_id as owner,
      case
        when row_number() over (partition by a.key order by a.n) > 1 then 'repeated'
        when a.key = any (p_retaken) then 'retaken'
        when k.state = 'released' then 'released'
        when k.key is not null then 'known'
        when a.modified < p_pipeline.horizon then 'too_old'
        else 'take'
      end as verdict
    from asked a left join pipeline.file k on k.key = a.key
  ),
  cut as materialized (
    select j.*, pipeline._cut(j.size, p_pipeline.batch_files::bigint, p_pipeline.batch_bytes)
                over (order by j.n rows between unbounded preceding and current row) as c
    from judged j where verdict = 'take'
  ),
  taken as (
    insert into pipeline.file (key, execution_id, batch, ordinal, size, modified_at, path, version)
    select key, p_execution.id, v_first + c[1], c[2] - 1, size, modified, path, version from cut order by key
  ),
  made as (
    insert into pipeline.batch as b (execution_id, number, generation, state, files, bytes)
    select p_execution.id, v_first + c[1], p_execution.generation, 'waiting', count(*), sum(size)
    from cut group by c[1] order by c[1]
    returning b.number, b.files, b.bytes
  ),
  enqueued as (
    insert into pipeline.task (lane_id, execution_id, generation, batch, max_attempts, ready_at)
    select l.id, p_execution.id, p_execution.generation, m.number, q.max_attempts, l.ready_at
    from made m cross join pipeline._batch_lane(p_execution, p_pipeline.queue) l
    cross join pipeline.queue q where q.name = p_pipeline.queue
    order by m.number
  ),
  left_out as materialized (
    select j.n, j.path, j.owner, j.verdict from judged j where verdict not in ('take', 'retaken')
  )
  select jsonb_build_object(
    'taken', (select coalesce(sum(files), 0) from made),
    'bytes', (select coalesce(sum(bytes), 0) from made),
    'batches', (select count(*) from made),
    'left_out', (select coalesce(jsonb_object_agg(verdict, c), '{}') from (select verdict, count(*) as c from left_out group by verdict) v),
    'left_out_examples', (
      select coalesce(jsonb_agg(jsonb_build_object('path', l.path, 'why', l.verdict, 'execution', x.key) order by l.n), '[]')
      from (select * from left_out order by n limit 20) l left join pipeline.execution x on x.id = l.owner)
  ) into v_answer;
  return v_answer;
end
$$;

-- The lane of the execution's batches, and when they are ready. Its callback's lane is made here too: made
-- by the finish that needs it first, it would have other finishes wait, and crosswise.
create or replace function pipeline._batch_lane(
  p_execution pipeline.execution, p_queue text, out id int, out ready_at timestamptz
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  id := pipeline._lane(p_queue, p_execution.pipeline, 'batch', p_execution.priority, p_execution.tenant);
  perform pipeline._lane(p_queue, p_execution.pipeline, 'callback', p_execution.priority, p_execution.tenant);
  ready_at := pipeline._ready_at(id);
end
$$;

-- Takes released files over into this execution, in batches of their own.
-- Caller: holds the execution's lock.
create or replace function pipeline._retake(
  p_execution pipeline.execution, p_pipeline pipeline.pipeline, p_paths text[], p_versions text[],
  out answer jsonb, out keys uuid[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_first int;
begin
  select coalesce(max(number) + 1, 0) into v_first from pipeline.batch where execution_id = p_execution.id;
  with asked as materialized (
    select pipeline.file_key(p_execution.pipeline, f.path, f.version) as key, min(f.n) as n
    from unnest(p_paths, p_versions) with ordinality f(path, version, n) group by 1
  ),
  free as materialized (  -- in key order; what another submission retook meanwhile is no longer released
    select k.key, a.n, k.size from asked a join pipeline.file k using (key)
    where k.state = 'released' order by k.key for update of k
  ),
  cut as (
    select f.*, pipeline._cut(f.size, p_pipeline.batch_files::bigint, p_pipeline.batch_bytes)
                over (order by f.n rows between unbounded preceding and current row) as c
    from free f
  ),
  taken as (
    update pipeline.file k set
      execution_id = p_execution.id, batch = v_first + c.c[1], ordinal = c.c[2] - 1,
      state = null, reason = null, detail = null
    from cut c where k.key = c.key
    returning k.key, k.batch, k.size
  ),
  made as (
    insert into pipeline.batch as b (execution_id, number, generation, state, files, bytes)
    select p_execution.id, t.batch, p_execution.generation, 'waiting', count(*), sum(t.size) from taken t group by t.batch order by t.batch
    returning b.number
  ),
  enqueued as (
    insert into pipeline.task (lane_id, execution_id, generation, batch, max_attempts, ready_at)
    select l.id, p_execution.id, p_execution.generation, m.number, q.max_attempts, l.ready_at
    from made m cross join pipeline._batch_lane(p_execution, p_pipeline.queue) l
    cross join pipeline.queue q where q.name = p_pipeline.queue
    order by m.number
    returning 1
  )
  select jsonb_build_object('taken', (select count(*) from taken),
                            'bytes', (select coalesce(sum(size), 0) from taken),
                            'batches', (select count(*) from enqueued)),
         array(select t.key from taken t)
  into answer, keys;
end
$$;

-- Adds up the answers of several chunks; keeps the first twenty examples.
create or replace function pipeline._merge_answers(p_sum jsonb, p_more jsonb) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
return jsonb_build_object(
  'taken', (p_sum->>'taken')::bigint + (p_more->>'taken')::bigint,
  'bytes', (p_sum->>'bytes')::bigint + (p_more->>'bytes')::bigint,
  'batches', (p_sum->>'batches')::bigint + (p_more->>'batches')::bigint,
  'left_out', (
    select coalesce(jsonb_object_agg(k, c), '{}')
    from (select k, sum(v::bigint) as c
          from (select * from jsonb_each_text(p_sum->'left_out') union all select * from jsonb_each_text(p_more->'left_out')) e(k, v)
          group by k) s),
  'left_out_examples', (
    select coalesce(jsonb_agg(e order by n), '[]')
    from (select e, n from jsonb_array_elements((p_sum->'left_out_examples') || (p_more->'left_out_examples')) with ordinality x(e, n) where n <= 20) s)
);

-- Seals: no more files. With nothing remaining the callback is made here; with no batch at all
-- there is nothing to aggregate and the execution ends at once, without a callback.
create or replace function pipeline.seal(p_execution text) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_execution pipeline.execution;
begin
  select * into v_execution from pipeline.execution where key = p_execution for update;
  if not found then
    perform pipeline._execution(p_execution);
  end if;
  if v_execution.state = 'open' then
    update pipeline.execution set state = 'sealed', sealed_at = clock_timestamp()
    where id = v_execution.id;
    perform pipeline._barrier_reached(v_execution.id);
    select * into v_execution from pipeline.execution where id = v_execution.id;
  elsif v_execution.state in ('cancelled', 'aborted', 'expired') then
    raise exception using errcode = 'PP005',
      message = format('execution %s is %s and can no longer be sealed', p_execution, v_execution.state);
  end if;
  return v_execution.submission || jsonb_build_object('execution', v_execution.key, 'state', v_execution.state);
end
$$;

-- The answer so far, of an execution that is still open.
create or replace function pipeline.submission(p_execution text) returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
return (select x.submission || jsonb_build_object('execution', x.key, 'state', x.state)
        from pipeline._execution(p_execution) x);

-- The whole submit in one call, for as many files as one statement carries.
create or replace function pipeline.submit(
  p_pipeline text, p_request_key text, p_paths text[], p_versions text[], p_sizes bigint[],
  p_fingerprint bytea default null, p_tenant text default '', p_priority smallint default 0,
  p_released boolean default false
) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_fingerprint bytea := coalesce(p_fingerprint, sha256(convert_to(
    jsonb_build_array(p_paths, p_versions, p_sizes, p_tenant, p_priority, p_released)::text, 'UTF8')));
  v_opened jsonb;
begin
  v_opened := pipeline.open_execution(p_pipeline, p_request_key, v_fingerprint, p_tenant, p_priority);
  if (v_opened->>'created')::boolean then
    perform pipeline.add_files(v_opened->>'execution', p_paths, p_versions, p_sizes, null, p_released);
    return pipeline.seal(v_opened->>'execution') || '{"created": true}';
  end if;
  return v_opened;
end
$$;
