//! Who calls, in the words of the boxes: users by their tokens, agents by theirs, people by the console's session.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use cocoonbox_boxes::edge::Authenticate;
use cocoonbox_boxes::{AgentGrant, Caller, Limits};
use cocoonbox_core::Clock;
use cocoonbox_oauth::http::ConsoleCaller;
use cocoonbox_oauth::{AccessToken, AgentIndex, AgentToken, TokenIndex};

/// Users by the token index, with the limits of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Users {
    pub(crate) index: Arc<TokenIndex>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
}

impl Users {
    fn limits(&self, admin: bool, max_agent_boxes: Option<u32>) -> Limits {
        let limits = if admin { Limits::default() } else { self.limits };
        Limits { max_agent_boxes, ..limits }
    }
}

impl Authenticate for Users {
    fn authenticate(&self, bearer: &str) -> Option<Caller> {
        let caller = self.index.check(&AccessToken::parse(bearer).ok()?, self.clock.now()).ok()?;
        Some(Caller {
            user: caller.user().clone(),
            admin: caller.admin(),
            agent: None,
            limits: self.limits(caller.admin(), None),
            ended: caller.ended().clone(),
        })
    }
}

/// Users, and outside agents by their access tokens: who comes in at the control MCP.
#[derive(Debug)]
pub(crate) struct UsersAndAgents {
    pub(crate) users: Users,
    pub(crate) agents: Arc<AgentIndex>,
}

impl Authenticate for UsersAndAgents {
    fn authenticate(&self, bearer: &str) -> Option<Caller> {
        let Ok(token) = AgentToken::parse(bearer) else { return self.users.authenticate(bearer) };
        let agent = self.agents.check(&token, self.users.clock.now()).ok()?;
        let (user, grant) = (agent.user(), agent.grant());
        Some(Caller {
            user: user.id.clone(),
            // an agent administers nothing, whoever let it in
            admin: false,
            agent: Some(AgentGrant {
                id: grant.id.clone(),
                max_boxes: grant.max_boxes,
                max_running: grant.max_running,
            }),
            limits: self.users.limits(user.admin, user.max_agent_boxes),
            ended: agent.ended().clone(),
        })
    }
}

/// Tells the boxes' pages who is signed in.
pub(crate) async fn from_console(State(users): State<Users>, mut request: Request, next: Next) -> Response {
    if let Some(ConsoleCaller { user, ended, .. }) = request.extensions().get::<ConsoleCaller>().cloned() {
        request.extensions_mut().insert(Caller {
            limits: users.limits(user.admin, user.max_agent_boxes),
            user: user.id,
            admin: user.admin,
            agent: None,
            ended,
        });
    }
    next.run(request).await
}
