-- What compaction remembers outside of any transaction: when a hot table may next be made small, in milliseconds since
-- 1970 (a try that came to nothing says so, and rolls back), and the transaction that last did it, for every snapshot to see.
set local role pipeline_owner;

create sequence pipeline.compact_after as bigint;
create sequence pipeline.compacted_by as bigint;
