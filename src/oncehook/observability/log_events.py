"""The table of log events: the name, level and meaning of every line that Oncehook logs."""

LOG_EVENTS: dict[str, tuple[str, str]] = {
    # The receiver.
    "accepted": ("info", "The first delivery of an event is committed and acked."),
    "ignored": (
        "info",
        "The source's `types` or `where` leave out an authentic event. It is recorded with the reason, and acked.",
    ),
    "unreadable": ("warning", "An authentic event has no usable id or type. It is recorded as a dead letter."),
    "duplicate": ("info", "An event that is already recorded was delivered again. The delivery is acked."),
    "body_changed": ("warning", "A duplicate has a different body. The first body stays."),
    "rejected": ("warning", "The receiver rejected a delivery and recorded no event."),
    "unavailable": ("error", "The receiver could not record an event. The sender was asked to retry."),
    "receiver_failed": ("error", "A bug in Oncehook's receiver. The sender was asked to retry. Please report it."),
    "payload_stored_in_database": (
        "warning",
        "The payload store did not take a large body in time, so the database has it. The event is unaffected.",
    ),
    "handshake_answered": ("info", "The receiver answered a provider's handshake."),
    "secret_offered": (
        "warning",
        "An unsigned handshake offered a secret. Oncehook does not use it. If you are creating this webhook now, add "
        "the secret to the source's `secrets`.",
    ),
    "key_renewal_failed": (
        "warning",
        "A signing key could not be renewed. The old key stays in use until its host answers.",
    ),
    "secret_missing": ("warning", "A source has no secret yet. It answers its handshake and rejects every event."),
    "unverified_source": ("warning", "A source accepts unsigned deliveries from anyone who knows its address."),
    "tenant_lookup_failed": (
        "error",
        "The secrets of a tenant could not be looked up: `secrets_for` failed or took too long, or a secret cannot be "
        "used. A tenant that is cached keeps its secrets for a while; deliveries to any other get 503. At most one "
        "line per second and source; `failures` counts the lookups since the last line.",
    ),
    "tenant_lookups_exceeded": (
        "warning",
        "Deliveries to tenants that are not cached got 503, because `tenants.lookups` allows no more lookups. At most "
        "one line per second and source; `count` has the deliveries since the last line.",
    ),
    "connections_closed": ("warning", "The receiver closed connections that never completed a request."),
    "duplicate_records_dropped": (
        "warning",
        "Duplicates were acked, but arrived too fast for each delivery to be recorded.",
    ),
    "duplicate_records_lost": ("error", "Deliveries of duplicates could not be recorded. Their events are unaffected."),
    "fast_path_unavailable": (
        "warning",
        "The database did not confirm the receipts that this process remembers. Until it does, duplicates are claimed.",
    ),
    "fast_path_renewed": (
        "info",
        "The database was restarted, failed over or restored. This process forgot the receipts that it remembered.",
    ),
    "redis_unavailable": ("warning", "Redis does not answer. Duplicates that only Redis remembers are claimed."),
    "redis_available": ("info", "Redis answers again."),
    "spool_started": (
        "error",
        "The database is unavailable. Deliveries to the sources that spool are written to the spool and acked.",
    ),
    "spooled": (
        "info",
        "A delivery could not be claimed. It is on the disk and acked, and is claimed when the database answers.",
    ),
    "spool_drained": ("info", "Events of the spool are committed. `events` says how many."),
    "spool_full": ("error", "The spool has reached `spool_limit`. Further deliveries get 503."),
    "spool_write_failed": ("error", "The spool cannot be written, for example because the disk is full."),
    "spool_left": ("warning", "A process ended while events are in the spool. The next process claims them."),
    "spool_tail_dropped": (
        "warning",
        "A segment of the spool ends with an incomplete record, as after a crash. Its sender got no ack.",
    ),
    "spool_damaged": (
        "error",
        "A segment of the spool has records that cannot be read, or that the database rejects. The others are claimed, "
        "and the file is kept as `.damaged`.",
    ),
    "spool_event_refused": ("error", "The database rejects an event of the spool because of its values."),
    "rejection_sample_lost": ("warning", "The sample of a rejected request could not be stored for the doctor."),
    "rejection_counts_write_failed": (
        "warning",
        "The number of rejections could not be written. The write is retried.",
    ),
    "secret_uses_write_failed": ("warning", "The uses of each secret could not be written. The write is retried."),
    "ack_latency_write_failed": ("warning", "The latencies of acks could not be written. The write is retried."),
    # Intakes.
    "intake_paused": (
        "error",
        "Messages of a queue cannot be claimed now, because the database or the broker does not respond. They wait in "
        "the queue.",
    ),
    "intake_resumed": ("info", "The messages of a queue are claimed again."),
    "publish_failed": (
        "error",
        "A delivery could not be published to the queue of its source. Deliveries are claimed in the database directly "
        "until the broker responds.",
    ),
    "intake_not_durable": (
        "warning",
        "The broker of an intake may acknowledge messages before they are on disk. The detail says what to change.",
    ),
    "intake_trusts_queue": (
        "warning",
        "A source accepts the messages of its queue without a signature. It trusts every program that may write to the "
        "queue.",
    ),
    # Handlers and workers.
    "payload_store_unavailable": (
        "warning",
        "The payload store does not answer, or rejects requests. Events whose bodies it has wait until it answers.",
    ),
    "processed": ("info", "A handler's work and the processed status are committed, or there was nothing to do."),
    "retrying": ("warning", "A handler failed. The event is retried."),
    "dead_letter": ("error", "A handler failed for the last time. The event is a dead letter."),
    "abandoned": ("error", "The provider stopped retrying an inline event. It is a dead letter."),
    "lease_lost": ("warning", "A handler finished after its lease was lost. Its work was rolled back."),
    "lease_expired": ("warning", "A lease expired. Its receipt was released for another attempt."),
    "settle_failed": (
        "error",
        "The result of an attempt could not be written. The receipt becomes due again when its lease expires.",
    ),
    "key_missing": (
        "error",
        "This process lacks the key of an encrypted event or effect. It waits, without using attempts, for a process "
        "that has the key.",
    ),
    "release_failed": ("warning", "Receipts could not be released. They become due when their leases expire."),
    "heartbeat_failed": ("warning", "A worker could not extend its leases. It tries again at the next heartbeat."),
    "event_loop_blocked": (
        "error",
        "A handler blocks the event loop, so this process releases the receipts that it has leased and not started. "
        "Make the handler a plain `def`, or await the call that blocks.",
    ),
    "unhandled": (
        "warning",
        "No process has a handler for this type. Its events wait. Each type is logged once.",
    ),
    "inline_unhandled": (
        "warning",
        "This process has no handler for an inline event. The sender gets 503 and retries.",
    ),
    "handler_available": (
        "info",
        "A process now has a handler for a type that had none. The waiting events are processed.",
    ),
    "unhandled_ignored": (
        "info",
        'No process has a handler for these events. They are ignored: `unhandled = "ignore"`.',
    ),
    "stale_event": (
        "info",
        "An event is older than the recorded state of its entity. The handler left the entity unchanged.",
    ),
    "circuit_opened": (
        "warning",
        "A target failed or sent Retry-After. Its circuit breaker is open: events wait and use no attempt.",
    ),
    "circuit_closed": ("info", "A target accepted a call, so its circuit breaker is closed again."),
    "wakeup_connection_lost": (
        "warning",
        "Other processes cannot wake this worker. It polls the database until they can.",
    ),
    "queue_unavailable": ("warning", "The queue does not respond. Workers lease from the database until it does."),
    "queue_available": ("info", "The queue responds again."),
    "queue_advice": ("warning", "A property of the queue does not fit the retry policies."),
    "queue_swept": ("info", "Receipts that were overdue were sent to the queue again."),
    "queue_message_ignored": ("warning", "A message in the queue names no receipt. It was deleted."),
    "dead_lettered": ("error", "The queue gave up a message, and its event is a dead letter."),
    "clock_set_back": (
        "warning",
        "The database's clock went back by `seconds`. Retries that were scheduled before do not wait for it.",
    ),
    "due_times_corrected": (
        "warning",
        "Retries and pauses had times from a clock that has gone back since. The retries are due now.",
    ),
    "worker_database_unavailable": ("warning", "The worker cannot reach the database. It retries."),
    "managed_source_unusable": (
        "error",
        "A source in the database cannot be used in this process. `detail` says why. It stays as it was before.",
    ),
    "settings_database_unavailable": (
        "warning",
        "The process cannot query whether sources, tenants or consumers have changed. It retries every second.",
    ),
    "shard_unavailable": (
        "error",
        "The database of a shard does not respond. Its sources get 503. The process connects again every 5 s.",
    ),
    "shard_differs": (
        "warning",
        "A source lives in another shard than the configuration says. Correct the file, or run `oncehook shards move`.",
    ),
    "shard_available": ("info", "The database of a shard responds again."),
    "database_identity_changed": (
        "info",
        "The database has another history than before: a failover, a restored backup or a restart. On SQLite, another "
        "process has started. `detail` is its identity. The process forgets what it remembered of the old one.",
    ),
    # Effects.
    "effect_done": ("info", "The relay ran an effect, and its target accepted it."),
    "effect_retrying": ("warning", "An effect failed. The relay retries it."),
    "effect_failed": ("error", "An effect failed for the last time. `oncehook effects replay` runs it again."),
    "effect_conflict": (
        "info",
        "An event requested an effect whose key is already recorded. The effect is not repeated.",
    ),
    "effect_lease_lost": ("warning", "An effect ran after its lease was lost. Another process runs it again."),
    "effect_lease_expired": ("warning", "The lease of an effect expired. The effect was released for another attempt."),
    "effect_settle_failed": (
        "error",
        "The result of an effect could not be written. The effect runs again when its lease expires.",
    ),
    "effect_unregistered": (
        "warning",
        "Effects wait for a function or a task queue that is not registered in this process.",
    ),
    "relay_database_unavailable": ("warning", "The relay cannot reach the database. It retries."),
    # Operators.
    "replayed": ("info", "A person replayed events. `selection` says which."),
    "retry_requested": ("info", "A person made waiting retries due now. `selection` says which."),
    "source_paused": ("info", "A person paused a source. Its events are accepted and wait."),
    "source_resumed": ("info", "A person resumed a source. Its waiting events are processed."),
    "consumer_filter_unreadable": (
        "error",
        "This version cannot read the filter of a consumer. The consumer gets all events of its types.",
    ),
    "consumer_paused": ("info", "A person paused a consumer. Its events are accepted and wait."),
    "consumer_resumed": ("info", "A person resumed a consumer. Its waiting events are processed."),
    "pruned": ("info", "Receipts and payloads past their retention were deleted."),
    "payload_objects_not_deleted": (
        "warning",
        "The payload store did not delete objects that no payload needs. The next run of the prune loop deletes them.",
    ),
    "email_pruned": ("info", "Email facts past `email_retention` were deleted. Suppressions stay."),
    "leadership_lost": (
        "warning",
        "This process stalled while it did a task that one process does for all. Another one took over.",
    ),
    "prune_database_unavailable": ("warning", "The prune loop cannot reach the database. It retries."),
    "alert_opened": ("error", "A rule passed its threshold, and an incident is open. See [alerts](alerts.md)."),
    "alert_recovered": ("info", "An incident is over. Its value stayed below the threshold for long enough."),
    "alert_sent": ("info", "A target received a notification. `word` says which: opened, reminder or recovered."),
    "alert_retrying": ("warning", "A notification could not be sent to its target. It is retried."),
    "alert_failed": ("error", "A notification could not be sent to its target, and is not retried."),
    "alerts_database_unavailable": ("warning", "The alert monitor cannot reach the database. It retries."),
    "sign_in_failed": ("warning", "A sign-in to the dashboard failed: wrong password or token."),
    "dashboard_database_unavailable": ("warning", "The database did not answer the dashboard in time."),
    "dashboard_failed": ("error", "A bug in Oncehook's dashboard. Please report it."),
    # The process.
    "started": ("info", "The inbox is ready to accept deliveries."),
    "start_failed": (
        "error",
        "The first request of a WSGI process could not start the inbox. Requests get 503, and the next one after 5 s "
        "tries again.",
    ),
    "settings_not_usable": (
        "error",
        "The settings of a Django project cannot be used. Its pages work, and deliveries get 500 until the settings "
        "are corrected and the process is restarted.",
    ),
    "replica_used": ("info", "The dashboard reads from `read_database` again."),
    "replica_not_used": (
        "warning",
        "The standby `read_database` is down or too far behind. The primary is read instead.",
    ),
    "draining": (
        "info",
        "The process is stopping. `/readyz` responds 503, and deliveries are accepted for `drain_delay`.",
    ),
    "stopped": ("info", "The inbox has drained and closed."),
    "stop_timed_out": (
        "error",
        "The inbox did not stop in time, perhaps because the database does not answer. Unfinished work is cancelled.",
    ),
    "stop_forced": ("error", "The event loop is blocked, so a clean stop could not begin. The process exits now."),
    "background_failed": (
        "error",
        "A bug in a background loop of Oncehook. The loop continues. Please report it.",
    ),
    "pooler_detected": (
        "info",
        "A connection pooler is in front of PostgreSQL. Oncehook prepares no statements, and workers poll.",
    ),
    "durability_risk": (
        "warning",
        "PostgreSQL may lose acked events. `detail` names the setting, or the asynchronous standby.",
    ),
    "connections_short": (
        "warning",
        "The process may use more connections than PostgreSQL allows. Lower `concurrency` of the inbox or consumers.",
    ),
    "fast_path_off": ("warning", "A fast path does not work with the installed library. The plain path is used."),
    "on_commit_failed": (
        "error",
        "A callback of Django's `on_commit` raised. The event is processed, and the callback is not repeated.",
    ),
    "django_orm_not_transactional": (
        "warning",
        "Django has a database in this process, and its ORM does not write in a handler's transaction. Add "
        "`oncehook.integrations.django` to `INSTALLED_APPS`: see [Django](django.md).",
    ),
    "log_lines_dropped": ("warning", "Log lines were dropped because standard error was not read fast enough."),
}
"""Event name → (level, meaning). docs/logs.md is generated from this table."""
