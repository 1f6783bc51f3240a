CREATE TABLE sign_ins (
    id TEXT PRIMARY KEY,
    user_id TEXT REFERENCES users (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    door TEXT NOT NULL,
    let_in BOOLEAN NOT NULL,
    from_address TEXT,
    what TEXT NOT NULL
);

CREATE INDEX sign_ins_by_time ON sign_ins (at);
CREATE INDEX sign_ins_by_user ON sign_ins (user_id, at);

-- tokens are dev_ and 16 hexadecimal digits from here on; before they were tk_ and 16 of a-z, 2-7
UPDATE user_tokens SET id = 'dev_' ||
    replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(substr(id, 4), 'g', '0'), 'h', '1'), 'i', '2'), 'j', '3'), 'k', '4'), 'l', '5'), 'm', '6'), 'n', '7'), 'o', '8'), 'p', '9'), 'q', 'a'), 'r', 'b'), 's', 'c'), 't', 'd'), 'u', 'e'), 'v', 'f'), 'w', '0'), 'x', '1'), 'y', '2'), 'z', '3')
WHERE substr(id, 1, 3) = 'tk_';
