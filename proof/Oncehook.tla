------------------------------ MODULE Oncehook ------------------------------
(***************************************************************************)
(* The inbox: claim, lease, fence, settle, outbox, relay, consumers,       *)
(* replay and prune.                                                       *)
(*                                                                         *)
(* One step is one committed transaction, one call outside the database,   *)
(* or one fault.  The comment above each action names the statement or the *)
(* function that it stands for.  Time has no number: a lease is live until *)
(* `Expire`, which can happen at any moment, as a stalled process, a slow  *)
(* database or a clock that jumps make it.  An event is inside its window  *)
(* until `Age`.                                                            *)
(*                                                                         *)
(* Bug = "none" is the design.  Every other value replaces one rule by a   *)
(* known mistake, and TLC must then find the invariant that it violates.   *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS Events, Consumers, Processes, MaxAttempts, MaxEffectAttempts, MaxReplays, MaxDeliveries, MaxFaults, OneTask,
  Bug

Receipts == Events \X Consumers      \* a receipt per event and consumer (decision 052)
Effects  == Events \X (0..MaxReplays) \* <<event, key>>: a handler requests one effect, with the key 0 (docs/effects.md)
None     == "none"
Idle     == [phase |-> None]

VARIABLES
  \* -- the database ----------------------------------------------------------------------------------------------
  status,     \* [Receipts -> status], None if there is no row
  fence,      \* [Receipts -> Nat], the column lease
  attempts,   \* [Receipts -> Nat]
  live,       \* [Receipts -> BOOLEAN], lease_until is not in the past
  holder,     \* [Receipts -> process or None], the column worker
  epoch,      \* [Receipts -> Nat], the column replays
  ledger,     \* [Receipts -> Nat], how often the handler's writes of this epoch are committed
  audits,     \* [Receipts -> Nat], rows of webhook_audit about replays of the receipt
  old,        \* [Events -> BOOLEAN], the event is past its dedupe window
  estatus, efence, eattempts, elive,  \* [Effects -> ...], a row of webhook_effects
  \* -- the outside world -----------------------------------------------------------------------------------------
  acked,      \* [Events -> BOOLEAN], a sender saw a 2xx
  called,     \* [Effects -> BOOLEAN], the target was called and answered
  \* -- processes: lost in a crash --------------------------------------------------------------------------------
  delivery,   \* [Processes -> a delivery that the receiver answers]
  job,        \* [Processes -> an attempt of the worker, or a rescue]
  call,       \* [Processes -> an attempt of the relay, or a rescue]
  \* -- history, for the invariants -------------------------------------------------------------------------------
  claimed,    \* [Events -> BOOLEAN], a claim of the event has committed
  copies,     \* [Events -> Nat], how many claims inserted rows of the event
  pruned,     \* [Events -> {None, "past", "inside", "unfinished"}]
  starts,     \* [Receipts -> Nat], leases of this epoch that were not released
  stale,      \* BOOLEAN, a write with an old fence changed a row
  redone,     \* BOOLEAN, an effect that was done became due again without being asked for
  deliveries, faults

database == <<status, fence, attempts, live, holder, epoch, ledger, audits, old>>
outbox   == <<estatus, efence, eattempts, elive>>
history  == <<claimed, copies, pruned, starts, stale, redone>>
vars     == <<database, outbox, acked, called, delivery, job, call, history, deliveries, faults>>

Waiting    == {"received", "retrying"}
Finished   == {"processed", "failed"}
EffectEnds == {"done", "failed"}
IsStored(e) == \A c \in Consumers : status[<<e, c>>] # None

Init ==
  /\ status = [r \in Receipts |-> None]    /\ fence = [r \in Receipts |-> 0]
  /\ attempts = [r \in Receipts |-> 0]     /\ live = [r \in Receipts |-> FALSE]
  /\ holder = [r \in Receipts |-> None]    /\ epoch = [r \in Receipts |-> 0]
  /\ ledger = [r \in Receipts |-> 0]       /\ audits = [r \in Receipts |-> 0]
  /\ old = [e \in Events |-> FALSE]
  /\ estatus = [x \in Effects |-> None]    /\ efence = [x \in Effects |-> 0]
  /\ eattempts = [x \in Effects |-> 0]     /\ elive = [x \in Effects |-> FALSE]
  /\ acked = [e \in Events |-> FALSE]      /\ called = [x \in Effects |-> FALSE]
  /\ delivery = [p \in Processes |-> Idle] /\ job = [p \in Processes |-> Idle]
  /\ call = [p \in Processes |-> Idle]
  /\ claimed = [e \in Events |-> FALSE]    /\ copies = [e \in Events |-> 0]
  /\ pruned = [e \in Events |-> None]      /\ starts = [r \in Receipts |-> 0]
  /\ stale = FALSE /\ redone = FALSE /\ deliveries = 0 /\ faults = 0

\* With OneTask, a process has one delivery, attempt or call at a time, which makes the model smaller: tasks of one process
\* interleave as those of several do.
IsFree(p) == ~OneTask \/ (delivery[p] = Idle /\ job[p] = Idle /\ call[p] = Idle)

Fault == faults < MaxFaults /\ faults' = faults + 1

----------------------------------------------------------------------------
(* The receiver: receiver/steps.py, receiver/claim.py, store/sql/*/claims.sql *)

\* A delivery is verified and read: Receiver._accept. The sender may deliver an event any number of times.
Deliver(p, e) ==
  /\ delivery[p] = Idle /\ IsFree(p) /\ deliveries < MaxDeliveries
  /\ deliveries' = deliveries + 1
  /\ delivery' = [delivery EXCEPT ![p] = [phase |-> "claiming", event |-> e, isNew |-> status[<<e, "main">>] = None]]
  /\ UNCHANGED <<database, outbox, acked, called, job, call, history, faults>>

\* claim + claim_payload + claim_copies in one transaction: INSERT ... ON CONFLICT DO NOTHING. `lost`: the reply is lost.
\* Bug "select then insert": the check is an earlier SELECT. Bug "copies later": other consumers get their rows later.
Claim(p, lost) ==
  /\ delivery[p].phase = "claiming"
  /\ LET e == delivery[p].event
         isNew == IF Bug = "select then insert" THEN delivery[p].isNew ELSE status[<<e, "main">>] = None
         now == IF Bug = "copies later" THEN {"main"} ELSE Consumers
         fresh == {r \in Receipts : isNew /\ r[1] = e /\ r[2] \in now /\ status[r] = None}
     IN /\ status' = [r \in Receipts |-> IF r \in fresh THEN "received" ELSE status[r]]
        /\ claimed' = [claimed EXCEPT ![e] = TRUE]
        /\ copies' = [copies EXCEPT ![e] = @ + (IF isNew THEN 1 ELSE 0)]
        /\ old' = [old EXCEPT ![e] = IF fresh # {} THEN FALSE ELSE @]
        /\ delivery' = [delivery EXCEPT ![p] = IF lost THEN Idle ELSE [phase |-> "stored", event |-> e]]
  /\ IF lost THEN Fault ELSE UNCHANGED faults
  /\ UNCHANGED <<fence, attempts, live, holder, epoch, ledger, audits, outbox, acked, called, job, call, pruned,
                 starts, stale, redone, deliveries>>

\* The second transaction of the bug "copies later".
CopyLater(p) ==
  /\ Bug = "copies later" /\ delivery[p].phase = "stored"
  /\ LET e == delivery[p].event
     IN status' = [r \in Receipts |-> IF r[1] = e /\ status[r] = None THEN "received" ELSE status[r]]
  /\ UNCHANGED <<fence, attempts, live, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, job, call,
                 history, deliveries, faults>>

\* The claim fails before its commit: the sender gets a 503.
RefuseDelivery(p) ==
  /\ delivery[p].phase = "claiming" /\ Fault
  /\ delivery' = [delivery EXCEPT ![p] = Idle]
  /\ UNCHANGED <<database, outbox, acked, called, job, call, history, deliveries>>

\* The 2xx: accepted_response, after the claim's future has its result. Bug "ack before commit": without waiting for it.
Ack(p) ==
  /\ delivery[p].phase \in (IF Bug = "ack before commit" THEN {"claiming", "stored"} ELSE {"stored"})
  /\ Bug = "copies later" => IsStored(delivery[p].event)
  /\ acked' = [acked EXCEPT ![delivery[p].event] = TRUE]
  /\ delivery' = [delivery EXCEPT ![p] = Idle]
  /\ UNCHANGED <<database, outbox, called, job, call, history, deliveries, faults>>

----------------------------------------------------------------------------
(* The worker: worker/*.py, store/sql/*/leases.sql *)

\* lease, lease_serial, lease_turn, lease_listed. Attempts are counted here. `lost`: the reply is lost (a stray lease).
\* Bug "attempt at failure": attempts are counted when an attempt fails.
Lease(p, r, lost) ==
  /\ job[p] = Idle /\ IsFree(p) /\ status[r] \in Waiting
  /\ status' = [status EXCEPT ![r] = "processing"]
  /\ attempts' = [attempts EXCEPT ![r] = IF Bug = "attempt at failure" THEN @ ELSE @ + 1]
  /\ starts' = [starts EXCEPT ![r] = @ + 1]
  /\ fence' = [fence EXCEPT ![r] = @ + 1]
  /\ live' = [live EXCEPT ![r] = TRUE]
  /\ holder' = [holder EXCEPT ![r] = p]
  /\ job' = IF lost THEN job ELSE [job EXCEPT ![p] = [phase |-> "leased", receipt |-> r, token |-> fence[r] + 1]]
  /\ IF lost THEN Fault ELSE UNCHANGED faults
  /\ UNCHANGED <<epoch, ledger, audits, old, outbox, acked, called, delivery, call, claimed, copies, pruned, stale,
                 redone, deliveries>>

\* What every statement that ends an attempt compares: the lease and the status.
\* Bug "unfenced settle": it compares the status only.
Holds(p) ==
  LET r == job[p].receipt
  IN status[r] = "processing" /\ (Bug = "unfenced settle" \/ fence[r] = job[p].token)

\* heartbeat.extend. It extends an expired lease too, if no other process has taken the receipt.
Extend(p) ==
  /\ job[p].phase \in {"leased", "ran", "raised"} /\ Holds(p) /\ ~live[job[p].receipt]
  /\ live' = [live EXCEPT ![job[p].receipt] = TRUE]
  /\ UNCHANGED <<status, fence, attempts, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, job, call,
                 history, deliveries, faults>>

\* The key that a handler requests. Bug "key per replay": the key has the number of the replay.
RequestedEffect(r) == <<r[1], IF Bug = "key per replay" THEN epoch[r] ELSE 0>>

\* record_effects: INSERT ... ON CONFLICT (scope, key) DO NOTHING.
Record(r) ==
  LET x == RequestedEffect(r)
  IN IF estatus[x] = None
     THEN /\ estatus' = [estatus EXCEPT ![x] = "waiting"] /\ eattempts' = [eattempts EXCEPT ![x] = 0]
          /\ UNCHANGED <<efence, elive>>
     ELSE UNCHANGED outbox

\* The handler runs, in a transaction that has not committed yet. Bug "effect outside": the effect's row commits at once.
Run(p, raises) ==
  /\ job[p].phase = "leased"
  /\ job' = [job EXCEPT ![p].phase = IF raises THEN "raised" ELSE "ran"]
  /\ IF Bug = "effect outside" THEN Record(job[p].receipt) ELSE UNCHANGED outbox
  /\ UNCHANGED <<database, acked, called, delivery, call, history, deliveries, faults>>

\* Transaction.settle: the handler's writes, record_effects and settle commit together, or roll back if the fence differs.
\* `lost`: the reply to COMMIT is lost, which Processor._settle_in treats as a failed attempt.
\* Bug "status later": the writes commit before the status.
SettleProcessed(p, lost) ==
  /\ job[p].phase = "ran"
  /\ LET r == job[p].receipt
     IN IF Holds(p) \/ (Bug = "status later" /\ ledger[r] < 2)
        THEN /\ status' = [status EXCEPT ![r] = IF Bug = "status later" THEN @ ELSE "processed"]
             /\ ledger' = [ledger EXCEPT ![r] = @ + 1]
             /\ stale' = (stale \/ fence[r] # job[p].token)
             /\ Record(r)
        ELSE UNCHANGED <<status, ledger, stale, outbox>>
  /\ job' = [job EXCEPT ![p] = IF Bug = "status later" THEN [@ EXCEPT !.phase = "written"]
                               ELSE IF lost THEN [@ EXCEPT !.phase = "raised"] ELSE Idle]
  /\ IF lost THEN Fault ELSE UNCHANGED faults
  /\ UNCHANGED <<fence, attempts, live, holder, epoch, audits, old, acked, called, delivery, call, claimed, copies, pruned,
                 starts, redone, deliveries>>

\* The second transaction of the bug "status later".
SettleLater(p) ==
  /\ job[p].phase = "written"
  /\ status' = IF Holds(p) THEN [status EXCEPT ![job[p].receipt] = "processed"] ELSE status
  /\ job' = [job EXCEPT ![p] = Idle]
  /\ UNCHANGED <<fence, attempts, live, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, call, history,
                 deliveries, faults>>

\* The status after an attempt that failed or whose lease expired: concurrency/calling.after_failure, model/retry.decide.
AfterFailure(r, givesUp) == IF givesUp \/ attempts'[r] >= MaxAttempts THEN "failed" ELSE "retrying"

\* settle of a failed attempt, and the settle of rescue(), with the fence that they hold or have read. A handler that
\* raises Fail gives up.
SettleFailed(p, givesUp) ==
  /\ job[p].phase \in {"raised", "rescuing"}
  /\ givesUp => job[p].phase = "raised"
  /\ LET r == job[p].receipt
     IN IF Holds(p)
        THEN /\ attempts' = [attempts EXCEPT ![r] = IF Bug = "attempt at failure" /\ job[p].phase = "raised" THEN @ + 1 ELSE @]
             /\ status' = [status EXCEPT ![r] = AfterFailure(r, givesUp)]
             /\ stale' = (stale \/ fence[r] # job[p].token)
        ELSE UNCHANGED <<status, attempts, stale>>
  /\ job' = [job EXCEPT ![p] = Idle]
  /\ UNCHANGED <<fence, live, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, call, claimed, copies,
                 pruned, starts, redone, deliveries, faults>>

\* The statement that settles fails, or its reply is lost and the process does not repeat it: the lease expires.
GiveUpSettling(p) ==
  /\ job[p].phase \in {"raised", "rescuing"} /\ Fault
  /\ job' = [job EXCEPT ![p] = Idle]
  /\ UNCHANGED <<database, outbox, acked, called, delivery, call, history, deliveries>>

\* release: a worker that stops, or a Postpone. No attempt is counted. It can change every status of the attempt.
Release(p) ==
  /\ job[p].phase \in {"leased", "ran", "raised"} /\ Fault
  /\ LET r == job[p].receipt
     IN IF Holds(p)
        THEN /\ status' = [status EXCEPT ![r] = IF attempts[r] > 1 THEN "retrying" ELSE "received"]
             /\ attempts' = [attempts EXCEPT ![r] = IF Bug = "attempt at failure" THEN @ ELSE @ - 1]
             /\ starts' = [starts EXCEPT ![r] = @ - 1]
             /\ stale' = (stale \/ fence[r] # job[p].token)
        ELSE UNCHANGED <<status, attempts, starts, stale>>
  /\ job' = [job EXCEPT ![p] = Idle]
  /\ UNCHANGED <<fence, live, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, call, claimed, copies,
                 pruned, redone, deliveries>>

\* release_strays: receipts that this worker leased without knowing it.
ReleaseStray(p, r) ==
  /\ status[r] = "processing" /\ holder[r] = p
  /\ ~(job[p].phase \in {"leased", "ran", "raised"} /\ job[p].receipt = r)
  /\ status' = [status EXCEPT ![r] = IF attempts[r] > 1 THEN "retrying" ELSE "received"]
  /\ attempts' = [attempts EXCEPT ![r] = IF Bug = "attempt at failure" THEN @ ELSE @ - 1]
  /\ starts' = [starts EXCEPT ![r] = @ - 1]
  /\ UNCHANGED <<fence, live, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, job, call, claimed,
                 copies, pruned, stale, redone, deliveries, faults>>

IsHeld(r) == \E p \in Processes : job[p].phase \in {"leased", "ran", "raised"} /\ job[p].receipt = r /\ job[p].token = fence[r]

\* lease_until passes. While its holder lives that is a fault: a stall, a blocked heartbeat or a clock that jumps.
Expire(r) ==
  /\ status[r] = "processing" /\ live[r]
  /\ live' = [live EXCEPT ![r] = FALSE]
  /\ IF IsHeld(r) THEN Fault ELSE UNCHANGED faults
  /\ UNCHANGED <<status, fence, attempts, holder, epoch, ledger, audits, old, outbox, acked, called, delivery, job, call,
                 history, deliveries>>

\* expired: rescue() reads the fence of an expired lease. SettleFailed is its second statement. Bug "no rescue": it does not.
FindExpired(p, r) ==
  /\ Bug # "no rescue" /\ job[p] = Idle /\ IsFree(p) /\ status[r] = "processing" /\ ~live[r]
  /\ job' = [job EXCEPT ![p] = [phase |-> "rescuing", receipt |-> r, token |-> fence[r]]]
  /\ UNCHANGED <<database, outbox, acked, called, delivery, call, history, deliveries, faults>>

----------------------------------------------------------------------------
(* The relay: effects/relay.py, effects/settle.py, store/sql/*/effects.sql *)

\* lease_effects.
LeaseEffect(p, x, lost) ==
  /\ call[p] = Idle /\ IsFree(p) /\ estatus[x] \in {"waiting", "retrying"}
  /\ estatus' = [estatus EXCEPT ![x] = "performing"]
  /\ eattempts' = [eattempts EXCEPT ![x] = @ + 1]
  /\ efence' = [efence EXCEPT ![x] = @ + 1]
  /\ elive' = [elive EXCEPT ![x] = TRUE]
  /\ call' = IF lost THEN call ELSE [call EXCEPT ![p] = [phase |-> "leased", effect |-> x, token |-> efence[x] + 1]]
  /\ IF lost THEN Fault ELSE UNCHANGED faults
  /\ UNCHANGED <<database, acked, called, delivery, job, history, deliveries>>

\* The function is called, with the idempotency key of the effect. Bug "mark before call": after its settle.
CallTarget(p, raises) ==
  /\ call[p].phase = (IF Bug = "mark before call" THEN "marked" ELSE "leased")
  /\ called' = IF raises THEN called ELSE [called EXCEPT ![call[p].effect] = TRUE]
  /\ call' = [call EXCEPT ![p] = IF Bug = "mark before call" THEN Idle
                                 ELSE [@ EXCEPT !.phase = IF raises THEN "raised" ELSE "called"]]
  /\ UNCHANGED <<database, outbox, acked, delivery, job, history, deliveries, faults>>

HoldsEffect(p) ==
  LET x == call[p].effect
  IN IF Bug = "unfenced effect" THEN estatus[x] # None ELSE estatus[x] = "performing" /\ efence[x] = call[p].token

\* settle_effects, after the call: done, or failed, or a retry; and the settle of Relay.rescue(). A lost reply is repeated,
\* and the second statement changes nothing, because the effect is no longer `performing`.
SettleEffect(p) ==
  /\ call[p].phase \in (IF Bug = "mark before call" THEN {"leased", "raised", "rescuing"} ELSE {"called", "raised", "rescuing"})
  /\ LET x == call[p].effect
         isDone == call[p].phase \in {"called", "leased"}
     IN IF HoldsEffect(p)
        THEN /\ estatus' = [estatus EXCEPT ![x] = IF isDone THEN "done"
                                                  ELSE IF eattempts[x] >= MaxEffectAttempts THEN "failed" ELSE "retrying"]
             /\ redone' = (redone \/ (estatus[x] = "done" /\ ~isDone))
        ELSE UNCHANGED <<estatus, redone>>
  /\ call' = [call EXCEPT ![p] = IF call[p].phase = "leased" THEN [@ EXCEPT !.phase = "marked"] ELSE Idle]
  /\ UNCHANGED <<database, efence, eattempts, elive, acked, called, delivery, job, claimed, copies, pruned, starts, stale,
                 deliveries, faults>>

\* settle_effects with `uncharged`: a relay that stops, or a Postpone.
ReleaseEffect(p) ==
  /\ call[p].phase \in {"leased", "raised"} /\ Fault
  /\ LET x == call[p].effect
     IN IF HoldsEffect(p)
        THEN /\ estatus' = [estatus EXCEPT ![x] = IF eattempts[x] > 1 THEN "retrying" ELSE "waiting"]
             /\ eattempts' = [eattempts EXCEPT ![x] = IF @ = 0 THEN 0 ELSE @ - 1]
             /\ redone' = (redone \/ estatus[x] = "done")
        ELSE UNCHANGED <<estatus, eattempts, redone>>
  /\ call' = [call EXCEPT ![p] = Idle]
  /\ UNCHANGED <<database, efence, elive, acked, called, delivery, job, claimed, copies, pruned, starts, stale, deliveries>>

\* Five writes failed (EffectSettler.TRIES), or a rescue failed: the lease expires.
GiveUpEffect(p) ==
  /\ call[p].phase \in {"called", "raised", "rescuing"} /\ Fault
  /\ call' = [call EXCEPT ![p] = Idle]
  /\ UNCHANGED <<database, outbox, acked, called, delivery, job, history, deliveries>>

IsEffectHeld(x) == \E p \in Processes : call[p].phase \in {"leased", "called", "raised"} /\ call[p].effect = x /\ call[p].token = efence[x]

ExpireEffect(x) ==
  /\ estatus[x] = "performing" /\ elive[x]
  /\ elive' = [elive EXCEPT ![x] = FALSE]
  /\ IF IsEffectHeld(x) THEN Fault ELSE UNCHANGED faults
  /\ UNCHANGED <<database, estatus, efence, eattempts, acked, called, delivery, job, call, history, deliveries>>

\* expired_effects.
FindExpiredEffect(p, x) ==
  /\ call[p] = Idle /\ IsFree(p) /\ estatus[x] = "performing" /\ ~elive[x]
  /\ call' = [call EXCEPT ![p] = [phase |-> "rescuing", effect |-> x, token |-> efence[x]]]
  /\ UNCHANGED <<database, outbox, acked, called, delivery, job, history, deliveries, faults>>

----------------------------------------------------------------------------
(* Operators: operations/replay.py, operations/prune.py, store/sql/*/{operations,retention}.sql *)

\* replay and audit, in one transaction. Bug "replay resets effects": the effects of the event are due again.
Replay(r) ==
  /\ status[r] \in Finished /\ epoch[r] < MaxReplays
  /\ status' = [status EXCEPT ![r] = "received"]
  /\ attempts' = [attempts EXCEPT ![r] = 0] /\ starts' = [starts EXCEPT ![r] = 0]
  /\ epoch' = [epoch EXCEPT ![r] = @ + 1] /\ ledger' = [ledger EXCEPT ![r] = 0]
  /\ audits' = [audits EXCEPT ![r] = IF Bug = "replay without audit" THEN @ ELSE @ + 1]
  /\ LET x == <<r[1], 0>>
         resets == Bug = "replay resets effects" /\ estatus[x] = "done"
     IN /\ estatus' = IF resets THEN [estatus EXCEPT ![x] = "waiting"] ELSE estatus
        /\ eattempts' = IF resets THEN [eattempts EXCEPT ![x] = 0] ELSE eattempts
        /\ redone' = (redone \/ resets)
  /\ UNCHANGED <<fence, live, holder, old, efence, elive, acked, called, delivery, job, call, claimed, copies, pruned, stale,
                 deliveries, faults>>

\* replay_effects: an operator asks for a failed effect again. That is its new epoch, and its key stays the same.
ReplayEffect(x) ==
  /\ estatus[x] = "failed" /\ Fault
  /\ estatus' = [estatus EXCEPT ![x] = "waiting"] /\ eattempts' = [eattempts EXCEPT ![x] = 0]
  /\ UNCHANGED <<database, efence, elive, acked, called, delivery, job, call, history, deliveries>>

\* The dedupe window of an event passes: decision 026 and retention.md.
Age(e) ==
  /\ claimed[e] /\ ~old[e] /\ IsStored(e)
  /\ old' = [old EXCEPT ![e] = TRUE]
  /\ UNCHANGED <<status, fence, attempts, live, holder, epoch, ledger, audits, outbox, acked, called, delivery, job, call,
                 history, deliveries, faults>>

\* old_receipts, lock_old_receipts, prune_receipts: all receipts of the event, when each is processed (or ignored).
Prune(e) ==
  /\ IsStored(e) /\ (old[e] \/ Bug = "prune inside window")
  /\ LET all == {r \in Receipts : r[1] = e}
         checked == IF Bug = "prune unfinished" THEN {<<e, "main">>} ELSE all
     IN /\ \A r \in checked : status[r] = "processed"
        /\ pruned' = [pruned EXCEPT ![e] = IF ~old[e] THEN "inside"
                                           ELSE IF \E r \in all : status[r] # "processed" THEN "unfinished" ELSE "past"]
        /\ status' = [r \in Receipts |-> IF r \in all THEN None ELSE status[r]]
        /\ ledger' = [r \in Receipts |-> IF r \in all THEN 0 ELSE ledger[r]]  \* the next receipt is another one
        /\ attempts' = [r \in Receipts |-> IF r \in all THEN 0 ELSE attempts[r]]
        /\ starts' = [r \in Receipts |-> IF r \in all THEN 0 ELSE starts[r]]
        /\ copies' = [copies EXCEPT ![e] = 0] /\ claimed' = [claimed EXCEPT ![e] = FALSE]
  /\ UNCHANGED <<fence, live, holder, epoch, audits, old, outbox, acked, called, delivery, job, call, stale, redone,
                 deliveries, faults>>

\* SIGKILL: everything in memory is lost, and open transactions roll back. The next process has another worker name.
Crash(p) ==
  /\ delivery[p] # Idle \/ job[p] # Idle \/ call[p] # Idle \/ \E r \in Receipts : holder[r] = p
  /\ Fault
  /\ delivery' = [delivery EXCEPT ![p] = Idle] /\ job' = [job EXCEPT ![p] = Idle] /\ call' = [call EXCEPT ![p] = Idle]
  /\ holder' = [r \in Receipts |-> IF holder[r] = p THEN None ELSE holder[r]]
  /\ UNCHANGED <<status, fence, attempts, live, epoch, ledger, audits, old, outbox, acked, called, history, deliveries>>

----------------------------------------------------------------------------
Booleans == {TRUE, FALSE}

ReceiverStep(p) ==
  \/ \E e \in Events : Deliver(p, e)
  \/ \E lost \in Booleans : Claim(p, lost)
  \/ CopyLater(p) \/ RefuseDelivery(p) \/ Ack(p)

WorkerStep(p) ==
  \/ \E r \in Receipts, lost \in Booleans : Lease(p, r, lost)
  \/ \E b \in Booleans : Run(p, b) \/ SettleProcessed(p, b) \/ SettleFailed(p, b)
  \/ \E r \in Receipts : ReleaseStray(p, r) \/ FindExpired(p, r)
  \/ SettleLater(p) \/ GiveUpSettling(p) \/ Release(p) \/ Extend(p)

RelayStep(p) ==
  \/ \E x \in Effects, lost \in Booleans : LeaseEffect(p, x, lost)
  \/ \E b \in Booleans : CallTarget(p, b)
  \/ \E x \in Effects : FindExpiredEffect(p, x)
  \/ SettleEffect(p) \/ ReleaseEffect(p) \/ GiveUpEffect(p)

Next ==
  \/ \E p \in Processes : ReceiverStep(p) \/ WorkerStep(p) \/ RelayStep(p) \/ Crash(p)
  \/ \E r \in Receipts : Expire(r) \/ Replay(r)
  \/ \E x \in Effects : ExpireEffect(x) \/ ReplayEffect(x)
  \/ \E e \in Events : Age(e) \/ Prune(e)

\* Every process keeps working: it leases, runs, settles, and rescues leases that nobody holds.
Fairness ==
  /\ \A p \in Processes :
       /\ WF_vars(Claim(p, FALSE)) /\ WF_vars(Ack(p))
       /\ WF_vars(\E b \in Booleans : Run(p, b)) /\ WF_vars(SettleProcessed(p, FALSE)) /\ WF_vars(\E b \in Booleans : SettleFailed(p, b))
       /\ WF_vars(\E b \in Booleans : CallTarget(p, b)) /\ WF_vars(SettleEffect(p))
  /\ \A r \in Receipts :
       /\ WF_vars(\E p \in Processes : Lease(p, r, FALSE))
       /\ WF_vars(\E p \in Processes : FindExpired(p, r))
       /\ WF_vars(~IsHeld(r) /\ Expire(r))
  /\ \A x \in Effects :
       /\ WF_vars(\E p \in Processes : LeaseEffect(p, x, FALSE))
       /\ WF_vars(\E p \in Processes : FindExpiredEffect(p, x))
       /\ WF_vars(~IsEffectHeld(x) /\ ExpireEffect(x))

Spec == Init /\ [][Next]_vars /\ Fairness

----------------------------------------------------------------------------
(* Invariants, numbered as the faults that the project is tested against. *)

I1_DurableAck       == \A e \in Events : acked[e] => IsStored(e) \/ pruned[e] # None
I2_AppliedOnce      == \A r \in Receipts : ledger[r] <= 1
I3_CommitTogether   == /\ \A r \in Receipts : (status[r] = "processed") <=> (ledger[r] > 0)
                       /\ \A x \in Effects : estatus[x] # None =>
                            \/ pruned[x[1]] # None
                            \/ \E c \in Consumers : ledger[<<x[1], c>>] > 0 \/ epoch[<<x[1], c>>] > 0
I4_OneRow           == \A e \in Events : copies[e] <= 1
I6_StaleChangesNothing == ~stale
I7_AttemptsBounded  == \A r \in Receipts : attempts[r] <= MaxAttempts /\ starts[r] <= MaxAttempts
I8_NothingVanishes  == \A e \in Events : claimed[e] => IsStored(e)
I9_ReplayIsSafe     == /\ ~redone
                       /\ \A x \in Effects : estatus[x] # None => x[2] = 0
                       /\ \A r \in Receipts : audits[r] = epoch[r]
I11_PublishedOnceMarked == \A x \in Effects : estatus[x] = "done" => called[x]
I12_WindowKept      == \A e \in Events : pruned[e] \in {None, "past"}

\* I5: every claimed event ends, and so does its effect, once faults stop (they are bounded by MaxFaults).
IsEnded(e) == (\A c \in Consumers : status[<<e, c>>] \in Finished \cup {None})
              /\ \A x \in Effects : x[1] = e => estatus[x] \in EffectEnds \cup {None}
I5_EverythingEnds == \A e \in Events : claimed[e] ~> IsEnded(e)

\* Processes are alike, which lets TLC look at one of each set of states that differ only in their names.
Symmetry == Permutations(Processes)

=============================================================================
