CREATE TABLE state_ledgers (
    owner TEXT NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL,
    ledger TEXT NOT NULL
);
