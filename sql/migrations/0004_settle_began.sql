-- When the transaction began that ended an attempt: with ended_at, how long its finish took, publishing included.
-- Null for attempts of before. The default is the transaction's own start, so no function has to know of it.
set local role pipeline_owner;

alter table pipeline.attempt add column settle_began_at timestamptz;
alter table pipeline.attempt alter column settle_began_at set default now();
