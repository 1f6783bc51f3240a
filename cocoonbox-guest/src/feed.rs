//! What happened in the box: numbered, the oldest forgotten.

use std::collections::VecDeque;

use cocoonbox_core::Timestamp;
use cocoonbox_wire::agent::v1::{Event, EventsLost, event::What};

/// The most events that are kept.
const MAX_EVENTS: usize = 4096;

/// The most bytes of events that are kept; an event counts for its texts and a little.
const MAX_BYTES: usize = 1024 * 1024;

/// The events, in order.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    events: VecDeque<Event>,
    bytes: usize,
    last: u64,
}

impl Feed {
    /// Adds an event and returns its number.
    pub(crate) fn push(&mut self, now: Timestamp, what: What) -> u64 {
        self.last += 1;
        self.bytes += size(&what);
        self.events.push_back(Event { cursor: self.last, at_ms: now.millis(), what: Some(what) });
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(event) = self.events.pop_front() else { break };
            self.bytes -= event.what.as_ref().map_or(0, size);
        }
        self.last
    }

    /// Returns the event after `cursor`, or that it is lost; none when nothing happened since.
    ///
    /// A cursor from the future is one of an agent before this one: what happened between is lost, uncounted.
    pub(crate) fn after(&self, cursor: u64) -> Option<Event> {
        let first = self.events.front()?;
        let lost = |count| Event {
            cursor: first.cursor - 1,
            at_ms: first.at_ms,
            what: Some(What::Lost(EventsLost { count })),
        };
        if cursor > self.last {
            return Some(lost(0));
        }
        // 0 asks for what is kept, and misses nothing
        match first.cursor.checked_sub(cursor + 1) {
            Some(missed) if missed > 0 && cursor > 0 => Some(lost(missed)),
            Some(_) => Some(first.clone()),
            None => self.events.get((cursor + 1 - first.cursor) as usize).cloned(),
        }
    }
}

fn size(what: &What) -> usize {
    128 + match what {
        What::SessionStarted(started) => started.session_id.len() + started.program.len(),
        What::SessionEnded(ended) => ended.session_id.len(),
        What::Woke(woke) => woke.wake_id.len(),
        What::Lost(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_wire::agent::v1::{SessionStarted, Woke};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1);

    #[test]
    fn a_cursor_goes_on_where_it_was_and_learns_what_it_missed() {
        let mut feed = Feed::default();
        assert_eq!(feed.after(0), None);
        for number in 1..=MAX_EVENTS as u64 + 10 {
            assert_eq!(feed.push(NOW, What::Woke(Woke { wake_id: number.to_string() })), number);
        }
        let lost = feed.after(3).unwrap();
        assert_eq!((lost.cursor, lost.what), (10, Some(What::Lost(EventsLost { count: 7 }))));
        assert_eq!(feed.after(lost.cursor).unwrap().cursor, 11);
        assert_eq!(feed.after(0).unwrap().cursor, 11);
        assert_eq!(feed.after(4105).unwrap().cursor, 4106);
        assert_eq!(feed.after(4106), None);
        assert_eq!(feed.after(9999).unwrap().what, Some(What::Lost(EventsLost { count: 0 })));
    }

    #[test]
    fn long_events_are_bounded_by_their_bytes() {
        let mut feed = Feed::default();
        for _ in 0..100 {
            let program = "p".repeat(100_000);
            feed.push(
                NOW,
                What::SessionStarted(SessionStarted { session_id: String::new(), program, tty: false }),
            );
        }
        assert!(feed.events.len() <= 10 && feed.bytes <= MAX_BYTES);
    }
}
