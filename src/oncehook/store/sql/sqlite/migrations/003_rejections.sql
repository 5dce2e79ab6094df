-- Samples of refused requests, for the signature doctor: a small ring for each source, never a receipt.
CREATE TABLE webhook_rejections (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    source      TEXT NOT NULL,
    rejected_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    reason      TEXT NOT NULL,
    detail      TEXT NOT NULL,
    method      TEXT NOT NULL,
    query       TEXT NOT NULL,
    headers     TEXT NOT NULL,
    body        BLOB NOT NULL CHECK (length(body) <= 65536),
    size        INTEGER NOT NULL
);
CREATE INDEX webhook_rejections_source ON webhook_rejections (source, id);

-- When each secret of a source last verified a delivery. `secret` is a short mark of it, from which it cannot be had.
CREATE TABLE webhook_secrets (
    source        TEXT NOT NULL,
    secret        TEXT NOT NULL,
    verified      INTEGER NOT NULL DEFAULT 0,
    first_used_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    last_used_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    PRIMARY KEY (source, secret)
);
