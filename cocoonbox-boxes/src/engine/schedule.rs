//! When a box wakes by itself.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use cocoonbox_core::Timestamp;
use cocoonbox_core::machine::Schedule;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::EngineError;

const MAX_CRON_BYTES: usize = 256;
const SHORTEST_STAY: Duration = Duration::from_mins(1);
const LONGEST_STAY: Duration = Duration::from_hours(24);

/// Reads a schedule as a person wrote it; an empty `time_zone` is UTC.
///
/// # Errors
/// [`EngineError::Invalid`], naming the field and its rule.
pub(super) fn read(
    cron: &str,
    time_zone: &str,
    stay_up: Duration,
    now: Timestamp,
) -> Result<Schedule, EngineError> {
    let invalid = |field, reason: String| EngineError::Invalid { field, reason };
    if !(SHORTEST_STAY..=LONGEST_STAY).contains(&stay_up) {
        return Err(invalid("stay_up_seconds", "use 60 to 86400".to_owned()));
    }
    let time_zone = if time_zone.is_empty() { "UTC" } else { time_zone };
    let zone = zone(time_zone).ok_or_else(|| {
        invalid("time_zone", "not an IANA time zone: use a name like Europe/Berlin".to_owned())
    })?;
    let parsed = parse(cron).ok_or_else(|| {
        invalid(
            "cron",
            "use five fields: minute hour day-of-month month day-of-week, as in 0 9 * * 1-5".to_owned(),
        )
    })?;
    let next_at = next(&parsed, zone, now);
    if next_at.is_none() {
        return Err(invalid("cron", "this time never comes".to_owned()));
    }
    Ok(Schedule { cron: cron.trim().to_owned(), time_zone: time_zone.to_owned(), stay_up, next_at })
}

/// Returns the schedule's next time after `now`; none when it never comes or no longer reads.
pub(super) fn next_after(schedule: &Schedule, now: Timestamp) -> Option<Timestamp> {
    next(&parse(&schedule.cron)?, zone(&schedule.time_zone)?, now)
}

fn zone(name: &str) -> Option<Tz> {
    if name.len() > 64 { None } else { name.parse().ok() }
}

fn parse(cron: &str) -> Option<Cron> {
    // nicknames (@daily) and other numbers of fields are not part of the contract
    if cron.len() > MAX_CRON_BYTES || cron.split_ascii_whitespace().count() != 5 || cron.contains('@') {
        return None;
    }
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build().parse(cron.trim()).ok()
}

fn next(cron: &Cron, zone: Tz, now: Timestamp) -> Option<Timestamp> {
    let now = DateTime::<Utc>::from_timestamp_micros(now.micros())?.with_timezone(&zone);
    let next = cron.find_next_occurrence(&now, false).ok()?;
    Some(Timestamp::from_micros(next.timestamp_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let time: DateTime<Utc> = text.parse().unwrap();
        Timestamp::from_micros(time.timestamp_micros())
    }

    fn times(cron: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let mut now = at(from);
        let schedule = read(cron, zone, SHORTEST_STAY, now).unwrap();
        (0..count)
            .map(|_| {
                now = next_after(&schedule, now).unwrap();
                DateTime::<Utc>::from_timestamp_micros(now.micros()).unwrap().format("%FT%RZ").to_string()
            })
            .collect()
    }

    #[test]
    fn a_time_in_the_spring_gap_comes_once() {
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]
        );
    }

    #[test]
    fn a_time_in_the_autumn_overlap_comes_once() {
        assert_eq!(
            times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused_by_field() {
        let now = at("2026-01-01T00:00:00Z");
        let long = "1,".repeat(200) + "1 * * * *";
        for (cron, zone, stay, expected) in [
            ("", "UTC", 60, "cron"),
            ("* * * *", "UTC", 60, "cron"),
            ("* * * * * *", "UTC", 60, "cron"),
            ("@daily", "UTC", 60, "cron"),
            ("61 * * * *", "UTC", 60, "cron"),
            ("0 0 31 2 *", "UTC", 60, "cron"),
            (long.as_str(), "UTC", 60, "cron"),
            ("0 9 * * *", "Mars/Olympus", 60, "time_zone"),
            ("0 9 * * *", "UTC", 59, "stay_up_seconds"),
            ("0 9 * * *", "UTC", 86_401, "stay_up_seconds"),
        ] {
            match read(cron, zone, Duration::from_secs(stay), now) {
                Err(EngineError::Invalid { field, .. }) => assert_eq!(field, expected, "{cron} {zone}"),
                other => panic!("{cron} {zone} {stay}: {other:?}"),
            }
        }
        assert_eq!(read("0 9 * * MON-FRI", "", LONGEST_STAY, now).unwrap().time_zone, "UTC");
    }
}
