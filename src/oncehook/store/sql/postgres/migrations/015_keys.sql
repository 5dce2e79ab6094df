-- Facts besides the event id of which no two receipts of a source have the same: Mailgun's token and its event id.
CREATE TABLE webhook_keys (
    source     text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    receipt_id bigint NOT NULL,
    PRIMARY KEY (source, key)
);
CREATE INDEX webhook_keys_receipt ON webhook_keys (receipt_id);
