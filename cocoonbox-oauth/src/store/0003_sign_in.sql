ALTER TABLE users ADD COLUMN password_hash TEXT;
ALTER TABLE users ADD COLUMN max_agent_boxes BIGINT;
ALTER TABLE user_tokens ADD COLUMN client TEXT NOT NULL DEFAULT '';

CREATE TABLE console_sessions (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX console_sessions_by_user ON console_sessions (user_id);

CREATE TABLE oauth_key (
    id BIGINT PRIMARY KEY,
    sealed BYTEA NOT NULL
);

CREATE TABLE oauth_clients (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    redirect_uris TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    used_at BIGINT
);

CREATE INDEX oauth_clients_by_age ON oauth_clients (created_at);

CREATE TABLE oauth_codes (
    hash BYTEA PRIMARY KEY,
    client TEXT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    redirect_uri TEXT NOT NULL,
    challenge TEXT NOT NULL,
    promise TEXT NOT NULL,
    spent BOOLEAN NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE TABLE oauth_grants (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    client TEXT NOT NULL,
    client_name TEXT NOT NULL,
    client_host TEXT,
    resource TEXT NOT NULL,
    max_boxes BIGINT NOT NULL,
    max_running BIGINT NOT NULL,
    approved_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT,
    seen BOOLEAN NOT NULL,
    generation BIGINT NOT NULL,
    ended_at BIGINT
);

CREATE INDEX oauth_grants_by_user ON oauth_grants (user_id);

CREATE TABLE oauth_tokens (
    hash BYTEA PRIMARY KEY,
    grant_id TEXT NOT NULL REFERENCES oauth_grants (id) ON DELETE CASCADE,
    generation BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX oauth_tokens_by_grant ON oauth_tokens (grant_id);
