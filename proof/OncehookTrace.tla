--------------------------- MODULE OncehookTrace ---------------------------
(***************************************************************************)
(* Checks that recorded runs are behaviours of the model.                  *)
(*                                                                         *)
(* TraceData defines Traces, a sequence of runs.  Each run is a sequence   *)
(* of steps that proof/traces.py derives from the committed changes of the *)
(* database.  A step names an action of the model with its arguments, and  *)
(* the values that the database had afterwards.  If the model does not     *)
(* allow a step, TLC reports a deadlock at that step.                      *)
(***************************************************************************)
EXTENDS Oncehook, Sequences, TraceData

VARIABLES run, position

TraceInit == Init /\ run \in 1..Len(Traces) /\ position = 1

\* What the database had after a step about a receipt or an effect.
Receipt(t) == status'[t.r] = t.status /\ attempts'[t.r] = t.attempts
Effect(t)  == estatus'[t.x] = t.status /\ eattempts'[t.x] = t.attempts

Step(t) ==
  CASE t.a = "Deliver"           -> Deliver("s1", t.e)
    [] t.a = "Claim"             -> Claim("s1", TRUE) /\ \A c \in Consumers : status'[<<t.e, c>>] = "received"
    [] t.a = "ClaimStored"       -> Claim("s1", FALSE) /\ UNCHANGED status
    [] t.a = "Ack"               -> Ack("s1")
    [] t.a = "Lease"             -> Lease(t.p, t.r, FALSE) /\ Receipt(t)
    [] t.a = "Run"               -> Run(t.p, t.raises)
    [] t.a = "SettleProcessed"   -> SettleProcessed(t.p, FALSE) /\ Receipt(t) /\ (estatus # estatus') = t.records
    [] t.a = "SettleFailed"      -> SettleFailed(t.p, t.givesUp) /\ Receipt(t)
    [] t.a = "Release"           -> Release(t.p) /\ Receipt(t)
    [] t.a = "Expire"            -> IF live[t.r] THEN Expire(t.r) ELSE UNCHANGED vars
    [] t.a = "FindExpired"       -> FindExpired(t.p, t.r)
    [] t.a = "LeaseEffect"       -> LeaseEffect(t.p, t.x, FALSE) /\ Effect(t)
    [] t.a = "CallTarget"        -> CallTarget(t.p, t.raises)
    [] t.a = "SettleEffect"      -> SettleEffect(t.p) /\ Effect(t)
    [] t.a = "ReleaseEffect"     -> ReleaseEffect(t.p) /\ Effect(t)
    [] t.a = "ExpireEffect"      -> IF elive[t.x] THEN ExpireEffect(t.x) ELSE UNCHANGED vars
    [] t.a = "FindExpiredEffect" -> FindExpiredEffect(t.p, t.x)
    [] t.a = "Replay"            -> Replay(t.r) /\ Receipt(t)
    [] t.a = "Age"               -> Age(t.e)
    [] t.a = "Prune"             -> Prune(t.e)
    [] OTHER                     -> FALSE

TraceNext ==
  \/ position <= Len(Traces[run]) /\ Step(Traces[run][position]) /\ position' = position + 1 /\ UNCHANGED run
  \/ position > Len(Traces[run]) /\ UNCHANGED <<vars, run, position>>
=============================================================================
