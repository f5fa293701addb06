-- Queues and pipelines: settings, pause, resume, circuit breaker.
set local role pipeline_owner;

-- Makes the queue, or changes the settings that are named. Unknown settings are refused.
create or replace function pipeline.configure_queue(p_queue text, p_settings jsonb default '{}')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_unknown text;
begin
  select string_agg(k, ', ') into v_unknown from jsonb_object_keys(p_settings) k
  where k not in ('lease', 'grace', 'max_attempts', 'max_run', 'backoff_base', 'backoff_cap',
                  'max_payload_bytes', 'breaker_after', 'receipt_retention', 'history_retention');
  if v_unknown is not null then
    raise exception using errcode = 'PP004', message = format('queue %s: unknown setting %s', p_queue, v_unknown);
  end if;
  insert into pipeline.queue (name) values (p_queue) on conflict do nothing;
  if p_settings <> '{}' then
    update pipeline.queue q set
      lease             = coalesce((p_settings->>'lease')::interval, q.lease),
      grace             = coalesce((p_settings->>'grace')::interval, q.grace),
      max_attempts      = coalesce((p_settings->>'max_attempts')::int, q.max_attempts),
      max_run           = coalesce((p_settings->>'max_run')::interval, q.max_run),
      backoff_base      = coalesce((p_settings->>'backoff_base')::interval, q.backoff_base),
      backoff_cap       = coalesce((p_settings->>'backoff_cap')::interval, q.backoff_cap),
      max_payload_bytes = coalesce((p_settings->>'max_payload_bytes')::int, q.max_payload_bytes),
      breaker_after     = coalesce((p_settings->>'breaker_after')::int, q.breaker_after),
      receipt_retention = coalesce((p_settings->>'receipt_retention')::interval, q.receipt_retention),
      history_retention = coalesce((p_settings->>'history_retention')::interval, q.history_retention)
    where q.name = p_queue;
  end if;
end
$$;

-- Makes the pipeline, or brings its settings up to date. Executions keep the policy they began with.
create or replace function pipeline.register_pipeline(p_pipeline text, p_settings jsonb default '{}')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_unknown text;
  v_queue   text := coalesce(p_settings->>'queue', 'default');
begin
  select string_agg(k, ', ') into v_unknown from jsonb_object_keys(p_settings) k
  where k not in ('queue', 'policy', 'bad_files', 'batch_files', 'batch_bytes', 'deadline', 'notify', 'horizon');
  if v_unknown is not null then
    raise exception using errcode = 'PP004', message = format('pipeline %s: unknown setting %s', p_pipeline, v_unknown);
  end if;
  perform pipeline.configure_queue(v_queue);
  insert into pipeline.pipeline as p (name, queue, policy, bad_files, batch_files, batch_bytes, deadline, notify, horizon)
  values (
    p_pipeline, v_queue,
    coalesce(p_settings->>'policy', 'strict'),
    coalesce(p_settings->>'bad_files', 'quarantine'),
    coalesce((p_settings->>'batch_files')::int, 100),
    coalesce((p_settings->>'batch_bytes')::bigint, 268435456),
    (p_settings->>'deadline')::interval,
    coalesce((select array_agg(a) from jsonb_array_elements_text(p_settings->'notify') a), '{}'),
    (p_settings->>'horizon')::timestamptz
  )
  on conflict (name) do update set
    queue = excluded.queue, policy = excluded.policy, bad_files = excluded.bad_files,
    batch_files = excluded.batch_files, batch_bytes = excluded.batch_bytes,
    deadline = excluded.deadline, notify = excluded.notify,
    horizon = greatest(p.horizon, excluded.horizon),  -- a horizon never goes back
    updated_at = now()
  where (p.queue, p.policy, p.bad_files, p.batch_files, p.batch_bytes, p.deadline, p.notify, p.horizon)
    is distinct from (excluded.queue, excluded.policy, excluded.bad_files, excluded.batch_files,
                      excluded.batch_bytes, excluded.deadline, excluded.notify, greatest(p.horizon, excluded.horizon));
end
$$;

-- Pins the schema that was inferred first; every later call gets the pinned one back. With null it only asks.
create or replace function pipeline.pin_schema(p_pipeline text, p_schema text) returns text
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  update pipeline.pipeline set schema = coalesce(schema, p_schema), updated_at = now()
  where name = p_pipeline
  returning schema;
end;

-- Forgets the pinned schema: the next worker run infers and pins a new one. The one that is forgotten, or null.
create or replace function pipeline.unpin_schema(p_pipeline text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_schema text;
begin
  select schema into v_schema from pipeline.pipeline where name = p_pipeline for update;
  if not found then
    raise exception using errcode = 'PP003', message = format('there is no pipeline %s', p_pipeline);
  end if;
  update pipeline.pipeline set schema = null, updated_at = now() where name = p_pipeline;
  return v_schema;
end
$$;

create or replace function pipeline.pause(p_queue text, p_reason text) returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  update pipeline.queue
  set paused_at = coalesce(paused_at, clock_timestamp()), paused_by = 'person', pause_reason = p_reason
  where name = p_queue
  returning true;
end;

create or replace function pipeline.resume(p_queue text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update pipeline.queue
  set paused_at = null, paused_by = null, pause_reason = null, resumed_at = clock_timestamp()
  where name = p_queue;
  if not found then
    return null;
  end if;
  perform pipeline._wake(p_queue);
  return true;
end
$$;

-- Pauses the queue when its last attempts, since it was resumed, all failed of one cause.
-- Called after a failed attempt was recorded; the caller holds that task's lock.
create or replace function pipeline._breaker(p_queue text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_after  int;
  v_since  timestamptz;
  v_failed int;
  v_causes int;
  v_cause  text;
begin
  select breaker_after, coalesce(resumed_at, '-infinity') into v_after, v_since
  from pipeline.queue where name = p_queue and paused_at is null;
  if not found or v_after = 0 then
    return;
  end if;
  select count(*) filter (where outcome = 'failed'), count(distinct error_class), min(error_class)
  into v_failed, v_causes, v_cause
  from (
    select outcome, coalesce(error_class, '?') as error_class from pipeline.attempt
    where queue = p_queue and ended_at > v_since and outcome in ('committed', 'failed')
    order by ended_at desc limit v_after
  ) recent;
  if v_failed >= v_after and v_causes = 1 then
    update pipeline.queue
    set paused_at = clock_timestamp(), paused_by = 'breaker',
        pause_reason = format('the last %s attempts all failed with %s', v_after, v_cause)
    where name = p_queue and paused_at is null;
  end if;
end
$$;
