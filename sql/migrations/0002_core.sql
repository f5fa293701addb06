-- Every piece of state, in tables that can be queried. Written only through functions.
set local role pipeline_owner;

create table pipeline.queue (
  name              text primary key check (name ~ '^[A-Za-z0-9_.:-]{1,100}$'),
  lease             interval not null default '30 s' check (lease between '1 s' and '1 day'),
  grace             interval not null default '1250 ms' check (grace >= '100 ms'),
  max_attempts      int not null default 3 check (max_attempts between 1 and 1000),
  max_run           interval not null default '1 hour' check (max_run > '0'),
  backoff_base      interval not null default '5 s' check (backoff_base >= '0'),
  backoff_cap       interval not null default '10 min' check (backoff_cap >= '0'),
  max_payload_bytes int not null default 65536 check (max_payload_bytes > 0),
  breaker_after     int not null default 20 check (breaker_after >= 0),  -- 0: no breaker
  receipt_retention interval not null default '30 days' check (receipt_retention >= '0'),
  history_retention interval not null default '30 days' check (history_retention >= '1 hour'),
  paused_at         timestamptz,
  paused_by         text check (paused_by in ('person', 'breaker')),
  pause_reason      text,
  resumed_at        timestamptz,  -- the breaker looks only at failures after this
  check ((paused_at is null) = (paused_by is null))
);

create table pipeline.pipeline (
  name        text primary key check (name ~ '^[A-Za-z_][A-Za-z0-9_]{0,99}$'),
  queue       text not null references pipeline.queue,
  policy      text not null default 'strict' check (policy in ('strict', 'partial', 'abort')),
  bad_files   text not null default 'quarantine' check (bad_files in ('quarantine', 'fail')),
  batch_files int not null default 100 check (batch_files between 1 and 100000),
  batch_bytes bigint not null default 268435456 check (batch_bytes > 0),
  deadline    interval check (deadline > '0'),
  notify      text[] not null default '{}',  -- webhook addresses told of every end
  schema      text,                          -- inferred once, then pinned
  horizon     timestamptz,                   -- files modified before it are refused as too old
  updated_at  timestamptz not null default now()
);

create table pipeline.execution (
  id                  bigint generated always as identity primary key,
  key                 text not null unique,
  pipeline            text not null references pipeline.pipeline,
  request_key         text not null check (octet_length(request_key) between 1 and 500),
  fingerprint         bytea not null,
  generation          int not null default 1 check (generation >= 1),
  state               text not null
                      check (state in ('open', 'sealed', 'finished', 'cancelled', 'aborted', 'expired')),
  policy              text not null check (policy in ('strict', 'partial', 'abort')),
  tenant              text not null default '' check (octet_length(tenant) <= 200),
  priority            smallint not null default 0,
  expected            int not null default 0 check (expected >= 0),
  settled             int not null default 0 check (settled >= 0),
  remaining           int generated always as (expected - settled) stored check (remaining >= 0),
  callback_generation int not null default 0,  -- the last generation whose callback task was made
  callback_task       bigint,
  deadline            timestamptz,
  submission          jsonb not null,          -- the lasting answer to the submit
  summary             jsonb,
  ended_reason        text,
  created_at          timestamptz not null default now(),
  sealed_at           timestamptz,
  ended_at            timestamptz,
  reported_generation int not null default 0,  -- what Dagster was told of the callback
  unique (pipeline, request_key),
  check (callback_generation between 0 and generation),
  check ((state in ('open', 'sealed')) = (ended_at is null))
) with (fillfactor = 60);
create index execution_live on pipeline.execution (id) where state in ('open', 'sealed');
create index execution_deadline on pipeline.execution (deadline)
  where state in ('open', 'sealed') and deadline is not null;
create index execution_unreported on pipeline.execution (id)
  where state = 'finished' and reported_generation < generation;

-- The ledger of every file seen. The key is a hash of pipeline, path and version: the unique
-- index on it is what makes "a file version belongs to at most one execution" true.
-- Rows are inserted and then left alone: a file is where its batch is, unless state says otherwise.
create table pipeline.file (
  key          uuid primary key,
  execution_id bigint not null,
  batch        int not null check (batch >= 0),
  ordinal      int not null check (ordinal >= 0),
  state        text check (state in ('quarantined', 'released')),
  size         bigint not null check (size >= 0),
  seen_at      timestamptz not null default now(),
  modified_at  timestamptz,
  path         text not null check (octet_length(path) between 1 and 4096),
  version      text not null check (octet_length(version) <= 500),
  reason       text,
  detail       text,
  check ((state = 'quarantined') <= (reason is not null))
);
create unique index file_place on pipeline.file (execution_id, batch, ordinal);
create index file_quarantined on pipeline.file (execution_id) where state = 'quarantined';

create table pipeline.batch (
  execution_id        bigint not null references pipeline.execution on delete cascade,
  number              int not null check (number >= 0),
  generation          int not null check (generation >= 1),
  state               text not null
                      check (state in ('waiting', 'committed', 'dead', 'discarded', 'released')),
  files               int not null check (files >= 0),
  bytes               bigint not null check (bytes >= 0),
  token               uuid,       -- the attempt whose rows are visible in the sink
  rows_in             bigint,
  rows_out            bigint,
  rows_rescued        bigint,
  quarantined         int not null default 0 check (quarantined between 0 and files),
  result              jsonb,
  committed_at        timestamptz,
  reported_generation int not null default 0,
  primary key (execution_id, number),
  check ((state = 'committed') <= (token is not null))
) with (fillfactor = 80);
create index batch_unreported on pipeline.batch (execution_id, number)
  where state = 'committed' and reported_generation < generation;

-- What tasks are sorted by before age. A lane is made once; only its floor moves.
create table pipeline.lane (
  id       int generated always as identity primary key,
  queue    text not null references pipeline.queue,
  pipeline text not null,  -- '' for tasks of no pipeline
  kind     text not null check (kind ~ '^[A-Za-z0-9_.:-]{1,100}$'),
  priority smallint not null,
  tenant   text not null,
  floor    timestamptz not null default '-infinity',  -- no ready task of it was ready before
  unique (queue, pipeline, kind, priority, tenant)
) with (fillfactor = 50);

create sequence pipeline.task_id as bigint;

-- Only live work. No foreign keys: malformed work must be able to arrive, to be dead-lettered.
create table pipeline.task (
  id           bigint primary key default nextval('pipeline.task_id'),
  lane_id      int not null,
  execution_id bigint,
  generation   int,
  batch        int check (batch >= 0),
  ready_at     timestamptz not null,  -- from pipeline._ready_at, and no other clock
  attempts     int not null default 0 check (attempts >= 0),
  max_attempts int not null check (max_attempts >= 1),
  suspect      boolean not null default false,  -- its last worker died: runs alone
  token        uuid,
  worker       uuid,
  claim_id     uuid,
  claimed_at   timestamptz,
  run_deadline timestamptz,
  key          text,
  payload      jsonb,
  check ((token is null) = (worker is null)),
  check ((token is null) = (claimed_at is null)),
  check ((token is null) = (run_deadline is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
-- Each index but the key's is of use only to whoever asks by its first column: statistics of an empty queue would
-- have the planner walk any of them.
create index task_ready on pipeline.task (lane_id, ready_at, id) where token is null and not suspect;
create index task_suspect on pipeline.task (ready_at, id) where token is null and suspect;
create index task_leased on pipeline.task (worker, claimed_at) where worker is not null;
create index task_execution on pipeline.task (execution_id, batch) where execution_id is not null;

-- One row per ended lease; a living lease is in its task. Append-only, but for lost -> fenced.
create table pipeline.attempt (
  token        uuid primary key,
  task_id      bigint not null,
  queue        text not null,
  kind         text not null,
  execution_id bigint,
  generation   int,
  batch        int,
  number       int not null,
  worker       uuid not null,
  alone        boolean not null,
  claimed_at   timestamptz not null,
  ended_at     timestamptz not null default clock_timestamp(),
  outcome      text not null check (outcome in ('committed', 'failed', 'released', 'lost', 'fenced')),
  error_class  text,
  error        text,
  result       jsonb
);
create index attempt_execution on pipeline.attempt (execution_id, batch, claimed_at);
create index attempt_task on pipeline.attempt (task_id);
create index attempt_recent on pipeline.attempt (queue, ended_at);

-- Places that attempts wrote to, so that what never became visible can be discarded.
create table pipeline.attempt_output (
  token      uuid not null,
  sink       text not null,
  location   jsonb not null,
  created_at timestamptz not null default now(),
  primary key (token, sink)
);

create table pipeline.receipt (
  queue       text not null,
  key         text not null check (octet_length(key) between 1 and 500),
  task_id     bigint not null,
  fingerprint bytea not null,
  created_at  timestamptz not null default now(),
  primary key (queue, key)
);
create index receipt_age on pipeline.receipt (queue, created_at);

create table pipeline.dead_letter (
  id           bigint generated always as identity primary key,
  task_id      bigint not null,
  queue        text not null,
  pipeline     text not null,
  kind         text not null,
  priority     smallint not null,
  tenant       text not null,
  execution_id bigint,
  generation   int,
  batch        int,
  attempts     int not null,
  max_attempts int not null,
  key          text,
  payload      jsonb,
  reason       text not null,
  error_class  text,
  error        text,
  died_at      timestamptz not null default clock_timestamp(),
  resolution   text check (resolution in ('replayed', 'discarded', 'superseded', 'ended')),
  resolved_at  timestamptz,
  resolved_by  text,
  resolved_why text,
  check ((resolution is null) = (resolved_at is null))
);
create index dead_letter_waiting on pipeline.dead_letter (queue, id) where resolution is null;
create index dead_letter_execution on pipeline.dead_letter (execution_id);
create unique index dead_letter_once on pipeline.dead_letter (task_id) where resolution is null;

create table pipeline.outbox (
  id           bigint generated always as identity primary key,
  key          text not null unique,   -- the idempotency key a receiver sees; never changes
  execution_id bigint not null,
  generation   int not null,
  event        text not null,
  destination  text not null default '',  -- '' : for Dagster's eyes, nothing leaves the house
  payload      jsonb not null,
  state        text not null default 'pending' check (state in ('pending', 'delivered', 'dead')),
  attempts     int not null default 0,
  next_at      timestamptz not null default now(),
  token        uuid,
  leased_until timestamptz,
  error        text,
  created_at   timestamptz not null default now(),
  delivered_at timestamptz
);
create index outbox_pending on pipeline.outbox ((destination <> ''), next_at, id) where state = 'pending';
create index outbox_execution on pipeline.outbox (execution_id);

create table pipeline.worker (
  id         uuid primary key,
  queue      text not null,
  name       text not null,
  run_id     text,
  pipelines  text[],                 -- null: any
  kinds      text[],                 -- null: any
  lease      interval not null,
  grace      interval not null,
  lock_key   bigint,                 -- null: behind a pooler, where locks lie
  started_at timestamptz not null default clock_timestamp(),
  beat_at    timestamptz not null default clock_timestamp(),
  floor      timestamptz not null default '-infinity',  -- no lease that it holds was claimed before
  stopped_at timestamptz
) with (fillfactor = 50);

-- Answers of the operators' verbs, so that a lost one can be asked for again.
create table pipeline.action (
  request_id uuid primary key,
  verb       text not null,
  subject    text not null,
  answer     jsonb not null,
  at         timestamptz not null default now()
);

-- Emptied by a crash of Postgres: its row is the first moment anyone was seen after it.
-- pg_postmaster_start_time alone misses the restart of all sessions after one backend crashed.
create unlogged table pipeline.boot (
  one     boolean primary key default true check (one),
  seen_at timestamptz not null default clock_timestamp()
);
