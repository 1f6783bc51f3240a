//! The calls on saves as a whole.

use cocoonbox_wire::control::v1::{
    CheckEvent, CheckReport, CheckRequest, ExportKeyRequest, ImportKeyRequest, PruneReply, PruneRequest,
    RebaseRequest, RecoveredBox,
};

use crate::control::OperationReply;
use crate::{BoxRef, Client, ClientError, PrintedStateKey};

impl Client {
    /// Has a save read, and returns what is damaged; an empty `save` is the newest, and one of `sample` parts is read.
    /// `told` hears how far it is.
    pub async fn check_save(
        &self,
        name: Option<&BoxRef>,
        save: &str,
        sample: u32,
        mut told: impl FnMut(&CheckEvent),
    ) -> Result<CheckReport, ClientError> {
        let name = name.map(|name| name.as_str().to_owned()).unwrap_or_default();
        let request = CheckRequest { r#box: name, save_id: save.to_owned(), sample };
        let mut events = self.answer(self.state().check(self.request(request)).await)?;
        loop {
            let next = events.message().await;
            let next = next.map_err(|status| ClientError::from_status(status, self.endpoint()))?;
            let ended = ClientError::PeerMisbehaved { what: "its check ends without a report" };
            let mut event = next.ok_or(ended)?;
            if let Some(report) = event.report.take() {
                return Ok(report);
            }
            told(&event);
        }
    }

    /// Has what no save needs taken out; `dry_run` only says what would go.
    pub async fn prune(&self, dry_run: bool) -> Result<PruneReply, ClientError> {
        self.answer(self.state().prune(self.request(PruneRequest { dry_run })).await)
    }

    /// Returns the key to the caller's saves.
    pub async fn export_state_key(&self) -> Result<PrintedStateKey, ClientError> {
        let request = self.request(ExportKeyRequest { confirm: true });
        Ok(PrintedStateKey::new(self.answer(self.state().export_key(request).await)?.key))
    }

    /// Gives the server a key of another server over the same store; returns the boxes whose saves were found.
    pub async fn import_state_key(&self, key: &PrintedStateKey) -> Result<Vec<RecoveredBox>, ClientError> {
        let request = self.request(ImportKeyRequest { key: key.reveal().to_owned() });
        Ok(self.answer(self.state().import_key(request).await)?.boxes)
    }

    /// Begins to move a box to another image; none is the server's for new boxes. Its programs end.
    pub async fn rebase_box(
        &self,
        name: &BoxRef,
        image: Option<&str>,
        idempotency_key: &str,
    ) -> Result<OperationReply, ClientError> {
        let request = RebaseRequest {
            r#box: name.as_str().to_owned(),
            image: image.unwrap_or_default().to_owned(),
            confirm: true,
            idempotency_key: idempotency_key.to_owned(),
            wait: false,
        };
        self.answer(self.boxes().rebase(self.request(request)).await)
    }
}
