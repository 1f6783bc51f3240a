//! Clients that are lost and come again.

use std::sync::atomic::{AtomicU64, Ordering};

use cocoonbox_core::{Entropy as _, SeededEntropy};
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener as Listener, TcpStream};

use super::*;

/// A way to the agent that is cut after some bytes, again and again.
async fn cut_way(agent: SocketAddr, seed: u64) -> Result<(SocketAddr, Arc<AtomicU64>)> {
    let listener = Listener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let cuts = Arc::new(AtomicU64::new(0));
    let counted = cuts.clone();
    tokio::spawn(async move {
        let entropy = SeededEntropy::new(seed);
        while let Ok((client, _)) = listener.accept().await {
            let mut random = [0; 8];
            let _ = entropy.fill(&mut random);
            let random = u64::from_le_bytes(random);
            // now and then within the first frames, mostly in the middle of the bytes
            let budget = if random % 4 == 0 { random % 3000 } else { random % 1_500_000 };
            let Ok(server) = TcpStream::connect(agent).await else { return };
            let (client_read, client_write) = client.into_split();
            let (server_read, server_write) = server.into_split();
            let counted = counted.clone();
            tokio::spawn(async move {
                let left = Arc::new(AtomicU64::new(budget.max(200)));
                tokio::select! {
                    () = metered(client_read, server_write, left.clone()) => {}
                    () = metered(server_read, client_write, left) => {}
                }
                counted.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    Ok((address, cuts))
}

async fn metered(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    left: Arc<AtomicU64>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let before = left.load(Ordering::SeqCst);
        let allowed = before.min(count as u64);
        left.store(before - allowed, Ordering::SeqCst);
        if to.write_all(&buffer[..allowed as usize]).await.is_err() || allowed < count as u64 {
            return;
        }
    }
}

/// Sends `data` and reads all output, over as many connections as it takes; returns what it saw.
async fn stubborn(agent: &Agent, way: SocketAddr, start: ExecStart, data: &[u8]) -> Result<(Vec<u8>, How)> {
    let (mut seen, mut id) = (Vec::new(), None::<String>);
    let (mut sent, mut acknowledged) = (0_usize, 0_usize);
    'connection: for _ in 0..2000 {
        let first = match &id {
            None => Ask::Start(start.clone()),
            Some(id) => Ask::Attach(ExecAttach { session_id: id.clone(), output_offset: seen.len() as u64 }),
        };
        let mut line = match agent.talk_at(way, first).await {
            Ok(line) => line,
            Err(status) if status.code() == Code::NotFound => return Err("the session is gone".into()),
            Err(_) => continue,
        };
        match line.next().await {
            Ok(Some(Say::Started(started))) => id = Some(started.session_id),
            Ok(Some(Say::Attached(attached))) => {
                sent = attached.input_offset as usize;
                acknowledged = acknowledged.min(sent);
            }
            _ => continue,
        }
        loop {
            // keep some input under way, then listen
            while sent < data.len() && sent < acknowledged + 200_000 {
                let end = (sent + 30_000).min(data.len());
                if line
                    .sender
                    .try_send(ExecRequest { message: Some(input(sent as u64, &data[sent..end])) })
                    .is_err()
                {
                    break;
                }
                sent = end;
                if sent == data.len() {
                    line.ask(Ask::Eof(ExecEof { offset: sent as u64 })).await;
                }
            }
            if data.len() == sent {
                let _ = line
                    .sender
                    .try_send(ExecRequest { message: Some(Ask::Eof(ExecEof { offset: sent as u64 })) });
            }
            let Ok(Some(say)) = line.next().await else { continue 'connection };
            match say {
                Say::Output(output) => {
                    assert_eq!(output.offset, seen.len() as u64, "no gap, no repetition");
                    seen.extend_from_slice(&output.data);
                    let ack = ExecAck { output_offset: seen.len() as u64, exit: false };
                    let _ = line.sender.try_send(ExecRequest { message: Some(Ask::Ack(ack)) });
                }
                Say::InputAck(ack) => acknowledged = ack.offset as usize,
                Say::Exit(exit) => {
                    line.ask(Ask::Ack(ExecAck { output_offset: seen.len() as u64, exit: true })).await;
                    return Ok((seen, exit.how.ok_or("an exit without how")?));
                }
                _ => return Err("a hello in the middle".into()),
            }
        }
    }
    Err("too many connections".into())
}

#[tokio::test]
async fn no_byte_is_lost_or_repeated_wherever_the_connection_is_cut() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let mut total = 0;
    for seed in 0..4 {
        let mut data = vec![0; 4_000_000];
        SeededEntropy::new(seed).fill(&mut data)?;
        let (way, cuts) = cut_way(agent.address, seed).await?;
        let (seen, how) = stubborn(&agent, way, shell("cat; exit 9"), &data).await?;
        assert_eq!(Sha256::digest(&seen), Sha256::digest(&data), "seed {seed}");
        assert_eq!(how, How::Code(9));
        total += cuts.load(Ordering::SeqCst);
    }
    assert!(total > 10, "the connections were cut {total} times");
    Ok(())
}

#[tokio::test]
async fn a_second_attach_ends_the_first_and_goes_on_where_it_was() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let (mut first, id) = agent.start_shell("echo one; read line; echo got $line").await?;
    first.until("one").await?;
    let attach = |offset| Ask::Attach(ExecAttach { session_id: id.clone(), output_offset: offset });
    let mut second = agent.talk(attach(1)).await?;
    assert!(matches!(second.next().await?, Some(Say::Attached(_))));
    let status = loop {
        match first.next().await {
            Ok(Some(_)) => {}
            Ok(None) => return Err("the first stream ended without a word".into()),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Aborted);
    second.ask(input(0, b"x\n")).await;
    let outcome = second.finish().await?;
    assert_eq!(outcome.text(), "ne\ngot x\n");
    let gone = agent.talk(attach(0)).await.map(drop).expect_err("it was acknowledged");
    assert_eq!(gone.code(), Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn an_exit_is_kept_for_who_comes_again() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let (line, id) = agent.start_shell("sleep 0.2; echo out; exit 3").await?;
    drop(line);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut again = agent.talk(Ask::Attach(ExecAttach { session_id: id, output_offset: 0 })).await?;
    let outcome = again.finish().await?;
    assert_eq!((outcome.text().as_str(), outcome.how), ("out\n", Some(How::Code(3))));
    Ok(())
}

#[tokio::test]
async fn a_session_nobody_comes_back_for_is_hung_up_and_nohup_stays() -> Result {
    let quick = |options: &mut AgentOptions| {
        options.reattach = Duration::from_millis(200);
        options.grace = Duration::from_millis(300);
    };
    let Some(agent) = Agent::start_with(quick)? else { return Ok(()) };
    let alive = |pid: &str| Path::new("/proc").join(pid).exists();
    let command = "nohup sleep 30 >/dev/null 2>&1 & echo $! ;  echo $$; exec sleep 32";
    let (mut line, id) = agent.start_shell(command).await?;
    let mut seen = line.until("\n").await?;
    while seen.lines().count() < 2 {
        seen.push_str(&line.until("\n").await?);
    }
    let pids: Vec<_> = seen.lines().collect();
    // one that catches it and stays is killed in the end
    let (mut deaf, _) =
        agent.start_shell("trap 'echo not yet' HUP; echo $$; while :; do sleep 0.05; done").await?;
    let deaf_pid = deaf.until("\n").await?.trim().to_owned();
    drop((line, deaf));
    tokio::time::sleep(Duration::from_millis(450)).await;
    assert!(alive(pids[0]), "nohup");
    assert!(!alive(pids[1]), "the program itself");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!alive(&deaf_pid), "the deaf one");
    let gone = agent.talk(Ask::Attach(ExecAttach { session_id: id, output_offset: 0 })).await.map(drop);
    assert_eq!(gone.expect_err("it is gone").code(), Code::NotFound);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pids[0].parse()?).ok_or("no pid")?,
        rustix::process::Signal::KILL,
    )?;
    Ok(())
}

#[tokio::test]
async fn sessions_are_counted_and_a_lost_one_makes_room() -> Result {
    let Some(agent) = Agent::start_with(|options| options.reattach = Duration::from_millis(300))? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for _ in 0..session::MAX_SESSIONS {
        lines.push(agent.talk(Ask::Start(argv(&[b"/bin/cat"]))).await?);
    }
    let status = agent.talk(Ask::Start(argv(&[b"/bin/cat"]))).await.map(drop).expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(lines);
    tokio::time::sleep(Duration::from_millis(900)).await;
    let outcome = agent.talk(Ask::Start(shell("echo room"))).await?.finish().await?;
    assert_eq!(outcome.text(), "room\n");
    Ok(())
}
