CREATE TABLE boxes (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    record TEXT NOT NULL,
    CONSTRAINT boxes_owner_name_key UNIQUE (owner, name)
);
CREATE INDEX boxes_owner_created_at ON boxes (owner, created_at, id);

CREATE TABLE box_owners (
    owner TEXT NOT NULL PRIMARY KEY,
    admissions BIGINT NOT NULL
);

CREATE TABLE box_operations (
    id TEXT NOT NULL PRIMARY KEY,
    box_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    verb TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX box_operations_ended_at ON box_operations (ended_at);

CREATE TABLE box_events (
    operation TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (operation, sequence)
);

CREATE TABLE box_keys (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    request TEXT NOT NULL,
    box_id TEXT NOT NULL,
    operation TEXT,
    at BIGINT NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX box_keys_at ON box_keys (at);
