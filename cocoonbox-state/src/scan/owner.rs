/// The user that an owner outside the mapping becomes, as the kernel shows it in the guest.
const OVERFLOW: u32 = 65534;

/// How owners on this machine are called in the guest; numbers of users and groups alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerMap(Vec<(u32, u32, u32)>);

impl OwnerMap {
    /// Makes the mapping that changes nothing.
    pub const fn identity() -> Self {
        Self(Vec::new())
    }

    /// Makes a mapping of ranges: the first number here, the first in the guest, how many, as in `/proc/PID/uid_map`.
    pub const fn ranges(ranges: Vec<(u32, u32, u32)>) -> Self {
        Self(ranges)
    }

    /// Returns what the guest sees, and whether the owner is within the mapping.
    pub(crate) fn to_guest(&self, here: u32) -> (u32, bool) {
        Self::map(self.0.iter().map(|(from, to, count)| (*from, *to, *count)), self.0.is_empty(), here)
    }

    /// Returns what it is here, if the mapping has it.
    pub(crate) fn to_host(&self, there: u32) -> Option<u32> {
        let (here, known) =
            Self::map(self.0.iter().map(|(from, to, count)| (*to, *from, *count)), self.0.is_empty(), there);
        known.then_some(here)
    }

    fn map(mut ranges: impl Iterator<Item = (u32, u32, u32)>, identity: bool, number: u32) -> (u32, bool) {
        if identity {
            return (number, true);
        }
        ranges
            .find_map(|(from, to, count)| {
                number.checked_sub(from).filter(|at| *at < count).map(|at| (to + at, true))
            })
            .unwrap_or((OVERFLOW, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_mapped_both_ways() {
        let map = OwnerMap::ranges(vec![(100_000, 0, 1000), (1000, 1000, 1)]);
        assert_eq!(map.to_guest(100_001), (1, true));
        assert_eq!(map.to_guest(1000), (1000, true));
        assert_eq!(map.to_guest(5), (65534, false));
        assert_eq!(map.to_host(1), Some(100_001));
        assert_eq!(map.to_host(65534), None);
        assert_eq!(OwnerMap::identity().to_guest(7), (7, true));
    }
}
