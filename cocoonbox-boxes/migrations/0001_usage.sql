CREATE TABLE model_usage (
    user_id TEXT NOT NULL,
    day BIGINT NOT NULL,
    model TEXT NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_micros BIGINT NOT NULL,
    PRIMARY KEY (user_id, day, model)
);

CREATE TABLE model_caps (
    user_id TEXT NOT NULL PRIMARY KEY,
    daily_micros BIGINT NOT NULL
);
