-- Sources whose processing is paused: their events are accepted, and no worker leases them until they are resumed.
CREATE TABLE webhook_pauses (
    source    TEXT PRIMARY KEY,
    paused_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    actor     TEXT NOT NULL
);
