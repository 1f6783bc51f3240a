//! A user's name in a store and the key to it, which belong together: every key follows from both.

use cocoonbox_core::{Entropy, EntropyError};
use cocoonbox_seal::{KEY_LENGTH, Key, NONCE_LENGTH, SealError, derive, open, seal};
use zeroize::Zeroize;

use crate::key::SALT;
use crate::{KeyError, Label, PrintedKey, StateKey};

/// Who somebody is in a store of objects: what is enough to read all of their saves.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name and a key")]
pub struct Account {
    /// The name that their objects begin with.
    pub uid: Label,
    /// Their state key.
    pub key: StateKey,
}

impl Account {
    /// Prints name and key for safekeeping, in one line.
    pub fn export(&self) -> PrintedKey {
        PrintedKey::new(format!("{} {}", self.uid, self.key.export().reveal()))
    }

    /// Reads what [`export`](Self::export) printed.
    ///
    /// # Errors
    /// [`KeyError::Account`] without a name, otherwise as [`StateKey::import`].
    pub fn import(text: &str) -> Result<Self, KeyError> {
        let (uid, key) = text.trim().split_once(char::is_whitespace).ok_or(KeyError::Account)?;
        Ok(Self { uid: uid.parse().map_err(|_| KeyError::Account)?, key: StateKey::import(key)? })
    }
}

fn wrapping(master: &Key, owner: &Label) -> Key {
    derive(master, SALT, &[b"state-key", owner.as_str().as_bytes()])
}

/// Seals `owner`'s account under the keeper's master key: a nonce of 12 bytes, then sealed the key of 32, and the name
/// where it is not `owner`'s own, and a tag of 16.
///
/// # Errors
/// As [`Entropy::fill`].
pub fn seal_account(
    master: &Key,
    owner: &Label,
    account: &Account,
    entropy: &dyn Entropy,
) -> Result<Vec<u8>, EntropyError> {
    let mut nonce = [0; NONCE_LENGTH];
    entropy.fill(&mut nonce)?;
    // as long as it gets: a buffer that grows leaves the key behind
    let mut sealed = Vec::with_capacity(256);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(account.key.reveal());
    if account.uid != *owner {
        sealed.extend_from_slice(account.uid.as_str().as_bytes());
    }
    seal(&wrapping(master, owner), &nonce, owner.as_str().as_bytes(), &mut sealed, NONCE_LENGTH)
        .expect("a hundred bytes are not too many");
    Ok(sealed)
}

/// Opens what [`seal_account`] sealed for `owner`.
///
/// # Errors
/// [`KeyError::Sealed`].
pub fn open_account(master: &Key, owner: &Label, sealed: &[u8]) -> Result<Account, KeyError> {
    let wrong = KeyError::Sealed(SealError::Forged);
    let (nonce, rest) = sealed.split_first_chunk::<NONCE_LENGTH>().ok_or(wrong)?;
    let mut plain = rest.to_vec();
    open(&wrapping(master, owner), nonce, owner.as_str().as_bytes(), &mut plain).map_err(KeyError::Sealed)?;
    let (key, uid) = plain.split_first_chunk::<KEY_LENGTH>().ok_or(wrong)?;
    let uid = match uid {
        [] => owner.clone(),
        uid => std::str::from_utf8(uid).ok().and_then(|uid| uid.parse().ok()).ok_or(wrong)?,
    };
    let account = Account { uid, key: StateKey::new(*key) };
    plain.zeroize();
    Ok(account)
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::{SeededEntropy, SystemEntropy};

    use super::*;

    fn label(text: &str) -> Label {
        text.parse().expect("a label")
    }

    #[test]
    fn a_sealed_account_opens_for_its_owner_and_master_alone() -> Result<(), Box<dyn std::error::Error>> {
        let (master, key) = (Key::new([1; 32]), StateKey::generate(&SystemEntropy)?);
        for uid in ["anna", "us_of-another-server"] {
            let account = Account { uid: label(uid), key: key.clone() };
            let sealed = seal_account(&master, &label("anna"), &account, &SeededEntropy::new(1))?;
            let opened = open_account(&master, &label("anna"), &sealed)?;
            assert_eq!((opened.uid, opened.key.reveal()), (account.uid, key.reveal()));
            assert!(open_account(&master, &label("bert"), &sealed).is_err());
            assert!(open_account(&Key::new([2; 32]), &label("anna"), &sealed).is_err());
            assert!(open_account(&master, &label("anna"), &sealed[1..]).is_err());
            assert!(open_account(&master, &label("anna"), b"").is_err());
        }
        Ok(())
    }

    #[test]
    fn a_printed_account_reads_back_and_no_other_text_does() -> Result<(), Box<dyn std::error::Error>> {
        let account = Account { uid: label("us_anna"), key: StateKey::new([7; 32]) };
        let printed = account.export();
        let read = Account::import(&format!("  {}\n", printed.reveal()))?;
        assert_eq!((read.uid, read.key.reveal()), (account.uid.clone(), account.key.reveal()));
        let key = account.key.export();
        for wrong in ["", "us_anna", key.reveal(), "us anna x", &format!("us/anna {}", key.reveal())] {
            assert!(Account::import(wrong).is_err());
        }
        assert!(matches!(
            Account::import(&printed.reveal().replace("cbk1-a", "cbk1-b")),
            Err(KeyError::Checksum)
        ));
        assert!(!format!("{account:?} {printed:?}").contains("cbk1"));
        Ok(())
    }
}
