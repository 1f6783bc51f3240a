//! Programs that write without end to clients that do not read.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use cocoonbox_stories::eventually;

use super::{agent_of, id, resident_kib, rsh, started};

#[test]
fn a_flood_waits_for_its_reader_in_bounded_memory_and_goes_on_in_order() {
    let server = started();
    let agent = agent_of(&server.network());
    let (edge_before, agent_before) = (resident_kib(server.id()), resident_kib(agent));
    let mut flood =
        rsh(&server, &["seq", "1", "999999999"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut peaks = [0, 0, 0];
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        for (peak, process) in peaks.iter_mut().zip([server.id(), agent, id(&flood)]) {
            *peak = (*peak).max(resident_kib(process));
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.rsh(&["echo", "here"]).ok(), "here");
    let (edge, agent_grown) = (peaks[0] - edge_before, peaks[1] - agent_before);
    println!("the edge grew by {edge} KiB, the agent by {agent_grown} KiB, the client has {} KiB", peaks[2]);
    assert!(
        edge < 16 * 1024 && agent_grown < 24 * 1024 && peaks[2] < 48 * 1024,
        "{edge} {agent_grown} {peaks:?}"
    );
    let mut lines = BufReader::new(flood.stdout.take().expect("piped")).lines();
    for number in 1..=4_000_000_u32 {
        let line = lines.next().expect("there is more").expect("a pipe");
        assert_eq!(line, number.to_string());
    }
    drop(lines);
    assert_eq!(flood.wait().expect("own child").code(), Some(128 + 13));
    // and it is given back once nobody needs it
    eventually("the agent is small again", || (resident_kib(agent) < agent_before + 4 * 1024).then_some(()));
    println!("the agent has {} KiB again, {agent_before} KiB before", resident_kib(agent));
}

#[test]
fn many_floods_that_nobody_reads_hold_up_nobody_else() {
    let server = started();
    let mut floods: Vec<_> = (0..12)
        .map(|_| {
            rsh(&server, &["yes"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts")
        })
        .collect();
    thread::sleep(Duration::from_secs(3));
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(server.rsh(&["echo", "here"]).ok(), "here");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let all = server.rsh(&["head", "-c", "5000000", "/dev/zero"]);
    assert_eq!((all.code, all.stdout.len()), (Some(0), 5_000_000));
    println!("the server has {} KiB with {} floods", resident_kib(server.id()), floods.len());
    for flood in &mut floods {
        flood.kill().expect("own child");
        flood.wait().expect("own child");
    }
}
