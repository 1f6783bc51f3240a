//! What tools are called with.

use rmcp::ErrorData;
use rmcp::model::JsonObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// No arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Which box, or the first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    #[serde(default, deserialize_with = "given")]
    r#box: Option<String>,
}

impl Which {
    pub(super) fn hint(&self) -> &str {
        self.r#box.as_deref().unwrap_or_default()
    }
}

/// Of `box_ensure`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ensure {
    #[serde(default, deserialize_with = "given")]
    pub(super) r#box: Option<String>,
    #[serde(default = "yes")]
    pub(super) wait: bool,
}

/// Of `box_create`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    pub(super) name: String,
    #[serde(default, deserialize_with = "given")]
    pub(super) image: Option<String>,
    #[serde(default = "yes")]
    pub(super) wait: bool,
}

/// Of `box_upgrade`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Upgrade {
    #[serde(default, deserialize_with = "given")]
    pub(super) r#box: Option<String>,
    pub(super) confirm: bool,
}

/// Of `box_delete`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Delete {
    pub(super) r#box: String,
    pub(super) confirm: bool,
}

const fn yes() -> bool {
    true
}

/// Reads an argument that may be left out: null is no string.
fn given<'de, D: Deserializer<'de>>(text: D) -> Result<Option<String>, D::Error> {
    String::deserialize(text).map(Some)
}

/// Reads arguments; those that do not match the tool's schema are a fault of the protocol.
pub(super) fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ErrorData> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ErrorData::invalid_params(format!("the arguments do not match: {error}"), None))
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;
    use serde_json::json;

    use super::*;

    fn reads<T: DeserializeOwned>(value: Value) -> bool {
        let Value::Object(arguments) = value else { return false };
        match read::<T>(arguments) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::INVALID_PARAMS);
                false
            }
        }
    }

    #[test]
    fn arguments_are_what_the_schema_says_and_nothing_else() {
        for (what, value, expected) in [
            ("nothing", reads::<Nothing>(json!({})), true),
            ("more than nothing", reads::<Nothing>(json!({"box": "main"})), false),
            ("no box", reads::<Which>(json!({})), true),
            ("a box", reads::<Which>(json!({"box": "main"})), true),
            ("null", reads::<Which>(json!({"box": null})), false),
            ("a number", reads::<Which>(json!({"box": 1})), false),
            ("an unknown member", reads::<Which>(json!({"box": "main", "force": true})), false),
            ("to wait", reads::<Ensure>(json!({"wait": false})), true),
            ("to wait in words", reads::<Ensure>(json!({"wait": "no"})), false),
            ("no name", reads::<Create>(json!({"image": "host"})), false),
            ("a name", reads::<Create>(json!({"name": "two"})), true),
            ("no confirm", reads::<Upgrade>(json!({"box": "main"})), false),
            ("confirm alone", reads::<Upgrade>(json!({"confirm": true})), true),
            ("nothing to delete", reads::<Delete>(json!({"confirm": true})), false),
            ("a box to delete", reads::<Delete>(json!({"box": "main", "confirm": false})), true),
        ] {
            assert_eq!(value, expected, "{what}");
        }
        let Value::Object(none) = json!({}) else { unreachable!() };
        assert!(read::<Ensure>(none).unwrap().wait, "who does not say waits");
    }
}
