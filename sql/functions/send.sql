-- Idempotent enqueue. The receipt is the lasting answer; it outlives its task.
set local role pipeline_owner;

-- entries: a json array of {"key", "kind", "payload", "pipeline", "priority", "tenant",
-- "execution_id", "generation", "batch", "delay_seconds"}; only key and kind are needed.
-- One row per entry, in order: created, duplicate (with the id first given), conflict, rejected.
-- Receipts are looked up before anything is checked: a stored entry is reported as stored
-- whatever the limits are now. Safe in the caller's own transaction.
create or replace function pipeline.send(p_queue text, p_entries jsonb)
returns table (ordinal int, key text, outcome text, task_id bigint, reason text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_queue pipeline.queue;
  v_same  boolean;
begin
  perform pipeline._durable();
  select * into v_queue from pipeline.queue where name = p_queue;
  if not found then
    raise exception using errcode = 'PP003', message = format('queue %s not found', p_queue),
      hint = 'make it with pipeline.configure_queue';
  end if;
  if jsonb_typeof(p_entries) is distinct from 'array' then
    raise exception using errcode = 'PP004', message = 'entries must be a json array';
  end if;
  if jsonb_array_length(p_entries) > 10000 then
    raise exception using errcode = 'PP004', hint = 'nothing was stored: send them in several calls',
      message = format('%s entries in one send, of at most 10000', jsonb_array_length(p_entries));
  end if;

  -- One statement a phase, keys in order, so that racing sends don't deadlock.
  for ordinal, key, outcome, task_id, reason, v_same in
  with entry as materialized (
    select e.n::int as n, e.value as body, e.value->>'key' as key,
           sha256(convert_to(case jsonb_typeof(e.value) when 'object' then e.value - 'key' else e.value end::text, 'UTF8')) as fingerprint
    from jsonb_array_elements(p_entries) with ordinality e(value, n)
  ),
  known as materialized (
    select e.n, r.task_id, r.fingerprint = e.fingerprint as same
    from entry e join pipeline.receipt r on r.queue = p_queue and r.key = e.key
  ),
  checked as materialized (
    select e.*, case
      when jsonb_typeof(e.body) <> 'object' then 'an entry must be a json object'
      when e.key is null or octet_length(e.key) not between 1 and 500 then 'key must have 1 to 500 bytes'
      when e.body->>'kind' is null or e.body->>'kind' !~ '^[A-Za-z0-9_.:-]{1,100}$' then 'kind must be a short name'
      when octet_length(coalesce(e.body->>'pipeline', '')) > 100 then 'pipeline must have at most 100 bytes'
      when octet_length(coalesce(e.body->>'tenant', '')) > 200 then 'tenant must have at most 200 bytes'
      when jsonb_typeof(e.body->'priority') not in ('number', 'null')
        or (e.body->>'priority')::numeric not between -32768 and 32767
        or (e.body->>'priority')::numeric % 1 <> 0 then 'priority must be a small whole number'
      when jsonb_typeof(e.body->'delay_seconds') not in ('number', 'null')
        or (e.body->>'delay_seconds')::numeric not between 0 and 31536000 then 'delay_seconds must be between 0 and a year'
      when exists (
        select from unnest(array['execution_id', 'generation', 'batch']) c(name)
        where jsonb_typeof(e.body->c.name) not in ('number', 'null')
           or (e.body->>c.name)::numeric not between 0 and 2147483647
           or (e.body->>c.name)::numeric % 1 <> 0) then 'execution_id, generation and batch must be whole numbers, not negative'
      when octet_length((e.body->'payload')::text) > v_queue.max_payload_bytes
        then format('payload has %s bytes, queue %s takes %s', octet_length((e.body->'payload')::text), p_queue, v_queue.max_payload_bytes)
      end as refusal
    from entry e where e.n not in (select n from known)
  ),
  first_of_key as materialized (
    select distinct on (key) * from checked where refusal is null order by key, n
  ),
  stored as (
    insert into pipeline.receipt as r (queue, key, task_id, fingerprint)
    select p_queue, f.key, nextval('pipeline.task_id'), f.fingerprint from first_of_key f order by f.key
    on conflict do nothing
    returning r.key, r.task_id
  ),
  placed as materialized (
    select s.task_id, s.key, f.body, coalesce(f.body->>'pipeline', '') as pipeline, f.body->>'kind' as kind,
           coalesce((f.body->>'priority')::smallint, 0::smallint) as priority, coalesce(f.body->>'tenant', '') as tenant
    from stored s join first_of_key f using (key)
  ),
  lanes as materialized (  -- new ones are made in order too
    select d.*, l.id, pipeline._ready_at(l.id) as ready_at
    from (select distinct pipeline, kind, priority, tenant from placed order by 1, 2, 3, 4) d
    cross join lateral pipeline._lane(p_queue, d.pipeline, d.kind, d.priority, d.tenant) l(id)
  ),
  enqueued as (
    insert into pipeline.task (id, lane_id, execution_id, generation, batch, ready_at, max_attempts, key, payload)
    select f.task_id, l.id, (f.body->>'execution_id')::bigint, (f.body->>'generation')::int, (f.body->>'batch')::int,
           l.ready_at + make_interval(secs => coalesce((f.body->>'delay_seconds')::float8, 0)),
           v_queue.max_attempts, f.key, f.body->'payload'
    from placed f join lanes l using (pipeline, kind, priority, tenant)
    returning id
  )
  select e.n, e.key,
    case
      when k.same then 'duplicate'
      when k.same = false then 'conflict'
      when c.refusal is not null then 'rejected'
      when s.task_id is not null and f.n = e.n then 'created'
      when s.task_id is not null and f.fingerprint = e.fingerprint then 'duplicate'
      when s.task_id is not null then 'conflict'
      else 'raced'
    end,
    coalesce(k.task_id, s.task_id), c.refusal, null::boolean
  from entry e
  left join known k using (n)
  left join checked c using (n)
  left join first_of_key f on f.key = e.key
  left join stored s on s.key = e.key and c.refusal is null
  left join enqueued q on q.id = s.task_id
  order by e.n
  loop
    if outcome = 'raced' then  -- another session stored the key after our snapshot and has committed
      select r.task_id, r.fingerprint = sha256(convert_to(((p_entries->(ordinal - 1)) - 'key')::text, 'UTF8'))
      into task_id, v_same from pipeline.receipt r where r.queue = p_queue and r.key = send.key;
      outcome := case when v_same then 'duplicate' else 'conflict' end;
    end if;
    return next;
  end loop;

  perform pipeline._wake(p_queue);
end
$$;
