//! Numbers and bytes as the formats write them.

/// Bytes that are not what a format allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is malformed")]
#[non_exhaustive]
pub struct FormatError {
    /// Which rule was broken.
    pub what: &'static str,
}

impl FormatError {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

/// Appends numbers and bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Seven bits a byte, low ones first; the top bit says that more follow.
    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Zigzag: 0, -1, 1, -2, ...
    pub(crate) fn signed(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }
}

/// Takes numbers and bytes off the front, never more than there is.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) const fn error(&self) -> FormatError {
        FormatError::new(self.what)
    }

    pub(crate) fn raw(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(self.error())?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(self.error())?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn number(&mut self) -> Result<u64, FormatError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                // one spelling for each number
                return if byte == 0 && shift > 0 { Err(self.error()) } else { Ok(value) };
            }
        }
        Err(self.error())
    }

    pub(crate) fn signed(&mut self) -> Result<i64, FormatError> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn up_to(&mut self, most: u64) -> Result<u64, FormatError> {
        let value = self.number()?;
        if value > most { Err(self.error()) } else { Ok(value) }
    }

    pub(crate) fn small(&mut self) -> Result<u32, FormatError> {
        u32::try_from(self.number()?).map_err(|_| self.error())
    }

    /// A count of things of at least `least` bytes each: no more than the rest can hold.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, FormatError> {
        Ok(self.up_to((self.rest.len() / least.max(1)) as u64)? as usize)
    }

    pub(crate) fn bytes(&mut self, most: usize) -> Result<&'a [u8], FormatError> {
        let length = self.up_to(most as u64)? as usize;
        self.raw(length)
    }

    /// The rest is padding: zeros.
    pub(crate) fn padding(self) -> Result<(), FormatError> {
        if self.rest.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(self.error()) }
    }

    pub(crate) const fn end(self) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_read_back(unsigned in any::<u64>(), signed in any::<i64>(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut writer = Writer::default();
            writer.number(unsigned);
            writer.signed(signed);
            writer.bytes(&bytes);
            let mut reader = Reader::new(&writer.0, "it");
            prop_assert_eq!(reader.number()?, unsigned);
            prop_assert_eq!(reader.signed()?, signed);
            prop_assert_eq!(reader.bytes(300)?, &bytes[..]);
            prop_assert!(reader.end().is_ok());
        }
    }

    #[test]
    fn a_number_has_one_spelling_and_an_end() {
        for bad in [&[0x80, 0x00][..], &[0x80], &[0xFF; 10], &[0x80; 11], &[]] {
            assert!(Reader::new(bad, "it").number().is_err(), "{bad:?}");
        }
        let mut most = Writer::default();
        most.number(u64::MAX);
        assert_eq!(Reader::new(&most.0, "it").number(), Ok(u64::MAX));
    }

    #[test]
    fn a_count_cannot_be_more_than_the_rest_holds() {
        let mut writer = Writer::default();
        writer.number(1 << 40);
        assert!(Reader::new(&writer.0, "it").count(1).is_err());
    }
}
