//! The one macro that mints secret types.

#[doc(hidden)]
pub mod __private {
    pub use subtle::ConstantTimeEq;
    pub use zeroize::Zeroizing;
}

/// Declares a type that holds a secret text.
///
/// The type has no `Display`, no `Serialize` and no `PartialEq`; `Debug` prints the type's name alone; the text is
/// wiped when it is dropped; `reveal()` is the only way to it.
///
/// ```
/// cocoonbox_core::secret! {
///     /// What a person shows at the door.
///     pub struct DoorToken;
/// }
/// let token = DoorToken::new("hunter2".to_owned());
/// assert_eq!(format!("{token:?}"), "DoorToken(redacted)");
/// assert!(token.matches(&DoorToken::new(token.reveal().to_owned())));
/// ```
#[macro_export]
macro_rules! secret {
    ($(#[$doc:meta])* $visibility:vis struct $name:ident;) => {
        $(#[$doc])*
        $visibility struct $name($crate::__private::Zeroizing<String>);

        impl $name {
            /// Takes the text in.
            $visibility fn new(text: String) -> Self {
                Self($crate::__private::Zeroizing::new(text))
            }

            /// Lends the text; the only way to it.
            $visibility fn reveal(&self) -> &str {
                &self.0
            }

            /// Returns whether both hold the same text, in time that does not tell where they differ.
            #[allow(dead_code, reason = "part of what every secret offers")]
            $visibility fn matches(&self, other: &Self) -> bool {
                use $crate::__private::ConstantTimeEq as _;
                self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(redacted)"))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::secret! {
        /// A canary.
        struct Canary;
    }

    #[test]
    fn a_secret_does_not_print() {
        let canary = Canary::new("tweet".to_owned());
        assert_eq!(format!("{canary:?} {:?}", Some(&canary)), "Canary(redacted) Some(Canary(redacted))");
        assert_eq!(canary.reveal(), "tweet");
        assert!(!canary.matches(&Canary::new("twee".to_owned())));
    }
}
