/* The protocol of ../functions as a model that spin explores in every order of steps. `make verify` checks it, whole
 * and with each guard taken out; README.md says what stands for what, and what is left out.
 *
 * A transaction is its locks, one blocking step each and in the order of the SQL, and then one step that reads again
 * what the locks protect and commits. Nothing shows before that step; a process that dies before it leaves nothing but
 * its lease. Clocks are chance: any lease may be judged expired at any moment, so no proof rests on one.
 */

/* Bounds. FAULTS is how often, in one run, something may go wrong: a death, a lease judged gone while its worker lives,
 * a failed attempt, a lost answer. */
#ifndef BATCHES
#define BATCHES 2
#endif
#ifndef JOBS
#define JOBS 0 /* tasks of no execution, from send(): 0 or 1 */
#endif
#ifndef GENERATIONS
#define GENERATIONS 1
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef OPERATORS
#define OPERATORS 0
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#define STRICT 0
#define PARTIAL 1
#define ABORT 2
#ifndef POLICY
#define POLICY STRICT
#endif

/* Places of tasks, one per thing that can be done: each batch and the callback in each generation, and the job. */
#define EACH 3
#define CALLBACK 2
#define JOB 9
#define PLACES 10
#define GEN(s) ((s) / EACH + 1)
#define ITEM(s) ((s) % EACH)
#define IS_BATCH(s) ((s) != JOB && ITEM(s) < CALLBACK)
#define IS_CALLBACK(s) ((s) != JOB && ITEM(s) == CALLBACK)
#define TOKENS ((BATCHES + 1) * GENERATIONS + JOBS + FAULTS + 1)

#define ABSENT 0 /* tasks */
#define READY 1
#define LEASED 2

#define NONE 0 /* dead letters */
#define WAITING 1
#define RESOLVED 2

#define OPEN 0 /* batches: waiting for their rows, then where they ended */
#define COMMITTED 1
#define DEAD 2
#define DISCARDED 3
#define RELEASED 4

#define SEALED 0 /* the execution */
#define FINISHED 1
#define ENDED 2 /* cancelled, aborted or expired */

#define LIVE 0 /* attempts */
#define DONE 1
#define LOST 2
#define FENCED 3
#define FAILED 4

byte task[PLACES];
byte holder[PLACES]; /* the token of the lease */
bit task_lock[PLACES];
byte letter[PLACES];
bit letter_lock[PLACES];

byte batch[BATCHES];
byte rows[BATCHES];       /* how many attempts' rows the sink shows */
byte rows_of[BATCHES];    /* the generation that they are of */
byte batch_of[BATCHES];   /* the generation that last had it done */
byte state = SEALED;
byte generation = 1;
byte settled;
byte called_for;          /* execution.callback_generation */
bit execution_lock;

byte outcome[TOKENS];
bit dead[TOKENS];         /* its process is gone */
bit written[TOKENS];      /* its output is there, seen by nobody until a commit */
byte next_token = 1;
byte faults = FAULTS;

/* What a watcher from outside counts. */
byte callbacks_made[4];
byte callbacks_done[4];
byte job_done;
bit callback_discarded;

#ifdef MARKER_FIRST
bit marker[BATCHES];
#endif
#ifdef RESET_EPOCH
byte epoch[PLACES];
byte fence[PLACES];
#endif

#define IS_OVER(s) ((s) != JOB && (state != SEALED || GEN(s) != generation))
#define CLAIMABLE(s) (task[s] == READY && !task_lock[s])
#define GOES(s) (task[s] == LEASED && !task_lock[s] && (dead[holder[s]] || faults > 0))
#define ANY(what) (what(0) || what(1) || what(2) || what(3) || what(4) || what(5) || what(6) || what(7) || what(8) || what(9))
#define PICK(what, s) \
  if \
  :: what(0) -> s = 0 :: what(1) -> s = 1 :: what(2) -> s = 2 :: what(3) -> s = 3 :: what(4) -> s = 4 \
  :: what(5) -> s = 5 :: what(6) -> s = 6 :: what(7) -> s = 7 :: what(8) -> s = 8 :: what(9) -> s = 9 \
  fi

#ifdef RESET_EPOCH
#define IS_HOLDER(s, tok) (task[s] == LEASED && fence[s] == my_fence)
#else
#ifdef NO_TOKEN
#define IS_HOLDER(s, tok) (task[s] == LEASED)
#else
#define IS_HOLDER(s, tok) (task[s] == LEASED && holder[s] == tok)
#endif
#endif

/* barrier.sql, _barrier_reached: the one place where callbacks come from. The caller holds the execution. */
inline barrier_reached() {
  if
  :: state == SEALED && settled == BATCHES && called_for < generation ->
     assert(callbacks_made[generation] == 0);
     callbacks_made[generation]++;
     assert(task[(generation - 1) * EACH + CALLBACK] == ABSENT);
     task[(generation - 1) * EACH + CALLBACK] = READY;
     called_for = generation
  :: else
  fi
}

/* barrier.sql, _end_early: a batch that shows rows goes back to them, the others' files are free for others. */
inline end_early() {
  state = ENDED;
  n = 0;
  do
  :: n < BATCHES ->
     if
#ifdef ABORT_SKIPS_FINISHING
     :: (batch[n] == OPEN || batch[n] == DEAD) && task_lock[(generation - 1) * EACH + n] -> skip
     :: (batch[n] == OPEN || batch[n] == DEAD) && !task_lock[(generation - 1) * EACH + n] ->
#else
     :: batch[n] == OPEN || batch[n] == DEAD ->
#endif
        if
        :: rows[n] > 0 -> batch[n] = COMMITTED
        :: else -> batch[n] = RELEASED
        fi
     :: else
     fi;
     n++
  :: else -> break
  od;
  n = 0
}

/* dead_letter.sql, _bury. The caller holds the task, and the execution of a batch. */
inline bury(s) {
  assert(letter[s] != WAITING);
  letter[s] = WAITING;
  task[s] = ABSENT; holder[s] = 0;
  if
  :: IS_BATCH(s) && !IS_OVER(s) && batch[ITEM(s)] == OPEN ->
     batch[ITEM(s)] = DEAD;
     if
     :: POLICY == PARTIAL -> assert(settled < BATCHES); settled++; barrier_reached()
     :: POLICY == ABORT -> end_early()
     :: else
     fi
  :: else
  fi
}

/* worker.sql, _hand_back: a task of what is over leaves the queue instead. */
inline hand_back(s) {
  holder[s] = 0;
  if
  :: IS_OVER(s) -> task[s] = ABSENT
  :: else -> task[s] = READY
  fi
}

/* The publish step of a finish becomes visible. Rows of an earlier generation are replaced; rows of the same one,
 * which must not be there, would be doubled. */
inline publish(s, tok) {
  assert(written[tok]);                       /* nobody discarded the output of a living attempt */
  assert(state != ENDED && GEN(s) == generation);
  if
  :: rows_of[ITEM(s)] < GEN(s) -> rows[ITEM(s)] = 1; rows_of[ITEM(s)] = GEN(s)
  :: else -> rows[ITEM(s)]++
  fi;
  assert(rows[ITEM(s)] == 1)
}

inline settle_batch(s) {
  assert(settled < BATCHES);                  /* the barrier never goes below zero */
  assert(rows[ITEM(s)] == 1 && rows_of[ITEM(s)] == GEN(s));
  batch[ITEM(s)] = COMMITTED;
  settled++
}

inline die() {
  dead[tok] = 1;
  goto again
}

proctype Worker() {
  byte s, tok, n;
#ifdef RESET_EPOCH
  byte my_fence;
#endif
#ifdef BARRIER_UNLOCKED
  byte seen;
#endif
#ifdef CALLBACK_AFTER_COMMIT
  bit fire;
#endif
again:
  atomic { s = 0; tok = 0; n = 0 }
#ifdef RESET_EPOCH
  my_fence = 0;
#endif
end:
  /* claim.sql: a ready task that nobody has locked, with a token that never was. What is over is sifted out. */
  atomic {
    ANY(CLAIMABLE);
    PICK(CLAIMABLE, s);
    if
    :: IS_OVER(s) -> task[s] = ABSENT; goto again
    :: else
    fi;
#ifdef MARKER_FIRST
    if
    :: IS_BATCH(s) && marker[ITEM(s)] ->      /* "done already": skipped, and acked */
       d_step { task[s] = ABSENT; settle_batch(s); barrier_reached() }
       goto again
    :: IS_BATCH(s) && !marker[ITEM(s)] -> marker[ITEM(s)] = 1
    :: else
    fi;
#endif
    assert(next_token < TOKENS);
    tok = next_token; next_token++;
#ifdef RESET_EPOCH
    epoch[s]++; fence[s] = epoch[s]; my_fence = epoch[s];
#endif
    task[s] = LEASED; holder[s] = tok
  }

  /* The work: note_output, then rows where nobody reads. */
  if
  :: written[tok] = 1
  :: atomic { faults > 0 -> faults--; die() }
  :: atomic { faults > 0 -> faults--; goto fail }
  fi;

finish:
  /* finish.sql, lock_leases: wait for the row, then look whether the token is still the current one. */
  atomic {
    !task_lock[s];
    if
    :: IS_HOLDER(s, tok) -> task_lock[s] = 1
    :: else -> goto refused
    fi
  }
  if
  :: skip
  :: atomic { faults > 0 -> faults--; task_lock[s] = 0; die() }
  fi;
  if
  :: s == JOB ->
     d_step { assert(holder[s] == tok); job_done++; assert(job_done == 1); outcome[tok] = DONE; task[s] = ABSENT; holder[s] = 0; task_lock[s] = 0 }
     goto committed
  :: else
  fi;
#ifdef BARRIER_UNLOCKED
  seen = settled;
#else
  atomic { !execution_lock; execution_lock = 1 }
#endif
  if
  :: skip
  :: atomic { faults > 0 -> faults--; task_lock[s] = 0; execution_lock = 0; die() }
  fi;
  atomic {
    if
#ifdef FINISH_BLIND
    :: false ->
#else
    :: IS_OVER(s) || (IS_BATCH(s) && batch[ITEM(s)] != OPEN) ->
#endif
       task_lock[s] = 0; execution_lock = 0; goto hand_it_back
    :: else ->
       assert(holder[s] == tok);              /* a zombie's finish is refused */
       if
       :: IS_CALLBACK(s) ->
          assert(settled == BATCHES);
          callbacks_done[GEN(s)]++;
          assert(callbacks_done[GEN(s)] == 1);
          state = FINISHED
       :: else ->
          publish(s, tok);
#ifdef BARRIER_UNLOCKED
          settled = seen;
#endif
          settle_batch(s);
#ifdef CALLBACK_AFTER_COMMIT
          fire = (settled == BATCHES);
#else
          barrier_reached()
#endif
       fi;
       outcome[tok] = DONE;
       task[s] = ABSENT; holder[s] = 0; task_lock[s] = 0; execution_lock = 0
    fi
  }
#ifdef CALLBACK_AFTER_COMMIT
  if
  :: fire -> 
     if
     :: d_step { fire = 0; barrier_reached() }
     :: atomic { faults > 0 -> faults--; fire = 0; goto again }
     fi
  :: else
  fi;
#endif
committed:
  if
  :: goto again
  :: atomic { faults > 0 -> faults--; goto finish }   /* the answer was lost: asked again */
  fi;

fail:
  /* finish.sql, fail: hand back, or a dead letter with what the policy says, in one transaction. */
  atomic {
    !task_lock[s];
    if
    :: IS_HOLDER(s, tok) -> task_lock[s] = 1
    :: else -> goto refused
    fi
  }
  if
  :: d_step { outcome[tok] = FAILED; hand_back(s); task_lock[s] = 0 }
#if OPERATORS > 0 || POLICY != STRICT
  :: if
     :: s != JOB -> atomic { !execution_lock; execution_lock = 1 }
     :: else
     fi;
     d_step {
       outcome[tok] = FAILED;
       if
       :: IS_OVER(s) -> hand_back(s)
       :: else -> bury(s)
       fi;
       task_lock[s] = 0;
       if
       :: s != JOB -> execution_lock = 0
       :: else
       fi
     }
#endif
  fi;
  goto again;

hand_it_back:
  /* finish.sql, release: after LeaseLost because the execution ended. */
  atomic {
    !task_lock[s];
    if
    :: IS_HOLDER(s, tok) -> outcome[tok] = FAILED; hand_back(s)
    :: else
    fi
  }
  goto again;

refused:
  /* finish.sql, _past: the stored answer, or lost; one that was lost and came back is remembered as fenced. */
  atomic {
    assert(outcome[tok] != LIVE);
    if
    :: outcome[tok] == LOST -> outcome[tok] = FENCED
    :: else
    fi
  }
  goto again
}

/* claim.sql, _take_back: who is gone is judged by clocks and locks, rightly or wrongly. Passes over what is locked. */
proctype TakeBack() {
  byte s, n;
end:
  do
  :: atomic {
       ANY(GOES);
       PICK(GOES, s);
       if
       :: dead[holder[s]]
       :: else -> faults--
       fi;
       outcome[holder[s]] = LOST;
       if
       :: hand_back(s)
#if OPERATORS > 0 || POLICY != STRICT
       :: !IS_OVER(s) && (s == JOB || !execution_lock) -> bury(s)
#endif
       fi;
       s = 0
     }
  od
}

/* A person, and another one at the same time, before the same dead letter. */
#if OPERATORS > 0
#define LETTER(s) (letter[s] == WAITING)
#define REPLAYABLE(s) (s == JOB || (!IS_OVER(s) && (IS_CALLBACK(s) || (batch[ITEM(s)] == DEAD && !(POLICY == PARTIAL && called_for == generation)))))
proctype Operator() {
  byte s;
end:
  atomic { ANY(LETTER); PICK(LETTER, s) }
#ifndef UNLOCKED_REPLAY
  /* dead_letter.sql, _waiting_letter. */
  atomic {
    !letter_lock[s];
    if
    :: letter[s] == WAITING -> letter_lock[s] = 1
    :: else -> goto not_found
    fi
  }
#endif
  if
  :: s != JOB -> atomic { !execution_lock; execution_lock = 1 }
  :: else
  fi;
  if
  :: d_step { /* dead_letter.sql, replay */
       if
#ifdef UNLOCKED_REPLAY
       :: task[s] != ABSENT -> skip           /* the primary key refuses it while the first one is there */
       :: task[s] == ABSENT && REPLAYABLE(s) ->
#else
       :: REPLAYABLE(s) ->
#endif
          assert(task[s] == ABSENT);
          task[s] = READY;
          letter[s] = RESOLVED;
#ifdef RESET_EPOCH
          epoch[s] = 0;
#endif
          if
          :: s == JOB -> assert(job_done == 0)   /* it comes back once */
          :: IS_BATCH(s) ->
             batch[ITEM(s)] = OPEN;
             if
             :: POLICY == PARTIAL -> assert(settled > 0); settled--
             :: else
             fi
          :: else
          fi
       :: else
       fi;
       letter_lock[s] = 0;
       if
       :: s != JOB -> execution_lock = 0
       :: else
       fi
     }
  :: d_step { /* dead_letter.sql, discard */
       if
       :: IS_CALLBACK(s) && !IS_OVER(s) -> state = FINISHED; callback_discarded = 1
       :: IS_BATCH(s) && batch[ITEM(s)] == DEAD && GEN(s) == batch_of[ITEM(s)] ->
          if
          :: rows[ITEM(s)] > 0 -> batch[ITEM(s)] = COMMITTED
          :: else -> batch[ITEM(s)] = DISCARDED
          fi;
          if
          :: !IS_OVER(s) && POLICY != PARTIAL -> assert(settled < BATCHES); settled++; barrier_reached()
          :: else
          fi
       :: else
       fi;
       letter[s] = RESOLVED; letter_lock[s] = 0;
       if
       :: s != JOB -> execution_lock = 0
       :: else
       fi
     }
  fi;
not_found:
  skip
}
#endif

/* barrier.sql, cancel: the execution's row alone. */
#ifdef CANCEL
proctype Cancel() {
  byte n;
end:
  atomic { state == SEALED && !execution_lock; execution_lock = 1 }
  d_step {
    if
    :: state == SEALED -> end_early()
    :: else
    fi;
    execution_lock = 0
  }
}
#endif

/* barrier.sql, rerun: of a finished execution, or of one whose re-run was cancelled. All batches, or the first. */
#if GENERATIONS > 1
#define HELD(s) (letter_lock[s])
#define MAY_RERUN (state == FINISHED || (state == ENDED && generation > 1))
proctype Rerun() {
  byte n, m, asked;
end:
  do
  :: asked < GENERATIONS - 1 && MAY_RERUN ->
     asked++;
     /* Dead letters come first in the lock order. */
     atomic {
       !ANY(HELD);
       for (n : 0 .. PLACES - 1) {
         if
         :: letter[n] == WAITING && n != JOB -> letter_lock[n] = 1
         :: else
         fi
       }
       n = 0
     }
     atomic { !execution_lock; execution_lock = 1 }
     if
     :: m = BATCHES                            /* all of them */
     :: m = 1                                  /* or the first alone */
     fi;
     d_step {
       if
       :: MAY_RERUN && batch[m - 1] != RELEASED && (m == BATCHES || batch[0] != RELEASED) ->
#ifndef RESET_GENERATION
          generation++;
#endif
          state = SEALED; settled = 0;
          for (n : 0 .. BATCHES - 1) {
            if
            :: batch[n] == RELEASED -> settled++   /* it has left the execution, with its files */
            :: batch[n] != RELEASED && n < m ->
               batch[n] = OPEN; batch_of[n] = generation;
               assert(task[(generation - 1) * EACH + n] == ABSENT);
               task[(generation - 1) * EACH + n] = READY
            :: else -> settled++                   /* carried over */
            fi
          }
       :: else
       fi;
       for (n : 0 .. PLACES - 1) {
         if
         :: letter_lock[n] ->
            letter_lock[n] = 0;
            if
            :: GEN(n) < generation && (ITEM(n) < m || ITEM(n) == CALLBACK) -> letter[n] = RESOLVED
            :: else
            fi
         :: else
         fi
       }
       n = 0; m = 0; execution_lock = 0
     }
  od
}
#endif

/* reaper.sql, orphaned_outputs: what an attempt wrote goes only after a transaction has ended the attempt. */
#ifdef REAPER
#ifdef REAPER_TRUSTS_EXPIRY
#define ORPHAN(t) (t < next_token && written[t] && outcome[t] != DONE)
#else
#define ORPHAN(t) (t < next_token && written[t] && outcome[t] > DONE)
#endif
proctype Reaper() {
  byte t;
end:
  do
  :: atomic { ANY(ORPHAN); PICK(ORPHAN, t) }
     d_step {
       assert(outcome[t] != DONE);            /* between the look and the deed it did not come to life */
       written[t] = 0; t = 0
     }
  od
}
#endif

/* When nobody can take another step: nothing is lost, and nothing waits that should not. */
proctype Judge() {
  byte n;
  timeout;
  d_step {
    assert(!execution_lock);
    for (n : 0 .. PLACES - 1) {
      assert(!task_lock[n] && !letter_lock[n]);
      assert(task[n] == ABSENT)
    }
    if
    :: state == SEALED ->                     /* blocked, and it shows: a dead letter waits for a person */
       n = 0;
       do
       :: n < EACH && letter[(generation - 1) * EACH + n] == WAITING -> break
       :: n < EACH && letter[(generation - 1) * EACH + n] != WAITING -> n++
       :: else -> break
       od;
       assert(n < EACH)
    :: state == FINISHED -> assert(callbacks_made[generation] == 1 && (callbacks_done[generation] == 1 || callback_discarded))
    :: state == ENDED -> assert(callbacks_done[generation] == 0)
    fi;
    for (n : 0 .. BATCHES - 1) {
      if                                      /* each batch is in exactly one place */
      :: batch[n] == COMMITTED -> assert(rows[n] == 1)
      :: batch[n] == RELEASED || batch[n] == DISCARDED -> assert(rows[n] == 0)
      :: batch[n] == DEAD -> assert(letter[(batch_of[n] - 1) * EACH + n] == WAITING)
      :: else -> assert(false)
      fi
    }
    assert(JOBS == 0 || job_done == 1 || letter[JOB] != NONE)
  }
}

init {
  byte i;
  atomic {
    for (i : 0 .. BATCHES - 1) { task[i] = READY; batch_of[i] = 1 }   /* submit.sql: one transaction */
    if
    :: JOBS > 0 -> task[JOB] = READY
    :: else
    fi;
    for (i : 1 .. WORKERS) { run Worker() }
    run TakeBack();
#if OPERATORS > 0
    for (i : 1 .. OPERATORS) { run Operator() }
#endif
#ifdef CANCEL
    run Cancel();
#endif
#if GENERATIONS > 1
    run Rerun();
#endif
#ifdef REAPER
    run Reaper();
#endif
    run Judge();
    i = 0
  }
}
