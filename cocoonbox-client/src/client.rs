//! The connection to a server, and the caller's account.

use std::fmt;

use cocoonbox_wire::BOX_METADATA;
use cocoonbox_wire::agent::v1::session_client::SessionClient;
use cocoonbox_wire::control::v1::account_client::AccountClient;
use cocoonbox_wire::control::v1::boxes_client::BoxesClient;
use cocoonbox_wire::control::v1::sign_in_client::SignInClient;
use cocoonbox_wire::control::v1::state_client::StateClient;
use cocoonbox_wire::control::v1::{
    Device, ListDevicesRequest, RedeemLinkRequest, RevokeDeviceRequest, RevokeTokenRequest,
    SignOutEverywhereRequest, WhoAmIReply, WhoAmIRequest,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::exec::Exec;
use crate::{AccessToken, BoxRef, ClientError, Endpoint, SignInLink};

/// One decoded message: a frame and what protobuf wraps around it.
const MAX_MESSAGE: usize = cocoonbox_wire::MAX_FRAME_BYTES + 64 * 1024;

/// A connection to a server, cheap to clone; it dials again by itself after a loss.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    endpoint: Endpoint,
    authorization: Option<MetadataValue<Ascii>>,
}

/// What a sign-in link was exchanged for.
#[derive(Debug)]
#[non_exhaustive]
pub struct SignedIn {
    /// The device's token.
    pub token: AccessToken,
    /// Whose it is.
    pub user_name: String,
}

impl Client {
    /// Connects to a server; calls show `token` when there is one.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when nobody answers, [`ClientError::Misuse`] when the token cannot be sent.
    pub async fn connect(endpoint: Endpoint, token: Option<AccessToken>) -> Result<Self, ClientError> {
        let authorization = match token {
            None => None,
            Some(token) => {
                let text = format!("Bearer {}", token.reveal());
                let mut value: MetadataValue<Ascii> =
                    text.parse().map_err(|_| ClientError::Misuse { what: "the token" })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        match endpoint.dial().await {
            Ok(channel) => Ok(Self { channel, endpoint, authorization }),
            Err(source) => Err(ClientError::Unreachable { endpoint, source }),
        }
    }

    /// Returns where the server is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns who the caller is.
    pub async fn who_am_i(&self) -> Result<WhoAmIReply, ClientError> {
        self.answer(self.account().who_am_i(self.request(WhoAmIRequest {})).await)
    }

    /// Exchanges a one-use sign-in link for a device token; needs no token.
    pub async fn redeem_link(&self, link: &SignInLink, device_name: &str) -> Result<SignedIn, ClientError> {
        let request =
            RedeemLinkRequest { link: link.reveal().to_owned(), device_name: device_name.to_owned() };
        let mut sign_in = SignInClient::new(self.channel.clone());
        let reply = self.answer(sign_in.redeem_link(Request::new(request)).await)?;
        let token = AccessToken::new(reply.token);
        if !AccessToken::is_well_formed(token.reveal()) {
            return Err(ClientError::PeerMisbehaved {
                what: "it answered a sign-in with something that is no token",
            });
        }
        Ok(SignedIn { token, user_name: reply.user_name })
    }

    /// Lists the caller's devices, oldest first.
    pub async fn devices(&self) -> Result<Vec<Device>, ClientError> {
        Ok(self.answer(self.account().list_devices(self.request(ListDevicesRequest {})).await)?.devices)
    }

    /// Ends a device's token and every call open on it.
    pub async fn revoke_device(&self, device_id: &str) -> Result<(), ClientError> {
        let request = self.request(RevokeDeviceRequest { device_id: device_id.to_owned() });
        self.answer(self.account().revoke_device(request).await).map(drop)
    }

    /// Returns the door to a box's commands; `None` is the caller's first box.
    pub fn exec(&self, name: Option<&BoxRef>) -> Exec {
        Exec::new(self.clone(), name.cloned())
    }

    pub(crate) fn boxes(&self) -> BoxesClient<Channel> {
        BoxesClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn session(&self) -> SessionClient<Channel> {
        SessionClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn state(&self) -> StateClient<Channel> {
        StateClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Returns what a plain HTTP request shows: the caller's token.
    pub(crate) fn bearer(&self) -> Option<tonic::codegen::http::HeaderValue> {
        let mut value =
            tonic::codegen::http::HeaderValue::from_bytes(self.authorization.as_ref()?.as_bytes()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Ends the caller's personal token and every call open on it.
    pub async fn revoke_token(&self) -> Result<(), ClientError> {
        self.answer(self.account().revoke_token(self.request(RevokeTokenRequest {})).await).map(drop)
    }

    /// Ends every sign-in of the caller, this one too.
    pub async fn sign_out_everywhere(&self) -> Result<(), ClientError> {
        let request = self.request(SignOutEverywhereRequest {});
        self.answer(self.account().sign_out_everywhere(request).await).map(drop)
    }

    fn account(&self) -> AccountClient<Channel> {
        AccountClient::new(self.channel.clone())
    }

    /// Wraps a message with the caller's token.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        request
    }

    /// Wraps a message for the agent in a box.
    pub(crate) fn request_to<T>(&self, name: Option<&BoxRef>, message: T) -> Result<Request<T>, Status> {
        let mut request = self.request(message);
        if let Some(name) = name {
            let value = name
                .as_str()
                .parse()
                .map_err(|_| Status::invalid_argument("the box's name cannot be sent"))?;
            request.metadata_mut().insert(BOX_METADATA, value);
        }
        Ok(request)
    }

    pub(crate) fn answer<T>(&self, reply: Result<Response<T>, Status>) -> Result<T, ClientError> {
        reply.map(Response::into_inner).map_err(|status| ClientError::from_status(status, &self.endpoint))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("signed_in", &self.authorization.is_some())
            .finish_non_exhaustive()
    }
}
