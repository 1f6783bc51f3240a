ALTER TABLE users ADD COLUMN state_key_sealed BYTEA;
