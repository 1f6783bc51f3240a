//! Call tokens: what the edge shows the agent in a box.
//!
//! `<payload>.<signature>`, both base64url without padding; the payload is the JSON of [`Claims`], the signature
//! ed25519 over the payload's *text*. A token is good for one box in one wake, one class of methods, 60 seconds.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cocoonbox_core::{BoxId, Timestamp, WakeId};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::identity::{Identity, key_id};

/// The metadata key that carries a call token to the agent.
pub const METADATA: &str = "cocoonbox-call-token";

/// How long a token is good for.
pub const LIFETIME: Duration = Duration::from_mins(1);

/// How far the two clocks may be apart.
pub const LEEWAY: Duration = Duration::from_secs(30);

const MAX_BYTES: usize = 1024;

/// What a call does, by its full method name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MethodClass {
    /// Runs programs.
    Exec,
    /// Moves files.
    Files,
    /// Steers coding agents.
    Agents,
    /// Saves and restores.
    State,
    /// Looks on: neither wakes a box nor keeps it awake.
    Watch,
}

impl MethodClass {
    /// Returns the class of a full method name (`/cocoonbox.agent.v1.Session/Exec`); none for an unknown one.
    pub fn of(method: &str) -> Option<Self> {
        let (service, name) = method.strip_prefix("/cocoonbox.agent.v1.")?.split_once('/')?;
        match (service, name) {
            ("Session", "Exec") => Some(Self::Exec),
            ("Session", "Events") => Some(Self::Watch),
            ("State", "Save" | "Stage" | "RestoreFiles") => Some(Self::State),
            _ => None,
        }
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Claims {
    /// The box it is good for.
    pub box_id: BoxId,
    /// The wake it is good for.
    pub wake_id: WakeId,
    /// The methods it is good for.
    pub class: MethodClass,
    /// Whose key signed it.
    pub key_id: String,
    /// When it was made, milliseconds since the Unix epoch.
    pub issued_at_ms: i64,
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallTokenError {
    /// It is no token of this shape.
    #[error("the call token is malformed")]
    Malformed,
    /// The signature is not the identity's key's.
    #[error("the call token is signed by another key")]
    BadSignature,
    /// It is for another box.
    #[error("the call token is for another box")]
    OtherBox,
    /// It is for another wake: the reader's identity or the signer's view is stale.
    #[error("the call token is for another wake")]
    OtherWake,
    /// It is for other methods.
    #[error("the call token is for other methods")]
    OtherClass,
    /// It is too old, or from the future.
    #[error("the call token is out of its time")]
    Expired,
}

/// Makes a token.
pub fn mint(
    key: &SigningKey,
    box_id: &BoxId,
    wake_id: &WakeId,
    class: MethodClass,
    now: Timestamp,
) -> String {
    let claims = Claims {
        box_id: box_id.clone(),
        wake_id: wake_id.clone(),
        class,
        key_id: key_id(&key.verifying_key()),
        issued_at_ms: now.millis(),
    };
    let mut token = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).expect("claims are always JSON"));
    let signature = key.sign(token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature.to_bytes(), &mut token);
    token
}

/// Checks a token against the box's identity, the method that is called and the time.
///
/// # Errors
/// Any of [`CallTokenError`]; the signature is checked before anything the token says is believed.
pub fn verify(
    token: &str,
    identity: &Identity,
    class: MethodClass,
    now: Timestamp,
) -> Result<Claims, CallTokenError> {
    if token.len() > MAX_BYTES {
        return Err(CallTokenError::Malformed);
    }
    let (payload, signature) = token.split_once('.').ok_or(CallTokenError::Malformed)?;
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| CallTokenError::Malformed)?;
    let signature = Signature::from_slice(&signature).map_err(|_| CallTokenError::Malformed)?;
    let key: VerifyingKey = identity.key().map_err(|_| CallTokenError::BadSignature)?;
    key.verify_strict(payload.as_bytes(), &signature).map_err(|_| CallTokenError::BadSignature)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| CallTokenError::Malformed)?;
    let claims: Claims = serde_json::from_slice(&payload).map_err(|_| CallTokenError::Malformed)?;
    if claims.box_id != identity.box_id {
        return Err(CallTokenError::OtherBox);
    }
    if claims.wake_id != identity.wake_id {
        return Err(CallTokenError::OtherWake);
    }
    if claims.class != class {
        return Err(CallTokenError::OtherClass);
    }
    let issued = Timestamp::from_millis(claims.issued_at_ms);
    if now.since(issued) > LIFETIME + LEEWAY || issued.since(now) > LEEWAY {
        return Err(CallTokenError::Expired);
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signing() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }
    fn box_id() -> BoxId {
        "cb-abcdefghij".parse().unwrap()
    }
    fn wake(letter: &str) -> WakeId {
        format!("wk_{}", letter.repeat(26)).parse().unwrap()
    }
    fn identity() -> Identity {
        Identity::new(box_id(), wake("a"), None, &signing().verifying_key())
    }
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn the_token_keeps_its_bytes() {
        let golden = include_str!("../../fixtures/call-token-v1.txt").trim_end();
        assert_eq!(mint(&signing(), &box_id(), &wake("a"), MethodClass::Exec, NOW), golden);
    }

    #[test]
    fn a_token_is_good_for_its_box_wake_class_and_minute_alone() {
        let check = |token: &str, class, now| verify(token, &identity(), class, now).map(|_| ());
        let good = mint(&signing(), &box_id(), &wake("a"), MethodClass::Exec, NOW);
        let later = NOW.plus(LIFETIME + LEEWAY + Duration::from_millis(1));
        let other_box =
            mint(&signing(), &"cb-bbbbbbbbbb".parse().unwrap(), &wake("a"), MethodClass::Exec, NOW);
        let other_wake = mint(&signing(), &box_id(), &wake("b"), MethodClass::Exec, NOW);
        let other_key =
            mint(&SigningKey::from_bytes(&[8; 32]), &box_id(), &wake("a"), MethodClass::Exec, NOW);
        assert_eq!(check(&good, MethodClass::Exec, NOW), Ok(()));
        assert_eq!(check(&good, MethodClass::Watch, NOW), Err(CallTokenError::OtherClass));
        assert_eq!(check(&good, MethodClass::Exec, later), Err(CallTokenError::Expired));
        assert_eq!(check(&good, MethodClass::Exec, Timestamp::from_millis(0)), Err(CallTokenError::Expired));
        assert_eq!(check(&other_box, MethodClass::Exec, NOW), Err(CallTokenError::OtherBox));
        assert_eq!(check(&other_wake, MethodClass::Exec, NOW), Err(CallTokenError::OtherWake));
        assert_eq!(check(&other_key, MethodClass::Exec, NOW), Err(CallTokenError::BadSignature));
        assert_eq!(check("a.b", MethodClass::Exec, NOW), Err(CallTokenError::Malformed));
        assert_eq!(check(&"a".repeat(2000), MethodClass::Exec, NOW), Err(CallTokenError::Malformed));
    }

    #[test]
    fn unknown_methods_have_no_class() {
        assert_eq!(MethodClass::of("/cocoonbox.agent.v1.Session/Exec"), Some(MethodClass::Exec));
        assert_eq!(MethodClass::of("/cocoonbox.agent.v1.Session/Events"), Some(MethodClass::Watch));
        assert_eq!(MethodClass::of("/cocoonbox.agent.v1.State/Save"), Some(MethodClass::State));
        for method in ["/cocoonbox.agent.v1.Session/Nope", "/grpc.health.v1.Health/Check", "", "/"] {
            assert_eq!(MethodClass::of(method), None, "{method}");
        }
    }

    proptest! {
        #[test]
        fn no_flipped_byte_passes(position in 0_usize..400, bit in 0_u8..8) {
            let mut bytes = mint(&signing(), &box_id(), &wake("a"), MethodClass::Exec, NOW).into_bytes();
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
            if let Ok(token) = String::from_utf8(bytes) {
                prop_assert!(verify(&token, &identity(), MethodClass::Exec, NOW).is_err());
            }
        }
    }
}
