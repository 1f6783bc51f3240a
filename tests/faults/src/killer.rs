//! Ends processes at random moments, as a machine short of memory would.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::chance::Chance;
use crate::machine::{Resident, claims, residents};
use crate::oracle::Entry;
use crate::storm::{Part, Rig};
use crate::worker::Notes;

/// What is killed, and how often in a hundred.
const TARGETS: [(Target, u64); 6] = [
    (Target::Server, 40),
    (Target::Init, 15),
    (Target::Serve, 15),
    (Target::Launcher, 10),
    (Target::Sandbox, 10),
    (Target::Program, 10),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Edge or node, which run on at once.
    Server,
    /// A box's first process.
    Init,
    /// The agent that its owner reaches.
    Serve,
    /// The process that launched a box.
    Launcher,
    /// Everything of a box.
    Sandbox,
    /// Any process of any box.
    Program,
}

pub(crate) struct Killer {
    pub(crate) rig: Rig,
    pub(crate) chance: Chance,
    pub(crate) notes: Arc<Notes>,
    pub(crate) deadline: Instant,
}

impl Killer {
    /// Kills `count` times, or until time is over; returns how often it did.
    pub(crate) fn run(&mut self, count: u64) -> u64 {
        let mut done = 0;
        while done < count && Instant::now() < self.deadline {
            self.wait();
            let roll = self.chance.below(100);
            let mut sum = 0;
            let target = TARGETS.iter().find(|(_, share)| {
                sum += share;
                roll < sum
            });
            done += match target.map(|(target, _)| *target) {
                Some(Target::Server) | None => self.server(),
                Some(target) => u64::from(self.resident(target)),
            };
        }
        done
    }

    /// Waits for any moment, or for one in the middle of something.
    fn wait(&mut self) {
        if self.chance.percent(50) {
            return sleep(Duration::from_millis(100 + self.chance.below(500)));
        }
        let before = self.notes.begun.load(Ordering::SeqCst);
        for _ in 0..500 {
            if self.notes.begun.load(Ordering::SeqCst) > before {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(self.chance.below(90)));
    }

    /// Kills a part of the server and starts it again, now and then in the middle of that start.
    fn server(&mut self) -> u64 {
        let Some(part) = self.chance.one_of(self.rig.parts()).copied() else { return 0 };
        let mut done = 0;
        loop {
            self.strike(part);
            done += 1;
            sleep(Duration::from_millis(self.chance.below(300)));
            self.rig.begin(part);
            if !self.chance.percent(25) {
                break;
            }
            sleep(Duration::from_millis(self.chance.below(600)));
        }
        self.rig.wait(part);
        done
    }

    fn strike(&mut self, part: Part) {
        self.rig.kill(part);
        self.tell(&format!("{part:?}"));
    }

    fn resident(&mut self, target: Target) -> bool {
        let node = self.rig.node();
        let all = residents(&node);
        let of =
            |wanted: &dyn Fn(&Resident) -> bool| all.iter().filter(|one| wanted(one)).collect::<Vec<_>>();
        let firsts: Vec<_> =
            claims(&node).unwrap_or_default().into_iter().filter_map(|claim| claim.first).collect();
        let is_launcher = |one: &Resident| one.command.starts_with("cocoonbox-box ");
        let found = match target {
            Target::Server => return false,
            Target::Init | Target::Sandbox => of(&|one| firsts.contains(&one.pid)),
            Target::Serve => of(&|one| one.command.contains("cocoonbox-agent serve")),
            Target::Launcher => of(&is_launcher),
            Target::Program => of(&|_| true),
        };
        let Some(victim) = self.chance.one_of(&found).map(|one| (*one).clone()) else { return false };
        let ended = if target == Target::Sandbox {
            let all = of(&|one| one.claim == victim.claim);
            all.iter().filter(|one| end(one.pid)).count() > 0
        } else {
            end(victim.pid)
        };
        if ended {
            self.tell(&format!("{target:?} {} ({})", victim.claim, victim.command));
        }
        ended
    }

    fn tell(&self, what: &str) {
        let kind = what.split(' ').next().unwrap_or_default();
        self.notes.count(format!("killed: {kind}"));
        self.notes.note(&Entry::Killed { what: what.to_owned() });
    }
}

fn end(pid: i32) -> bool {
    kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
}
