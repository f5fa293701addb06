-- The outbox: external effects, recorded with a commit, delivered after it, at least once.
set local role pipeline_owner;

-- Leases pending rows to a dispatcher. A dispatcher that dies leaves them to the next one.
create or replace function pipeline.claim_outbox(p_limit int default 20, p_lease interval default '60 s', p_webhooks boolean default true)
returns table (id bigint, token uuid, key text, execution text, generation int, event text, destination text, payload jsonb, attempts int)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  with due as (
    select o.id from pipeline.outbox o
    where o.state = 'pending' and o.next_at <= clock_timestamp() and (o.leased_until is null or o.leased_until < clock_timestamp())
      and (o.destination <> '') = p_webhooks
    order by o.next_at, o.id limit p_limit for update skip locked
  ),
  leased as (
    update pipeline.outbox o
    set token = pipeline._new_token(), leased_until = clock_timestamp() + p_lease, attempts = o.attempts + 1
    from due d where o.id = d.id
    returning o.*
  )
  select l.id, l.token, l.key, x.key, l.generation, l.event, l.destination, l.payload, l.attempts
  from leased l left join pipeline.execution x on x.id = l.execution_id order by l.id;
end;

-- How a delivery went. Fenced by the row's token: a dispatcher that was too slow changes nothing.
create or replace function pipeline.settle_outbox(p_id bigint, p_token uuid, p_error text default null, p_max_attempts int default 10)
returns text
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  update pipeline.outbox set
    state = case when p_error is null then 'delivered' when attempts >= p_max_attempts then 'dead' else 'pending' end,
    delivered_at = case when p_error is null then clock_timestamp() end,
    error = pipeline._clip(p_error, 4000), token = null, leased_until = null,
    next_at = clock_timestamp() + least('1 hour'::interval, '1 s'::interval * power(2, least(attempts, 12))) * (0.5 + random() / 2)
  where id = p_id and token = p_token and state = 'pending'
  returning state;
end;

-- Gives a dead delivery another round, with the same key.
create or replace function pipeline.replay_outbox(p_id bigint) returns boolean
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
  update pipeline.outbox set state = 'pending', attempts = 0, next_at = clock_timestamp(), error = null
  where id = p_id and state = 'dead' returning true;
end;
