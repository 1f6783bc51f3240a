//! The calls on boxes.

use cocoonbox_core::BoxName;
use cocoonbox_wire::control::v1::{
    Box as BoxMessage, BrowseSnapshotRequest, CreateRequest, DeleteRequest, EnsureRequest, GetRequest,
    HibernateRequest, ListRequest, ListSavesRequest, OperationReply, ReadSnapshotRequest, RenameRequest,
    RestorePathsRequest, RestoreRequest, Save, SaveRequest, Schedule, SetScheduleRequest, SnapshotEntry,
    UsageReply, UsageRequest, WatchRequest,
};

use crate::{BoxRef, Client, ClientError, OperationEvents};

/// The most boxes that [`Client::list_boxes`] takes from a server.
pub const MAX_LISTED_BOXES: usize = 100_000;

/// The most saves, and the most entries of a folder, that are taken from a server.
const MAX_LISTED: usize = 1_000_000;

/// What a new box is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Its name.
    pub name: BoxName,
    /// Its image; `None` is the server's default.
    pub image: Option<String>,
    /// Makes a repeated call answer what the first one answered; empty repeats nothing.
    pub idempotency_key: String,
}

impl CreateOptions {
    /// Makes options for a box of this name on the server's default image.
    pub fn new(name: BoxName) -> Self {
        Self { name, image: None, idempotency_key: String::new() }
    }

    /// Chooses the image.
    pub fn with_image(mut self, image: impl Into<String>) -> Self {
        self.image = Some(image.into());
        self
    }

    /// Chooses the idempotency key.
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = key.into();
        self
    }
}

/// How a box is brought to running.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EnsureOptions {
    /// Makes a repeated call answer what the first one answered.
    pub idempotency_key: String,
}

impl EnsureOptions {
    /// Chooses the idempotency key.
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = key.into();
        self
    }
}

/// How a box is put to sleep.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HibernateOptions {
    /// Gives up memory: processes stop, files stay.
    pub to_disk: bool,
    /// Makes a repeated call answer what the first one answered.
    pub idempotency_key: String,
}

impl HibernateOptions {
    /// Gives up memory: processes stop, files stay.
    pub fn with_to_disk(mut self, to_disk: bool) -> Self {
        self.to_disk = to_disk;
        self
    }

    /// Chooses the idempotency key.
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = key.into();
        self
    }
}

fn text(name: Option<&BoxRef>) -> String {
    name.map(|name| name.as_str().to_owned()).unwrap_or_default()
}

impl Client {
    /// Begins to make a new box and start it.
    pub async fn create_box(&self, options: CreateOptions) -> Result<OperationReply, ClientError> {
        let request = CreateRequest {
            name: options.name.as_str().to_owned(),
            image: options.image.unwrap_or_default(),
            idempotency_key: options.idempotency_key,
            wait: false,
        };
        self.answer(self.boxes().create(self.request(request)).await)
    }

    /// Begins to bring a box to running; `None` is the first box, which is made where there is none.
    pub async fn ensure_box(
        &self,
        name: Option<&BoxRef>,
        options: EnsureOptions,
    ) -> Result<OperationReply, ClientError> {
        let request =
            EnsureRequest { r#box: text(name), idempotency_key: options.idempotency_key, wait: false };
        self.answer(self.boxes().ensure(self.request(request)).await)
    }

    /// Returns one box; `None` is the first, which has state absent where there is none.
    pub async fn show_box(&self, name: Option<&BoxRef>) -> Result<BoxMessage, ClientError> {
        self.answer(self.boxes().get(self.request(GetRequest { r#box: text(name) })).await)
    }

    /// Lists all boxes of the caller, oldest first, reading page after page.
    pub async fn list_boxes(&self) -> Result<Vec<BoxMessage>, ClientError> {
        let mut boxes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = self.request(ListRequest { page_size: 1000, page_token: page_token.clone() });
            let page = self.answer(self.boxes().list(request).await)?;
            boxes.extend(page.boxes);
            if page.next_page_token.is_empty() {
                return Ok(boxes);
            }
            if page.next_page_token == page_token || boxes.len() > MAX_LISTED_BOXES {
                return Err(ClientError::PeerMisbehaved { what: "its list of boxes does not end" });
            }
            page_token = page.next_page_token;
        }
    }

    /// Begins to put a box to sleep.
    pub async fn hibernate_box(
        &self,
        name: Option<&BoxRef>,
        options: HibernateOptions,
    ) -> Result<OperationReply, ClientError> {
        let request = HibernateRequest {
            r#box: text(name),
            to_disk: options.to_disk,
            idempotency_key: options.idempotency_key,
            wait: false,
        };
        self.answer(self.boxes().hibernate(self.request(request)).await)
    }

    /// Begins to save a running box.
    pub async fn save_box(
        &self,
        name: Option<&BoxRef>,
        idempotency_key: &str,
    ) -> Result<OperationReply, ClientError> {
        let idempotency_key = idempotency_key.to_owned();
        let request = SaveRequest { r#box: text(name), idempotency_key, wait: false };
        self.answer(self.boxes().save(self.request(request)).await)
    }

    /// Lists a box's saves, newest first, reading page after page.
    pub async fn list_saves(&self, name: Option<&BoxRef>) -> Result<Vec<Save>, ClientError> {
        let mut saves = Vec::new();
        let mut page_token = String::new();
        loop {
            let request =
                ListSavesRequest { r#box: text(name), page_size: 1000, page_token: page_token.clone() };
            let page = self.answer(self.boxes().list_saves(self.request(request)).await)?;
            saves.extend(page.saves);
            if page.next_page_token.is_empty() {
                return Ok(saves);
            }
            if page.next_page_token == page_token || saves.len() > MAX_LISTED {
                return Err(ClientError::PeerMisbehaved { what: "its list of saves does not end" });
            }
            page_token = page.next_page_token;
        }
    }

    /// Begins to put a save in the place of what a box has; an empty `save` is the newest.
    pub async fn restore_box(
        &self,
        name: Option<&BoxRef>,
        save: &str,
        idempotency_key: &str,
    ) -> Result<OperationReply, ClientError> {
        let (save_id, idempotency_key) = (save.to_owned(), idempotency_key.to_owned());
        let request = RestoreRequest { r#box: text(name), save_id, idempotency_key, wait: false };
        self.answer(self.boxes().restore(self.request(request)).await)
    }

    /// Begins to put files and folders of a save back, by their absolute names in the box.
    pub async fn restore_paths(
        &self,
        name: Option<&BoxRef>,
        save: &str,
        paths: Vec<Vec<u8>>,
        idempotency_key: &str,
    ) -> Result<OperationReply, ClientError> {
        let (save_id, idempotency_key) = (save.to_owned(), idempotency_key.to_owned());
        let request = RestorePathsRequest { r#box: text(name), save_id, paths, idempotency_key, wait: false };
        self.answer(self.boxes().restore_paths(self.request(request)).await)
    }

    /// Lists a folder of a save, reading page after page.
    pub async fn browse(
        &self,
        name: Option<&BoxRef>,
        save: &str,
        path: &[u8],
    ) -> Result<Vec<SnapshotEntry>, ClientError> {
        let mut entries = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = BrowseSnapshotRequest {
                r#box: text(name),
                save_id: save.to_owned(),
                path: path.to_owned(),
                page_size: 1000,
                page_token: page_token.clone(),
            };
            let page = self.answer(self.boxes().browse_snapshot(self.request(request)).await)?;
            entries.extend(page.entries);
            if page.next_page_token.is_empty() {
                return Ok(entries);
            }
            if page.next_page_token == page_token || entries.len() > MAX_LISTED {
                return Err(ClientError::PeerMisbehaved { what: "its listing does not end" });
            }
            page_token = page.next_page_token;
        }
    }

    /// Reads a file of a save, and hands its bytes to `take` as they come, in order; returns what the save says of it.
    pub async fn read_saved<E: From<ClientError>>(
        &self,
        name: Option<&BoxRef>,
        save: &str,
        path: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<SnapshotEntry, E> {
        let request =
            ReadSnapshotRequest { r#box: text(name), save_id: save.to_owned(), path: path.to_owned() };
        let mut parts = self.answer(self.boxes().read_snapshot(self.request(request)).await)?;
        let (mut entry, mut bytes) = (None, 0);
        let failed = |status| ClientError::from_status(status, self.endpoint());
        while let Some(part) = parts.message().await.map_err(failed)? {
            take(&part.data)?;
            bytes += part.data.len() as i64;
            entry = entry.or(part.entry);
        }
        let whole = entry.filter(|entry| entry.bytes == bytes);
        Ok(whole.ok_or(ClientError::PeerMisbehaved { what: "it sent another file than it announced" })?)
    }

    /// Gives a box another name.
    pub async fn rename_box(&self, name: &BoxRef, to: &BoxName) -> Result<BoxMessage, ClientError> {
        let request = RenameRequest { r#box: name.as_str().to_owned(), name: to.as_str().to_owned() };
        self.answer(self.boxes().rename(self.request(request)).await)
    }

    /// Begins to end a box and everything in it.
    pub async fn delete_box(
        &self,
        name: &BoxRef,
        idempotency_key: &str,
    ) -> Result<OperationReply, ClientError> {
        let request = DeleteRequest {
            r#box: name.as_str().to_owned(),
            confirm: true,
            idempotency_key: idempotency_key.to_owned(),
            wait: false,
        };
        self.answer(self.boxes().delete(self.request(request)).await)
    }

    /// Sets when a box wakes by itself; `None` clears it.
    pub async fn schedule_box(
        &self,
        name: Option<&BoxRef>,
        schedule: Option<Schedule>,
    ) -> Result<BoxMessage, ClientError> {
        let request = SetScheduleRequest { r#box: text(name), schedule: Some(schedule.unwrap_or_default()) };
        self.answer(self.boxes().set_schedule(self.request(request)).await)
    }

    /// Returns how much the caller uses.
    pub async fn usage(&self) -> Result<UsageReply, ClientError> {
        self.answer(self.boxes().usage(self.request(UsageRequest {})).await)
    }

    /// Streams an operation's events that come after `after_sequence` (0: all) to its end.
    pub async fn watch(
        &self,
        operation_id: &str,
        after_sequence: i64,
    ) -> Result<OperationEvents, ClientError> {
        let request = WatchRequest { operation_id: operation_id.to_owned(), after_sequence };
        let stream = self.answer(self.boxes().watch(self.request(request)).await)?;
        Ok(OperationEvents::new(stream, self.endpoint().clone()))
    }
}
