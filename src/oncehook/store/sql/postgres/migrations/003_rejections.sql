-- Samples of refused requests, for the signature doctor: a small ring for each source, never a receipt.
CREATE TABLE webhook_rejections (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source      text COLLATE "C" NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now(),
    reason      text COLLATE "C" NOT NULL,
    detail      text NOT NULL,
    method      text COLLATE "C" NOT NULL,
    query       text NOT NULL,
    headers     text NOT NULL,
    body        bytea NOT NULL CHECK (octet_length(body) <= 65536),
    size        bigint NOT NULL
);
CREATE INDEX webhook_rejections_source ON webhook_rejections (source, id);

-- When each secret of a source last verified a delivery. `secret` is a short mark of it, from which it cannot be had.
CREATE TABLE webhook_secrets (
    source        text COLLATE "C" NOT NULL,
    secret        text COLLATE "C" NOT NULL,
    verified      bigint NOT NULL DEFAULT 0,
    first_used_at timestamptz NOT NULL DEFAULT now(),
    last_used_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, secret)
);
