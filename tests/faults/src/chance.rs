//! Choices that a seed repeats.

use cocoonbox_core::{Entropy as _, SeededEntropy};

/// A source of choices; the same seed makes the same ones.
#[derive(Debug)]
pub struct Chance(SeededEntropy);

impl Chance {
    /// Makes the source that `seed` and `stream` name; streams of one seed do not resemble each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut first = Self(SeededEntropy::new(seed));
        let start = first.number() ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self(SeededEntropy::new(start))
    }

    /// Draws any number.
    ///
    /// # Panics
    /// Never: this source does not fail.
    pub fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes).expect("a seeded source does not fail");
        u64::from_le_bytes(bytes)
    }

    /// Draws a number below `end`; zero when that is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number().checked_rem(end).unwrap_or(0)
    }

    /// Draws one of `items`.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.below(items.len() as u64);
        items.get(usize::try_from(at).unwrap_or(0))
    }

    /// Says yes `times` in a hundred.
    pub fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }
}

/// Returns the seed of this run and prints it: `COCOONBOX_SEED`, or one that was never used.
///
/// # Panics
/// When the variable holds no number.
pub fn seed(what: &str) -> u64 {
    let seed = if let Ok(text) = std::env::var("COCOONBOX_SEED") {
        text.trim().parse().expect("COCOONBOX_SEED is a number")
    } else {
        let mut bytes = [0; 8];
        cocoonbox_core::SystemEntropy.fill(&mut bytes).expect("the system gives randomness");
        u64::from_le_bytes(bytes) >> 16
    };
    say(&format!("{what}: the seed is {seed}; COCOONBOX_SEED={seed} repeats its choices"));
    seed
}

/// Prints a line that a passing test shows, too.
pub fn say(line: &str) {
    use std::io::Write as _;
    // not by eprintln, which a test harness keeps to itself
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether the long forms are asked for.
pub fn soaks() -> bool {
    std::env::var_os("COCOONBOX_SOAK").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let draw = |seed, stream| {
            let mut chance = Chance::new(seed, stream);
            [chance.number(), chance.below(10), chance.number()]
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
