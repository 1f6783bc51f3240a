//! How a box is named by people.

use std::fmt;
use std::str::FromStr;

use cocoonbox_core::{BoxId, BoxName};

/// A box as a person names it: by its name or by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoxRef {
    /// By name, such as `main`.
    Name(BoxName),
    /// By id, such as `cb-abcdefghij`.
    Id(BoxId),
}

/// A text that names no box.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a box name (1 to 32 of a-z, 0-9, _ and -) nor a box id (cb- and 10 of a-z, 2-7)")]
#[non_exhaustive]
pub struct BoxRefError;

impl BoxRef {
    /// Returns the name or id as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name.as_str(),
            Self::Id(id) => id.as_str(),
        }
    }
}

impl FromStr for BoxRef {
    type Err = BoxRefError;

    fn from_str(text: &str) -> Result<Self, BoxRefError> {
        if let Ok(name) = text.parse() {
            return Ok(Self::Name(name));
        }
        text.parse().map(Self::Id).map_err(|_| BoxRefError)
    }
}

impl fmt::Display for BoxRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_named_by_name_or_id() {
        assert!(matches!("main".parse(), Ok(BoxRef::Name(_))));
        assert!(matches!("cb-abcdefghij".parse(), Ok(BoxRef::Id(_))));
        for bad in ["", "cb-", "Main", "a/b", "::1", "a b"] {
            assert_eq!(bad.parse::<BoxRef>(), Err(BoxRefError), "{bad}");
        }
    }
}
