ALTER TABLE boxes ADD COLUMN agent BOOLEAN NOT NULL DEFAULT FALSE;

CREATE TABLE oauth_boxes (
    box_id TEXT NOT NULL PRIMARY KEY REFERENCES boxes (id) ON DELETE CASCADE,
    grant_id TEXT NOT NULL
);
CREATE INDEX oauth_boxes_grant_id ON oauth_boxes (grant_id);
