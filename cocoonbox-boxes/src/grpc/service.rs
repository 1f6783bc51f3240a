use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::HibernateTo;
use cocoonbox_core::{BoxId, BoxName, ImageName, NameError, OperationId};
use cocoonbox_wire::control::v1 as wire;
use cocoonbox_wire::control::v1::boxes_server::Boxes as BoxesService;
use futures::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::message;
use crate::engine::{Confirm, Started, check};
use crate::{Caller, Engine, EngineError, IdempotencyKey};

const DEFAULT_PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// The `Boxes` service.
#[derive(Debug)]
pub struct Boxes {
    engine: Arc<Engine>,
}

impl Boxes {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    fn message(&self, record: cocoonbox_core::machine::BoxRecord) -> wire::Box {
        message::one(record, self.engine.config())
    }

    async fn reply(
        &self,
        caller: &Caller,
        started: Started,
        wait: bool,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let mut reply = wire::OperationReply {
            operation_id: started.operation.as_ref().map(ToString::to_string).unwrap_or_default(),
            r#box: Some(started.record.clone().map_or_else(message::absent, |record| self.message(record))),
            event: None,
        };
        if wait && let Some(last) = self.engine.wait(&started).await? {
            reply.event = Some(message::event(check(last)?));
            reply.r#box = Some(match self.engine.get(&caller.user, started.box_id.as_str()).await {
                Ok(Some(record)) => self.message(record),
                Ok(None) | Err(EngineError::NotFound { .. }) => message::absent(),
                Err(error) => return Err(error.into()),
            });
        }
        Ok(Response::new(reply))
    }
}

pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let none = || Status::unauthenticated("this call needs a valid token: sign in first");
    // agents have a door of their own, which shows them less
    let known = request.extensions().get::<Caller>().filter(|caller| caller.agent.is_none());
    known.cloned().ok_or_else(none)
}

fn invalid(field: &'static str) -> impl FnOnce(NameError) -> EngineError {
    move |error| EngineError::Invalid { field, reason: error.rule.to_owned() }
}

fn optional<T: std::str::FromStr<Err = NameError>>(
    field: &'static str,
    text: &str,
) -> Result<Option<T>, EngineError> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(invalid(field)) }
}

fn page_size(asked: i32) -> Result<usize, Status> {
    match usize::try_from(asked) {
        Ok(0) => Ok(DEFAULT_PAGE),
        Ok(size) if size <= LARGEST_PAGE => Ok(size),
        _ => Err(Status::invalid_argument("page_size: use 1 to 1000, or 0 for 100")),
    }
}

fn page_token() -> Status {
    Status::invalid_argument("page_token: use the next_page_token of the page before, or nothing")
}

/// How many bytes of a file of a save are read at a time.
const PART: u64 = 2 << 20;

type PartStream = Pin<Box<dyn Stream<Item = Result<wire::ReadSnapshotPart, Status>> + Send>>;
type EventStream = Pin<Box<dyn Stream<Item = Result<wire::OperationEvent, Status>> + Send>>;

#[tonic::async_trait]
impl BoxesService for Boxes {
    type WatchStream = EventStream;
    type ReadSnapshotStream = PartStream;

    async fn create(
        &self,
        request: Request<wire::CreateRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let name = optional::<BoxName>("name", &request.name)?;
        let image = optional::<ImageName>("image", &request.image)?;
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let started = self.engine.create(&caller.user, caller.limits, name, image, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn ensure(
        &self,
        request: Request<wire::EnsureRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let started = self.engine.ensure(&caller.user, caller.limits, &request.r#box, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn get(&self, request: Request<wire::GetRequest>) -> Result<Response<wire::Box>, Status> {
        let caller = caller(&request)?;
        let record = self.engine.get(&caller.user, &request.into_inner().r#box).await?;
        Ok(Response::new(record.map_or_else(message::absent, |record| self.message(record))))
    }

    async fn list(&self, request: Request<wire::ListRequest>) -> Result<Response<wire::ListReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size)?;
        let after = match request.page_token.as_str() {
            "" => None,
            text => Some(text.parse::<BoxId>().map_err(|_| page_token())?),
        };
        let page = self.engine.list(&caller.user, after.as_ref(), limit).await?;
        Ok(Response::new(wire::ListReply {
            boxes: page.boxes.into_iter().map(|record| self.message(record)).collect(),
            next_page_token: page.next.map(|id| id.to_string()).unwrap_or_default(),
        }))
    }

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<EventStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let operation: OperationId = request.operation_id.parse().map_err(|_| {
            Status::invalid_argument("operation_id: use the id that the call which began it answered")
        })?;
        let after = u64::try_from(request.after_sequence).map_err(|_| {
            Status::invalid_argument("after_sequence: use 0, or the sequence of the last event you have")
        })?;
        let events = self.engine.watch(&caller.user, &operation, after).await?;
        Ok(Response::new(Box::pin(events.map(|event| event.map(message::event).map_err(Status::from)))))
    }

    async fn hibernate(
        &self,
        request: Request<wire::HibernateRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let to = if request.to_disk { HibernateTo::Disk } else { HibernateTo::Memory };
        let started = self.engine.hibernate(&caller.user, &request.r#box, to, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn save(
        &self,
        request: Request<wire::SaveRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let started = self.engine.save(&caller.user, &request.r#box, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn list_saves(
        &self,
        request: Request<wire::ListSavesRequest>,
    ) -> Result<Response<wire::ListSavesReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size)?;
        let saves = self.engine.saves(&caller.user, &request.r#box).await?;
        let start = match request.page_token.as_str() {
            "" => 0,
            after => 1 + saves.iter().position(|save| save.id == after).ok_or_else(page_token)?,
        };
        let more = saves.len() > start + limit;
        let page: Vec<_> = saves.into_iter().skip(start).take(limit).collect();
        let next = if more { page.last().map(|save| save.id.clone()) } else { None };
        Ok(Response::new(wire::ListSavesReply {
            saves: page.into_iter().map(message::save).collect(),
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn restore(
        &self,
        request: Request<wire::RestoreRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let (hint, save) = (&request.r#box, &request.save_id);
        let started = self.engine.restore(&caller.user, caller.limits, hint, save, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn browse_snapshot(
        &self,
        request: Request<wire::BrowseSnapshotRequest>,
    ) -> Result<Response<wire::BrowseSnapshotReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size)?;
        let (hint, save) = (&request.r#box, &request.save_id);
        let entries = self.engine.browse(&caller.user, hint, save, &request.path).await?;
        let start: usize = match request.page_token.as_str() {
            "" => 0,
            at => at.parse().map_err(|_| page_token())?,
        };
        let next = start.saturating_add(limit);
        let more = entries.len() > next;
        Ok(Response::new(wire::BrowseSnapshotReply {
            entries: entries.into_iter().skip(start).take(limit).map(message::entry).collect(),
            // a save does not change
            next_page_token: if more { next.to_string() } else { String::new() },
        }))
    }

    async fn read_snapshot(
        &self,
        request: Request<wire::ReadSnapshotRequest>,
    ) -> Result<Response<PartStream>, Status> {
        let caller = caller(&request)?;
        let wire::ReadSnapshotRequest { r#box: hint, save_id, path } = request.into_inner();
        let file = self.engine.open_saved(&caller.user, &hint, &save_id, &path).await?;
        let entry = message::entry(file.entry().clone());
        let first = wire::ReadSnapshotPart { entry: Some(entry), data: Vec::new() };
        let rest = futures::stream::try_unfold((file, 0), |(file, offset)| async move {
            let data = file.read(offset, PART).await.map_err(EngineError::from)?;
            let next = offset + data.len() as u64;
            let part = wire::ReadSnapshotPart { entry: None, data };
            Ok::<_, Status>((next > offset).then_some((part, (file, next))))
        });
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(first)]).chain(rest))))
    }

    async fn restore_paths(
        &self,
        request: Request<wire::RestorePathsRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let paths = request.paths.clone();
        let (hint, save) = (&request.r#box, &request.save_id);
        let started = self.engine.restore_files(&caller.user, caller.limits, hint, save, paths, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn rebase(
        &self,
        request: Request<wire::RebaseRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let image = optional::<ImageName>("image", &request.image)?;
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let confirm = if request.confirm { Confirm::Yes } else { Confirm::No };
        let started =
            self.engine.rebase(&caller.user, caller.limits, &request.r#box, image, confirm, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn rename(&self, request: Request<wire::RenameRequest>) -> Result<Response<wire::Box>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let name: BoxName = request.name.parse().map_err(invalid("name"))?;
        let record = self.engine.rename(&caller.user, &request.r#box, name).await?;
        Ok(Response::new(self.message(record)))
    }

    async fn delete(
        &self,
        request: Request<wire::DeleteRequest>,
    ) -> Result<Response<wire::OperationReply>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let key = IdempotencyKey::optional(&request.idempotency_key)?;
        let confirm = if request.confirm { Confirm::Yes } else { Confirm::No };
        let started = self.engine.delete(&caller.user, &request.r#box, confirm, key).await?;
        self.reply(&caller, started, request.wait).await
    }

    async fn set_schedule(
        &self,
        request: Request<wire::SetScheduleRequest>,
    ) -> Result<Response<wire::Box>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let schedule = request.schedule.unwrap_or_default();
        let stay_up = Duration::from_secs(u64::try_from(schedule.stay_up_seconds).unwrap_or(0));
        let record = self
            .engine
            .set_schedule(&caller.user, &request.r#box, &schedule.cron, &schedule.time_zone, stay_up)
            .await?;
        Ok(Response::new(self.message(record)))
    }

    async fn usage(
        &self,
        request: Request<wire::UsageRequest>,
    ) -> Result<Response<wire::UsageReply>, Status> {
        let caller = caller(&request)?;
        let usage = self.engine.usage(&caller.user, caller.limits).await?;
        Ok(Response::new(message::usage(&usage)))
    }
}
