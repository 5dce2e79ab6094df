-- Sources whose processing is paused: their events are accepted, and no worker leases them until they are resumed.
CREATE TABLE webhook_pauses (
    source    text COLLATE "C" PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT now(),
    actor     text NOT NULL
);
