//! The authorization server and the console's JSON, as browsers and programs see them.

mod account;
mod agent;
mod attack;
mod stand;
