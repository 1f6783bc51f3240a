use cocoonbox_core::{EntropyError, TokenId};
use cocoonbox_wire::control::v1 as wire;
use cocoonbox_wire::control::v1::sign_in_server::SignIn;
use tonic::{Request, Response, Status, async_trait};

use super::{ServiceOptions, status};
use crate::limit::{Limiter, network};
use crate::visit::{Visit, origin};
use crate::{AccessToken, Door, Label, LinkToken, NewDevice, UserStoreError};

/// The service `SignIn`.
#[derive(Debug)]
pub struct SignInService {
    options: ServiceOptions,
    limiter: Limiter<std::net::IpAddr>,
}

impl SignInService {
    /// Makes the service.
    pub fn new(options: ServiceOptions) -> Self {
        let limiter = Limiter::new(options.limits);
        Self { options, limiter }
    }
}

#[async_trait]
impl SignIn for SignInService {
    async fn redeem_link(
        &self,
        request: Request<wire::RedeemLinkRequest>,
    ) -> Result<Response<wire::RedeemLinkReply>, Status> {
        let peer = request.remote_addr().map(|address| address.ip());
        let forwarded: Vec<&str> = request
            .metadata()
            .get_all("x-forwarded-for")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let from = origin(peer, forwarded.into_iter(), &self.options.trusted_proxies);
        let wire::RedeemLinkRequest { link, device_name } = request.into_inner();
        let link = LinkToken::new(link);
        let label: Label = device_name.trim().parse().map_err(|error: crate::LabelError| {
            // before the link is spent
            Status::invalid_argument(format!("device_name: {error}"))
        })?;
        let now = self.options.clock.now();
        let attempt = self.limiter.take(from.map(network), now).map_err(|wait| {
            Status::resource_exhausted(format!(
                "too many sign-in links that do not work; try again in {} minutes",
                wait.as_secs().div_ceil(60).max(1)
            ))
        })?;
        let link = LinkToken::parse(link.reveal()).map_err(|_| status(UserStoreError::LinkRefused))?;
        let draw = || -> Result<_, EntropyError> {
            let entropy = &*self.options.entropy;
            Ok((AccessToken::random(entropy)?, TokenId::random(entropy)?))
        };
        let (token, id) = draw().map_err(|error| Status::unavailable(error.to_string()))?;
        let device = NewDevice { id, label, hash: token.hash() };
        let what = device.label.as_str();
        let visit = |user, let_in| {
            let visit = Visit { user, door: Door::Link, let_in, from, what };
            visit.remember(&*self.options.store, &*self.options.entropy, now)
        };
        let user = match self.options.store.redeem_link(&link.hash(), &device, now).await {
            Ok(user) => user,
            Err(UserStoreError::LinkRefused) => {
                visit(None, false).await;
                return Err(status(UserStoreError::LinkRefused));
            }
            Err(error) => {
                attempt.give_back();
                return Err(status(error));
            }
        };
        attempt.give_back();
        // so that the token works at once; when it cannot be read now, the next notice or round does it
        if let Err(error) = self.options.index.reload(&*self.options.store).await {
            tracing::warn!(%error, "a new token is not in the index yet");
        }
        visit(Some(&user.id), true).await;
        Ok(Response::new(wire::RedeemLinkReply {
            token: token.reveal().to_owned(),
            user_name: user.name.as_str().to_owned(),
        }))
    }
}
