CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    admin BOOLEAN NOT NULL,
    disabled BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);

CREATE TABLE user_tokens (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    personal BOOLEAN NOT NULL,
    label TEXT NOT NULL,
    hash BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    used_at BIGINT
);

CREATE UNIQUE INDEX user_tokens_user_id_key ON user_tokens (user_id) WHERE personal;
CREATE INDEX user_tokens_by_user ON user_tokens (user_id);

CREATE TABLE sign_in_links (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX sign_in_links_by_user ON sign_in_links (user_id);
