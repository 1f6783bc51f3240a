//! Sessions against a strict peer whose connection is cut at random points.

mod peer;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use self::peer::{Cuts, Peer, Plan};
use super::{Command, Control, ExecError, Exit, MAX_UNACKNOWLEDGED, Notice, RunOptions, Stdio, run_over};
use crate::{ClientError, Endpoint};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

fn noise(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ seed).collect()
}

/// Runs `plan` with `input` and returns what came out.
async fn run(plan: Plan, input: &[u8]) -> (Result<Exit, ExecError>, Vec<u8>, Vec<u8>, Arc<Peer>) {
    let peer = Arc::new(Peer::new(plan));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let stdio = Stdio { stdin: input, stdout: &mut stdout, stderr: &mut stderr };
    let result =
        run_over(&peer, &Endpoint::local(), Command::argv(["cat"]), stdio, RunOptions::default()).await;
    (result, stdout, stderr, peer)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn however_the_connection_breaks_every_byte_arrives_once(
        input in 0_usize..600_000,
        stdout in 0_usize..600_000,
        stderr in 0_usize..50_000,
        cuts in proptest::collection::vec(1_u32..40, 0..8),
        refused in 0_u32..4,
    ) {
        runtime().block_on(async move {
            let breaks = cuts.len();
            let plan = Plan {
                stdout: noise(stdout, 1),
                stderr: noise(stderr, 2),
                exit: Exit::Code(7),
                cuts: Cuts { after: cuts, refused_dials: refused },
                ..Plan::default()
            };
            let sent = noise(input, 3);
            let (result, out, err, peer) = run(plan, &sent).await;
            assert_eq!(result.unwrap(), Exit::Code(7));
            assert!(out == noise(stdout, 1), "stdout differs");
            assert!(err == noise(stderr, 2), "stderr differs");
            let seen = peer.seen();
            assert_eq!(seen.violations, Vec::<String>::new());
            assert!(seen.input == sent, "stdin differs: {} of {}", seen.input.len(), sent.len());
            assert!(seen.eof);
            // a connection that breaks after the exit is not taken up again for the last word
            assert!(seen.exit_acknowledged || seen.connections <= breaks);
            assert_eq!(seen.starts, 1);
        });
    }
}

#[test]
fn input_waits_when_the_agent_does_not_take_it() -> Outcome {
    runtime().block_on(async {
        let peer =
            Arc::new(Peer::new(Plan { takes_input: false, waits_for_signal: true, ..Plan::default() }));
        let (mut feed, stdin) = tokio::io::duplex(64 * 1024);
        let (controls, mut receiver) = mpsc::channel(4);
        let fed = tokio::spawn(async move {
            let mut total = 0;
            let chunk = noise(64 * 1024, 0);
            while tokio::time::timeout(Duration::from_secs(5), feed.write_all(&chunk))
                .await
                .is_ok_and(|done| done.is_ok())
            {
                total += chunk.len();
            }
            controls.send(Control::Signal(15)).await.unwrap();
            total
        });
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let stdio = Stdio { stdin, stdout: &mut stdout, stderr: &mut stderr };
        let options = RunOptions::default().with_controls(&mut receiver);
        let exit = run_over(&peer, &Endpoint::local(), Command::login_shell(), stdio, options).await?;
        assert_eq!(exit, Exit::Signal(15));
        let total = fed.await?;
        assert!((MAX_UNACKNOWLEDGED..=MAX_UNACKNOWLEDGED + 512 * 1024).contains(&total), "{total}");
        assert_eq!(peer.seen().violations, Vec::<String>::new());
        Ok(())
    })
}

#[test]
fn signals_and_sizes_survive_a_cut() -> Outcome {
    runtime().block_on(async {
        let peer = Arc::new(Peer::new(Plan {
            waits_for_signal: true,
            cuts: Cuts { after: vec![1], refused_dials: 2 },
            ..Plan::default()
        }));
        let (controls, mut receiver) = mpsc::channel(4);
        let mut notices = Vec::new();
        let mut notice = |notice| {
            if notice == Notice::Lost {
                controls.try_send(Control::Resize { columns: 90, rows: 30 }).unwrap();
                controls.try_send(Control::Signal(2)).unwrap();
            }
            notices.push(notice);
        };
        let options = RunOptions::default().with_controls(&mut receiver).with_notice(&mut notice);
        let stdio = Stdio { stdin: tokio::io::empty(), stdout: tokio::io::sink(), stderr: tokio::io::sink() };
        let exit = run_over(&peer, &Endpoint::local(), Command::login_shell(), stdio, options).await?;
        assert_eq!(exit, Exit::Signal(2));
        assert_eq!(notices, [Notice::Started, Notice::Lost, Notice::Back]);
        assert_eq!(peer.seen().size, Some((90, 30)));
        Ok(())
    })
}

#[test]
fn a_connection_that_stays_away_is_given_up_after_a_minute() {
    runtime().block_on(async {
        let begun = tokio::time::Instant::now();
        let plan = Plan {
            stdout: noise(10, 0),
            cuts: Cuts { after: vec![1], refused_dials: u32::MAX },
            ..Plan::default()
        };
        let (result, ..) = run(plan, b"").await;
        assert!(matches!(result, Err(ExecError::Lost { seconds: 60, .. })), "{result:?}");
        assert_eq!(begun.elapsed().as_secs(), 60);
    });
}

#[test]
fn an_answer_is_not_a_lost_connection() {
    for code in [Code::NotFound, Code::PermissionDenied, Code::Unauthenticated, Code::Unavailable] {
        runtime().block_on(async {
            let (result, _, _, peer) =
                run(Plan { refuse_start: Some(Status::new(code, "no")), ..Plan::default() }, b"").await;
            assert!(matches!(result, Err(ExecError::Call(_))), "{result:?}");
            assert_eq!(peer.seen().dials, 1);
        });
    }
    runtime().block_on(async {
        let plan = Plan {
            stdout: noise(10, 0),
            cuts: Cuts { after: vec![1], refused_dials: 0 },
            refuse_attach: Some(Status::not_found("unknown session")),
            ..Plan::default()
        };
        let (result, ..) = run(plan, b"").await;
        assert!(matches!(result, Err(ExecError::SessionGone { .. })), "{result:?}");
    });
}

#[test]
fn a_command_that_may_have_run_is_not_run_again() {
    runtime().block_on(async {
        let plan = Plan { cuts: Cuts { after: vec![0], refused_dials: 0 }, ..Plan::default() };
        let (result, _, _, peer) = run(plan, b"").await;
        assert!(matches!(result, Err(ExecError::Uncertain { .. })), "{result:?}");
        assert_eq!(peer.seen().starts, 1);
    });
}

#[test]
fn a_peer_that_breaks_the_protocol_is_named_so() {
    for lie in [peer::Lie::Gap, peer::Lie::AckBeyond, peer::Lie::Empty] {
        runtime().block_on(async {
            let (result, ..) =
                run(Plan { stdout: noise(10, 0), lie: Some(lie), ..Plan::default() }, b"abc").await;
            assert!(matches!(result, Err(ExecError::PeerMisbehaved { .. })), "{lie:?}: {result:?}");
        });
    }
}

#[test]
fn output_that_cannot_be_written_hangs_the_command_up() {
    struct Broken;
    impl tokio::io::AsyncWrite for Broken {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::task::Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()))
        }
        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }
    runtime().block_on(async {
        let peer = Arc::new(Peer::new(Plan { stdout: noise(100, 0), ..Plan::default() }));
        let stdio = Stdio { stdin: tokio::io::empty(), stdout: Broken, stderr: tokio::io::sink() };
        let result =
            run_over(&peer, &Endpoint::local(), Command::argv(["yes"]), stdio, RunOptions::default()).await;
        assert!(matches!(result, Err(ExecError::Output(_))), "{result:?}");
        assert!(peer.seen().closed);
    });
}

#[test]
fn an_interrupt_before_the_command_runs_ends_the_wait() {
    runtime().block_on(async {
        let peer = Arc::new(Peer::new(Plan { never_opens: true, ..Plan::default() }));
        let (controls, mut receiver) = mpsc::channel(4);
        controls.send(Control::Signal(2)).await.unwrap();
        let stdio = Stdio { stdin: tokio::io::empty(), stdout: tokio::io::sink(), stderr: tokio::io::sink() };
        let options = RunOptions::default().with_controls(&mut receiver);
        let result = run_over(&peer, &Endpoint::local(), Command::argv(["true"]), stdio, options).await;
        assert!(matches!(result, Err(ExecError::Interrupted { signal: 2 })), "{result:?}");
    });
}

#[test]
fn a_refusal_keeps_its_meaning() {
    runtime().block_on(async {
        let (result, ..) =
            run(Plan { refuse_start: Some(Status::unauthenticated("who are you")), ..Plan::default() }, b"")
                .await;
        let Err(ExecError::Call(error)) = result else { panic!("{result:?}") };
        assert!(matches!(error, ClientError::NotSignedIn { .. }));
    });
}
