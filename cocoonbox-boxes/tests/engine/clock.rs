//! A wall clock that jumps by a day, either way, while next to no time goes by.

use std::time::Duration;

use cocoonbox_core::backend::{HibernateTo, Memory};
use cocoonbox_core::machine::BoxState;
use cocoonbox_core::{Timestamp, UserId};

use crate::setup::{FREE, World, config, user};

const DAY: Duration = Duration::from_hours(24);
const IDLE: Duration = Duration::from_mins(10);

impl World {
    fn jump(&self, forward: bool) {
        let now = self.clock_now();
        let back = Timestamp::from_micros(now.micros() - i64::try_from(DAY.as_micros()).unwrap());
        self.clock.set(if forward { now.plus(DAY) } else { back });
    }

    async fn asleep(&self, owner: &UserId) {
        let started = self.engine.hibernate(owner, "", HibernateTo::Memory, None).await.unwrap();
        self.last(owner, &started).await;
    }
}

#[tokio::test]
async fn an_idle_box_is_not_put_to_sleep_early_nor_kept_up_for_a_day() {
    for forward in [true, false] {
        let (world, ana) = (World::with(config().with_user_idle_hibernate(IDLE)).await, user());
        world.running(&ana).await;
        world.minutes(5).await;
        world.jump(forward);
        world.minutes(9).await;
        assert_eq!(world.state(&ana).await, BoxState::Running, "forward: {forward}");
        world.minutes(2).await;
        assert_eq!(world.state(&ana).await, BoxState::Hibernated, "forward: {forward}");
    }
}

#[tokio::test]
async fn memory_is_not_given_up_early_nor_kept_for_a_day() {
    for forward in [true, false] {
        let world = World::with(config().with_freeze_to_disk_after(Duration::from_hours(1))).await;
        let ana = user();
        world.running(&ana).await;
        world.asleep(&ana).await;
        world.minutes(5).await;
        world.jump(forward);
        world.minutes(59).await;
        assert_eq!(world.first(&ana).await.memory, Some(Memory::Kept), "forward: {forward}");
        world.minutes(2).await;
        assert_eq!(world.first(&ana).await.memory, Some(Memory::Lost), "forward: {forward}");
    }
}

#[tokio::test]
async fn a_key_is_remembered_over_a_jump() {
    for forward in [true, false] {
        let (world, ana) = (World::new().await, user());
        let create = async || {
            let key = Some("again".parse().unwrap());
            world.engine.create(&ana, FREE, None, None, key).await
        };
        let first = create().await.unwrap();
        world.last(&ana, &first).await;
        world.jump(forward);
        world.minutes(1).await;
        let second = create().await.unwrap();
        assert_eq!((first.box_id, first.operation), (second.box_id, second.operation), "forward: {forward}");
    }
}

#[tokio::test]
async fn a_scheduled_wake_lasts_as_long_and_its_schedule_follows_the_clock() {
    for forward in [true, false] {
        let (world, ana) = (World::new().await, user());
        world.running(&ana).await;
        let stay = Duration::from_mins(20);
        // it is 14:00 in Berlin
        world.engine.set_schedule(&ana, "", "1 14 * * *", "Europe/Berlin", stay).await.unwrap();
        world.asleep(&ana).await;
        world.minutes(2).await;
        assert_eq!(world.state(&ana).await, BoxState::Running);
        world.jump(forward);
        world.minutes(18).await;
        assert_eq!(world.state(&ana).await, BoxState::Running, "forward: {forward}");
        let next = world.first(&ana).await.schedule.unwrap().next_at.unwrap();
        assert!(next.since(world.clock_now()) <= DAY, "forward: {forward}: {next:?}");
        world.minutes(22).await;
        assert_eq!(world.state(&ana).await, BoxState::Hibernated, "forward: {forward}");
    }
}
