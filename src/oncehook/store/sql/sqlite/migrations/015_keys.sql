-- Facts besides the event id of which no two receipts of a source have the same: Mailgun's token and its event id.
CREATE TABLE webhook_keys (
    source     TEXT NOT NULL,
    key        TEXT NOT NULL,
    receipt_id INTEGER NOT NULL,
    PRIMARY KEY (source, key)
);
CREATE INDEX webhook_keys_receipt ON webhook_keys (receipt_id);
