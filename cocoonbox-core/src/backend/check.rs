//! What every backend refuses alike, so that none forgets a rule.

use std::collections::BTreeSet;

use super::{BackendError, Capabilities, ClaimRequest, HostFile, Nesting};

impl HostFile {
    /// Refuses a file that is too large.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] over [`HostFile::MAX_BYTES`].
    pub fn check(&self) -> Result<(), BackendError> {
        if self.bytes.len() <= Self::MAX_BYTES {
            return Ok(());
        }
        Err(BackendError::Invalid {
            reason: format!(
                "host file {} has {} bytes, {} at most",
                self.name.as_str(),
                self.bytes.len(),
                Self::MAX_BYTES
            ),
        })
    }
}

impl ClaimRequest {
    /// The most host files that a claim starts with.
    pub const MAX_HOST_FILES: usize = 16;

    /// Refuses a request that breaks a rule of its own, or asks for what `capabilities` exclude.
    ///
    /// Images and caps are the backend's to judge.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] for a bad host name and for host files that are too many, too large or named twice;
    /// [`BackendError::Unsupported`] for a network mode or nesting that the backend does not have.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), BackendError> {
        if let Some(hostname) = &self.hostname {
            let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let good = (1..=63).contains(&hostname.len())
                && hostname.bytes().all(|byte| letter(byte) || byte == b'-')
                && !hostname.starts_with('-')
                && !hostname.ends_with('-');
            if !good {
                let reason = "a host name is 1 to 63 of a-z, 0-9 and -, with no - at its ends".to_owned();
                return Err(BackendError::Invalid { reason });
            }
        }
        if self.host_files.len() > Self::MAX_HOST_FILES {
            let reason = format!("{} host files, {} at most", self.host_files.len(), Self::MAX_HOST_FILES);
            return Err(BackendError::Invalid { reason });
        }
        let mut names = BTreeSet::new();
        for file in &self.host_files {
            file.check()?;
            if !names.insert(&file.name) {
                let reason = format!("host file {} is named twice", file.name.as_str());
                return Err(BackendError::Invalid { reason });
            }
        }
        let unsupported =
            |what: String| Err(BackendError::Unsupported { backend: capabilities.backend, what });
        if !capabilities.network_modes.contains(&self.network) {
            return unsupported(format!("give a sandbox the network mode {:?}", self.network));
        }
        if self.nesting == Nesting::Allowed && !capabilities.nesting {
            return unsupported("let a sandbox make sandboxes of its own".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImageName;
    use crate::backend::{HostFileName, NetworkMode};

    #[test]
    fn each_rule_is_refused_by_name() -> Result<(), Box<dyn std::error::Error>> {
        let request = || Ok::<_, crate::NameError>(ClaimRequest::new("a".parse()?, ImageName::host()));
        let file = |size| HostFile::new(HostFileName::identity(), vec![0; size]);
        let capabilities = Capabilities::new("test");
        for (request, word) in [
            (request()?.with_hostname("Upper"), "host name"),
            (request()?.with_hostname(""), "host name"),
            (request()?.with_hostname("-a"), "host name"),
            (request()?.with_hostname("a".repeat(64)), "host name"),
            (request()?.with_host_file(file(HostFile::MAX_BYTES + 1)), "at most"),
            (request()?.with_host_file(file(1)).with_host_file(file(1)), "twice"),
            ((0..17).fold(request()?, |all, _| all.with_host_file(file(1))), "17 host files"),
            (request()?.with_network(NetworkMode::Open), "network mode"),
            (request()?.with_nesting(Nesting::Allowed), "sandboxes"),
        ] {
            let refusal = request.check(&capabilities).expect_err(word).to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
        request()?.with_hostname("a-1").with_host_file(file(HostFile::MAX_BYTES)).check(&capabilities)?;
        Ok(())
    }
}
