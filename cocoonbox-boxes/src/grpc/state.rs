use std::pin::Pin;
use std::sync::Arc;

use cocoonbox_core::machine::Bytes;
use cocoonbox_wire::control::v1 as wire;
use cocoonbox_wire::control::v1::state_server::State as StateService;
use futures::Stream;
use futures::stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::service::caller;
use crate::care::{CheckInfo, PruneInfo, StateCare};
use crate::{Caller, Engine, EngineError, KeeperError};

/// The most files that are named of one damaged object.
const MAX_NAMED: usize = 1000;

/// The `State` service.
#[derive(Debug)]
pub struct State {
    engine: Arc<Engine>,
    care: Option<Arc<dyn StateCare>>,
}

type Events = Pin<Box<dyn Stream<Item = Result<wire::CheckEvent, Status>> + Send>>;

impl State {
    pub(super) fn new(engine: Arc<Engine>, care: Option<Arc<dyn StateCare>>) -> Self {
        Self { engine, care }
    }

    fn care(&self) -> Result<Arc<dyn StateCare>, Status> {
        let none = || EngineError::Unsupported { what: "this server has no state store" };
        self.care.clone().ok_or_else(|| none().into())
    }
}

fn status(error: KeeperError) -> Status {
    EngineError::from(error).into()
}

fn report(info: CheckInfo) -> wire::CheckReport {
    let damages = info.damages.into_iter().map(|damage| wire::Damage {
        object: damage.object,
        missing: damage.missing,
        files: damage.paths.len() as i64,
        paths: damage.paths.into_iter().take(MAX_NAMED).collect(),
    });
    wire::CheckReport {
        save_id: info.save,
        parts: info.parts as i64,
        bytes: info.bytes as i64,
        damages: damages.collect(),
    }
}

fn pruned(info: PruneInfo) -> wire::PruneReply {
    let forgotten = |(box_id, save_id)| wire::ForgottenSave { box_id, save_id };
    wire::PruneReply {
        forget: info.forget.into_iter().map(forgotten).collect(),
        packs: info.packs as i64,
        manifests: info.manifests as i64,
        bytes: info.bytes as i64,
        sweep_at_ms: info.sweep_at.map_or(0, cocoonbox_core::Timestamp::millis),
        deleted: info.deleted as i64,
    }
}

/// Where a check's events come from: how far it is while it works, then what it found.
struct Checking<W> {
    work: Pin<Box<W>>,
    heard: watch::Receiver<Bytes>,
}

impl<W: Future<Output = Result<CheckInfo, KeeperError>>> Checking<W> {
    async fn next(mut self) -> Option<(Result<wire::CheckEvent, Status>, Option<Self>)> {
        let done = tokio::select! {
            done = &mut self.work => done,
            Ok(()) = self.heard.changed() => {
                let at = *self.heard.borrow_and_update();
                let event = wire::CheckEvent {
                    done_bytes: at.done as i64,
                    total_bytes: at.total as i64,
                    report: None,
                };
                return Some((Ok(event), Some(self)));
            }
        };
        let event = done.map_err(status).map(|info| wire::CheckEvent {
            done_bytes: info.bytes as i64,
            total_bytes: info.bytes as i64,
            report: Some(report(info)),
        });
        Some((event, None))
    }
}

#[tonic::async_trait]
impl StateService for State {
    type CheckStream = Events;

    async fn check(&self, request: Request<wire::CheckRequest>) -> Result<Response<Events>, Status> {
        let Caller { user, .. } = caller(&request)?;
        let care = self.care()?;
        let request = request.into_inner();
        let none = || EngineError::NotFound { what: "box yet: ensure one to make it".to_owned() };
        let record = self.engine.get(&user, &request.r#box).await?.ok_or_else(none)?;
        let (sender, heard) = watch::channel(Bytes::default());
        let work =
            async move { care.check(&user, &record.id, &request.save_id, request.sample, sender).await };
        let first = Some(Checking { work: Box::pin(work), heard });
        let events = stream::unfold(first, |state| async { state?.next().await });
        Ok(Response::new(Box::pin(events)))
    }

    async fn prune(
        &self,
        request: Request<wire::PruneRequest>,
    ) -> Result<Response<wire::PruneReply>, Status> {
        let Caller { user, .. } = caller(&request)?;
        let care = self.care()?;
        let dry = request.into_inner().dry_run;
        let info = if dry { care.plan_prune(&user).await } else { care.prune(&user).await };
        info.map(pruned).map(Response::new).map_err(status)
    }

    async fn export_key(
        &self,
        request: Request<wire::ExportKeyRequest>,
    ) -> Result<Response<wire::ExportKeyReply>, Status> {
        let Caller { user, .. } = caller(&request)?;
        let care = self.care()?;
        if !request.into_inner().confirm {
            return Err(Status::failed_precondition(
                "who has the key and reads the store reads every save: set confirm",
            ));
        }
        let key = care.export_key(&user).await.map_err(status)?;
        Ok(Response::new(wire::ExportKeyReply { key: key.reveal().to_owned() }))
    }

    async fn import_key(
        &self,
        request: Request<wire::ImportKeyRequest>,
    ) -> Result<Response<wire::ImportKeyReply>, Status> {
        let Caller { user, limits, .. } = caller(&request)?;
        let care = self.care()?;
        let found = care.import_key(&user, &request.into_inner().key).await.map_err(status)?;
        let boxes: Vec<_> = found.iter().map(|found| (found.box_id.clone(), found.newest)).collect();
        let adopted = self.engine.adopt(&user, limits, &boxes).await?;
        let boxes = found.iter().zip(adopted).map(|(found, record)| wire::RecoveredBox {
            box_id: found.box_id.to_string(),
            name: record.name.to_string(),
            saves: found.saves as i64,
            newest_at_ms: found.newest.millis(),
        });
        Ok(Response::new(wire::ImportKeyReply { boxes: boxes.collect() }))
    }
}
