use cocoonbox_core::{Timestamp, TokenId};
use cocoonbox_wire::control::v1 as wire;
use cocoonbox_wire::control::v1::account_server::Account;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, async_trait};

use super::{ServiceOptions, status};
use crate::{AuthorizedCaller, TokenRecord, device};

/// The service `Account`.
#[derive(Debug)]
pub struct AccountService {
    options: ServiceOptions,
}

impl AccountService {
    /// Makes the service.
    pub fn new(options: ServiceOptions) -> Self {
        Self { options }
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<AuthorizedCaller, Status> {
        let mut headers = metadata.get_all("authorization").iter();
        let header = headers.next();
        if headers.next().is_some() {
            return Err(Status::unauthenticated(crate::AuthError::Malformed.to_string()));
        }
        let header = header.map(tonic::metadata::MetadataValue::as_encoded_bytes);
        let caller = self.options.index.authenticate(header, self.options.clock.now());
        caller.map_err(|error| Status::unauthenticated(error.to_string()))
    }

    async fn devices(&self, caller: &AuthorizedCaller) -> Result<Vec<TokenRecord>, Status> {
        device::devices(&*self.options.store, caller.user()).await.map_err(status)
    }
}

#[async_trait]
impl Account for AccountService {
    async fn who_am_i(
        &self,
        request: Request<wire::WhoAmIRequest>,
    ) -> Result<Response<wire::WhoAmIReply>, Status> {
        let caller = self.caller(request.metadata())?;
        Ok(Response::new(wire::WhoAmIReply {
            user_id: caller.user().to_string(),
            user_name: caller.name().to_string(),
            admin: caller.admin(),
            version: self.options.version.clone(),
        }))
    }

    async fn list_devices(
        &self,
        request: Request<wire::ListDevicesRequest>,
    ) -> Result<Response<wire::ListDevicesReply>, Status> {
        let caller = self.caller(request.metadata())?;
        let devices = self.devices(&caller).await?.into_iter().map(|device| {
            // written once a minute; this process knows better
            let used_at = device.used_at.max(self.options.index.used_at(&device.hash));
            wire::Device {
                current: device.id == *caller.token(),
                client: device.client.as_ref().map_or_else(String::new, ToString::to_string),
                id: device.id.to_string(),
                label: device.label.as_str().to_owned(),
                created_at_ms: device.created_at.millis(),
                used_at_ms: used_at.map_or(0, Timestamp::millis),
            }
        });
        Ok(Response::new(wire::ListDevicesReply { devices: devices.collect() }))
    }

    async fn revoke_device(
        &self,
        request: Request<wire::RevokeDeviceRequest>,
    ) -> Result<Response<wire::RevokeDeviceReply>, Status> {
        let caller = self.caller(request.metadata())?;
        // a text that is no id names no device; another user's device and a personal token are none either
        let none = || Status::not_found("no such device");
        let id: TokenId = request.into_inner().device_id.parse().map_err(|_| none())?;
        if !self.devices(&caller).await?.iter().any(|device| device.id == id) {
            return Err(none());
        }
        self.options.store.revoke_token(caller.user(), &id).await.map_err(status)?;
        // it ends here and now; other processes hear of it
        self.options.index.reload(&*self.options.store).await.map_err(status)?;
        tracing::info!(user = %caller.user(), token = %id, "a device was revoked");
        Ok(Response::new(wire::RevokeDeviceReply {}))
    }

    async fn revoke_token(
        &self,
        request: Request<wire::RevokeTokenRequest>,
    ) -> Result<Response<wire::RevokeTokenReply>, Status> {
        let caller = self.caller(request.metadata())?;
        let store = &*self.options.store;
        if let Some(token) = device::remove_personal(store, caller.user()).await.map_err(status)? {
            self.options.index.reload(store).await.map_err(status)?;
            tracing::info!(user = %caller.user(), %token, "a personal token was revoked");
        }
        Ok(Response::new(wire::RevokeTokenReply {}))
    }

    async fn sign_out_everywhere(
        &self,
        request: Request<wire::SignOutEverywhereRequest>,
    ) -> Result<Response<wire::SignOutEverywhereReply>, Status> {
        let caller = self.caller(request.metadata())?;
        let ServiceOptions { store, index, agents, clock, .. } = &self.options;
        crate::sign_out_everywhere(&**store, index, agents, caller.user(), clock.now())
            .await
            .map_err(status)?;
        Ok(Response::new(wire::SignOutEverywhereReply {}))
    }
}
