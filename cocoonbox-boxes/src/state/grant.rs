//! Which objects a box may put and get.

use std::collections::BTreeSet;

use cocoonbox_state::{BoxKeys, ObjectKey, PutGrant};
use cocoonbox_wire::agent::v1::Ask;

/// What a call may touch.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    packs: String,
    own: String,
    /// Manifests of other boxes of the domain.
    others: BTreeSet<String>,
    writes: bool,
}

/// What is asked for, once it is known that it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Put(PutGrant),
    Get(ObjectKey),
}

impl Scope {
    /// Lets a box read the packs of its domain and its own saves, and with `writes` add to both.
    pub(super) fn of(keys: &BoxKeys, writes: bool) -> Self {
        let (uid, domain, label) = (keys.uid(), keys.domain().as_str(), keys.box_label());
        Self {
            packs: format!("{uid}/packs/{domain}/"),
            own: format!("{uid}/saves/{label}/"),
            others: BTreeSet::new(),
            writes,
        }
    }

    /// Lets it read the saves of another box of its domain.
    pub(super) fn with_neighbour(mut self, keys: &BoxKeys) -> Self {
        self.others.insert(format!("{}/saves/{}/", keys.uid(), keys.box_label()));
        self
    }

    /// Checks one request.
    pub(super) fn check(&self, ask: &Ask) -> Result<Wanted, &'static str> {
        let key: ObjectKey = ask.key.parse().map_err(|_| "no object has this name")?;
        let text = key.as_str();
        let own = text.starts_with(&self.packs) || text.starts_with(&self.own);
        match &ask.sum {
            Some(sum) if own && self.writes => {
                let mut grant = PutGrant::new(key, &[]);
                grant.length = sum.length;
                grant.sha256 = sum.sha256.as_ref().try_into().map_err(|_| "the checksum is no SHA-256")?;
                Ok(Wanted::Put(grant))
            }
            None if own || self.others.iter().any(|prefix| text.starts_with(prefix)) => Ok(Wanted::Get(key)),
            _ => Err("this object is not the box's"),
        }
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_state::{Domain, StateKey};
    use cocoonbox_wire::agent::v1::Sum;

    use super::*;

    #[test]
    fn a_box_is_granted_its_own_objects_and_no_others() {
        let key = StateKey::new([1; 32]);
        let [one, two] = ["cb-one", "cb-two"]
            .map(|label| key.box_keys(&"us_a".parse().unwrap(), &Domain::user(), &label.parse().unwrap()));
        let scope = Scope::of(&one, true).with_neighbour(&two);
        let (reads, id) = (Scope::of(&one, false), "0".repeat(32));
        let sum = Some(Sum { length: 1, sha256: vec![0; 32].into() });
        for (name, puts, gets) in [
            (format!("us_a/packs/user/{id}"), true, true),
            (format!("us_a/saves/cb-one/{id}"), true, true),
            (format!("us_a/saves/cb-two/{id}"), false, true),
            (format!("us_a/saves/cb-three/{id}"), false, false),
            (format!("us_a/packs/agent-cb-one/{id}"), false, false),
            (format!("us_b/packs/user/{id}"), false, false),
            ("us_a/catalog/0000000000000001".to_owned(), false, false),
            ("us_a/flows/index".to_owned(), false, false),
            (format!("us_a/packs/user/../{id}"), false, false),
        ] {
            let ask = |sum| Ask { number: 1, key: name.clone(), sum };
            assert_eq!(scope.check(&ask(sum.clone())).is_ok(), puts, "put {name}");
            assert_eq!(scope.check(&ask(None)).is_ok(), gets, "get {name}");
            assert!(reads.check(&ask(sum.clone())).is_err(), "a restore puts {name}");
        }
        let short = Some(Sum { length: 1, sha256: vec![0; 31].into() });
        assert!(scope.check(&Ask { number: 1, key: format!("us_a/packs/user/{id}"), sum: short }).is_err());
    }
}
