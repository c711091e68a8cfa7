//! The sequence batcher under a simulated clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{SequenceBatcher, SequenceSettings, SequenceStrategy};
use crate::{
    request::{CorrelationId, Sequence},
    scheduler::{
        Dropped, Poll, Refusal, Settings,
        tests::{Probe, US, probe},
    },
};

const IDLE: Duration = Duration::from_millis(1);

fn direct(slots: usize, delay_us: u64, utilization: f32) -> SequenceStrategy {
    SequenceStrategy::Direct { queue_delay_max: US(delay_us), slot_utilization_min: utilization, batch_size_max: slots }
}

fn oldest(batch: usize, preferred: &[usize], delay_us: u64) -> SequenceStrategy {
    SequenceStrategy::Oldest(Settings {
        batch_size_max: batch,
        preferred_batch_sizes: preferred.iter().copied().collect(),
        queue_delay_max: US(delay_us),
        ..Settings::default()
    })
}

fn settings(slots: usize, strategy: SequenceStrategy) -> SequenceSettings {
    SequenceSettings {
        model: "m".into(),
        slots,
        idle_max: IDLE,
        is_iterative: false,
        strategy,
        first_batch_hold: 0,
        backlog_hold: 0,
    }
}

/// A batcher with so many instances.
fn batcher(settings: SequenceSettings, instances: usize, now: Instant) -> SequenceBatcher<Probe> {
    let mut batcher = SequenceBatcher::new(settings);
    (0..instances).for_each(|instance| batcher.add_instance(instance, now));
    batcher
}

/// Request `id` of sequence `sequence`: `s` starts and `e` ends it.
fn step(sequence: u64, id: usize, flags: &str) -> Probe {
    let sequence = Sequence { id: CorrelationId::Int(sequence), start: flags.contains('s'), end: flags.contains('e') };
    Probe { sequence, ..probe(id, 1) }
}

/// The batch: identifiers of requests in the order of rows, `None` for a stand-in.
fn rows(poll: Poll<Probe>) -> Vec<Option<usize>> {
    match poll {
        Poll::Batch(items) => items.iter().map(|item| (!item.is_stand_in).then_some(item.id)).collect(),
        other => panic!("expected a batch, got {other:?}"),
    }
}

#[test]
fn requests_that_fit_no_sequence_are_given_back() {
    let now = Instant::now();
    let mut batcher = batcher(settings(2, direct(2, 0, 0.0)), 1, now);
    batcher.push(step(5, 0, "s"), now).unwrap();
    batcher.push(step(6, 1, "se"), now).unwrap();
    for (request, expected) in [
        (Probe { size: 2, ..step(5, 9, "") }, Refusal::Batched),
        (step(0, 9, "s"), Refusal::NoSequence),
        (step(7, 9, ""), Refusal::NotStarted),
        (step(6, 9, ""), Refusal::NotStarted), // it has ended
        (
            Probe {
                sequence: Sequence { id: CorrelationId::String(String::new()), start: true, end: false },
                ..probe(9, 1)
            },
            Refusal::NoSequence,
        ),
    ] {
        let refused = batcher.push(request, now).unwrap_err();
        assert_eq!((refused.why, refused.item.id), (expected, 9));
    }
    batcher.stop();
    assert_eq!(batcher.push(step(8, 9, "s"), now).unwrap_err().why, Refusal::Stopping);
    batcher.push(step(5, 2, "e"), now).expect("what has begun goes on");
}

#[test]
fn direct_keeps_each_sequence_in_its_row() {
    let now = Instant::now();
    let mut batcher = batcher(settings(3, direct(3, 0, 0.0)), 1, now);
    for (sequence, id) in [(1, 10), (2, 20), (3, 30)] {
        batcher.push(step(sequence, id, "s"), now).unwrap();
    }
    assert_eq!(rows(batcher.poll(0, now)), [Some(10), Some(20), Some(30)]);
    batcher.push(step(3, 31, ""), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [None, None, Some(31)], "stand-ins up to the last row that has a request");
    batcher.push(step(1, 11, "e"), now).unwrap();
    batcher.push(step(2, 21, ""), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(11), Some(21)], "none behind it");
    batcher.push(step(4, 40, "s"), now).unwrap();
    batcher.push(step(3, 32, ""), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(40), None, Some(32)], "the row of the sequence that ended");
    assert_eq!(batcher.poll(0, now), Poll::Idle);
}

#[test]
fn requests_of_a_sequence_run_one_after_the_other() {
    let now = Instant::now();
    for strategy in [direct(4, 0, 0.0), oldest(4, &[], 0)] {
        let mut batcher = batcher(settings(4, strategy), 1, now);
        for id in 0..3 {
            batcher.push(step(1, id, if id == 0 { "s" } else { "" }), now).unwrap();
        }
        for id in 0..3 {
            assert_eq!(rows(batcher.poll(0, now)), [Some(id)]);
        }
    }
}

#[test]
fn other_shapes_wait_for_the_next_batch() {
    let now = Instant::now();
    let mut batcher = batcher(settings(3, direct(3, 0, 0.0)), 1, now);
    for (sequence, kind) in [(1, 0), (2, 1), (3, 0)] {
        batcher.push(Probe { kind, ..step(sequence, sequence as usize, "s") }, now).unwrap();
    }
    assert_eq!(rows(batcher.poll(0, now)), [Some(1), None, Some(3)]);
    assert_eq!(rows(batcher.poll(0, now)), [None, Some(2)]);
}

#[test]
fn a_batch_waits_for_company_as_long_as_it_may() {
    let start = Instant::now();
    // (delay, utilization, sequences that come, at, whether it runs)
    for (delay, utilization, sequences, at, runs) in [
        (100, 1.0, 3, 99, false),
        (100, 1.0, 3, 100, true),
        (100, 1.0, 4, 0, true),
        (100, 0.5, 2, 0, true),
        (100, 0.5, 1, 0, false),
        (100, 0.0, 1, 0, true),
        (0, 1.0, 1, 0, true),
    ] {
        let mut batcher = batcher(settings(4, direct(4, delay, utilization)), 1, start);
        for sequence in 1..=sequences {
            batcher.push(step(sequence, sequence as usize, "s"), start).unwrap();
        }
        let case = format!("{delay} {utilization} {sequences} {at}");
        match batcher.poll(0, start + US(at)) {
            Poll::Batch(items) => assert!(runs && items.len() as u64 == sequences, "{case}"),
            other => assert!(!runs && other == Poll::WaitUntil(start + US(delay)), "{case}"),
        }
    }
}

#[test]
fn sequences_spread_over_instances_and_stay_there() {
    let now = Instant::now();
    let mut batcher = batcher(settings(2, direct(2, 0, 0.0)), 2, now);
    for sequence in 1..=4 {
        batcher.push(step(sequence, sequence as usize, "s"), now).unwrap();
    }
    assert_eq!(rows(batcher.poll(0, now)), [Some(1), Some(3)]);
    assert_eq!(rows(batcher.poll(1, now)), [Some(2), Some(4)]);
    assert_eq!([0, 1].map(|instance| batcher.poll(instance, now)), [Poll::Idle, Poll::Idle]);
    batcher.push(step(2, 20, ""), now).unwrap();
    assert!(batcher.has_work(1) && !batcher.has_work(0));
    assert_eq!(batcher.poll(0, now), Poll::Idle);
    assert_eq!(rows(batcher.poll(1, now)), [Some(20)]);
}

#[test]
fn the_backlog_comes_in_order_when_sequences_end() {
    let now = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let mut batcher = batcher(settings(1, strategy), 1, now);
        for (sequence, id, flags) in
            [(1, 10, "s"), (2, 20, "s"), (3, 30, "se"), (2, 21, "e"), (2, 22, "se"), (1, 11, "e")]
        {
            batcher.push(step(sequence, id, flags), now).unwrap();
        }
        // The second sequence 2 begins after the first ended, and stands behind sequence 3.
        for id in [10, 11, 20, 21, 30, 22] {
            assert_eq!(rows(batcher.poll(0, now)), [Some(id)]);
        }
        assert_eq!((batcher.poll(0, now), batcher.open()), (Poll::Idle, 0));
    }
}

#[test]
fn a_sequence_that_left_the_backlog_goes_on_in_its_place() {
    let now = Instant::now();
    let mut batcher = batcher(settings(1, direct(1, 0, 0.0)), 1, now);
    batcher.push(step(1, 10, "se"), now).unwrap();
    batcher.push(step(2, 20, "s"), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(10)]);
    batcher.push(step(2, 21, ""), now).unwrap();
    assert_eq!((rows(batcher.poll(0, now)), rows(batcher.poll(0, now))), (vec![Some(20)], vec![Some(21)]));
}

#[test]
fn idle_sequences_lose_their_place() {
    let start = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let mut batcher = batcher(settings(1, strategy), 1, start);
        batcher.push(step(1, 10, "s"), start).unwrap();
        batcher.push(step(2, 20, "s"), start).unwrap();
        assert_eq!(rows(batcher.poll(0, start)), [Some(10)]);
        assert_eq!(batcher.poll(0, start), Poll::Idle);
        assert_eq!(batcher.next_deadline(start), Some(start + IDLE));
        batcher.expire(start + IDLE - US(1));
        assert_eq!(batcher.poll(0, start + IDLE - US(1)), Poll::Idle);
        batcher.expire(start + IDLE);
        assert_eq!(batcher.push(step(1, 11, ""), start + IDLE).unwrap_err().why, Refusal::NotStarted);
        assert_eq!(rows(batcher.poll(0, start + IDLE)), [Some(20)], "its time counts from when it got the place");
        batcher.expire(start + IDLE + IDLE - US(1));
        assert!(batcher.push(step(2, 21, ""), start + IDLE + IDLE - US(1)).is_ok());
    }
}

#[test]
fn a_sequence_is_not_idle_while_a_request_waits_or_runs() {
    let start = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let mut batcher = batcher(settings(1, strategy), 1, start);
        for (sequence, id, flags) in [(1, 10, "s"), (1, 11, ""), (2, 20, "s")] {
            batcher.push(step(sequence, id, flags), start).unwrap();
        }
        // Each step takes far longer than a sequence may be idle.
        let at = |steps: u32| start + IDLE * 10 * steps;
        for (steps, id) in [(1, 10), (2, 11)] {
            batcher.expire(at(steps));
            assert!(batcher.next_deadline(at(steps)).is_some_and(|deadline| deadline > at(steps)), "it does not spin");
            assert_eq!(rows(batcher.poll(0, at(steps))), [Some(id)]);
        }
        batcher.expire(at(3));
        batcher.push(step(1, 12, ""), at(3)).expect("it runs, and goes on");
        assert_eq!(rows(batcher.poll(0, at(3))), [Some(12)]);
        // From here on it has nothing to do.
        assert_eq!(batcher.poll(0, at(4)), Poll::Idle);
        batcher.expire(at(4) + IDLE - US(1));
        assert_eq!(batcher.poll(0, at(4) + IDLE - US(1)), Poll::Idle);
        batcher.expire(at(4) + IDLE);
        assert_eq!(rows(batcher.poll(0, at(4) + IDLE)), [Some(20)]);
        assert!(batcher.take_dropped().is_empty());
    }
}

#[test]
fn an_instance_whose_requests_ran_elsewhere_is_asked_again() {
    let now = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let mut batcher = batcher(settings(1, strategy), 1, now);
        batcher.push(step(1, 10, "s"), now).unwrap();
        assert_eq!(rows(batcher.poll(0, now)), [Some(10)]);
        batcher.push(step(1, 11, ""), now).unwrap();
        assert!(batcher.has_work(0), "what waits behind a request that ran");
        assert_eq!(rows(batcher.poll(0, now)), [Some(11)]);
        assert_eq!(batcher.poll(0, now), Poll::Idle);
        assert!(!batcher.has_work(0));
    }
}

#[test]
fn who_gives_up_leaves_the_backlog_at_once() {
    let start = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let mut batcher = batcher(SequenceSettings { idle_max: IDLE * 1000, ..settings(1, strategy) }, 1, start);
        batcher.push(step(1, 10, "s"), start).unwrap();
        assert_eq!(rows(batcher.poll(0, start)), [Some(10)]);
        let gone = step(2, 21, "");
        for request in [step(2, 20, "s"), gone.clone(), step(3, 30, "s")] {
            let look = batcher.push(request, start).unwrap();
            assert!(look <= start + Duration::from_millis(20), "clients of the backlog are looked after");
        }
        gone.cancelled.set(true);
        // While the instance is busy.
        let soon = batcher.next_deadline(start).unwrap();
        assert!(soon <= start + Duration::from_millis(20));
        batcher.expire(soon);
        let dropped: Vec<_> = batcher.take_dropped().into_iter().map(|(item, why)| (item.id, why)).collect();
        assert_eq!(dropped, [(20, Dropped::Cancelled), (21, Dropped::Cancelled)]);
        assert_eq!(batcher.push(step(2, 22, ""), soon).unwrap_err().why, Refusal::NotStarted);
        assert_eq!(batcher.len(), 1);
    }
}

#[test]
fn a_cancelled_request_ends_its_sequence() {
    let now = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let mut batcher = batcher(settings(1, strategy), 1, now);
        batcher.push(step(1, 10, "s"), now).unwrap();
        let gone = step(1, 11, "");
        batcher.push(gone.clone(), now).unwrap();
        batcher.push(step(1, 12, ""), now).unwrap();
        let other = step(2, 20, "s");
        for request in [other.clone(), step(2, 21, ""), step(3, 30, "s")] {
            batcher.push(request, now).unwrap();
        }
        assert_eq!(rows(batcher.poll(0, now)), [Some(10)]);
        gone.cancelled.set(true);
        other.cancelled.set(true);
        assert_eq!(rows(batcher.poll(0, now)), [Some(30)]);
        let dropped: Vec<_> = batcher.take_dropped().into_iter().map(|(item, why)| (item.id, why)).collect();
        let expected: Vec<_> = [11, 12, 20, 21].map(|id| (id, Dropped::Cancelled)).into();
        assert_eq!(dropped, expected);
        for sequence in [1, 2] {
            assert_eq!(batcher.push(step(sequence, 9, ""), now).unwrap_err().why, Refusal::NotStarted);
        }
    }
}

#[test]
fn sequences_wait_in_the_backlog_as_long_as_their_requests_allow() {
    let start = Instant::now();
    let mut batcher = batcher(SequenceSettings { idle_max: IDLE * 100, ..settings(1, direct(1, 0, 0.0)) }, 1, start);
    batcher.push(Probe { timeout_us: 10, ..step(1, 10, "s") }, start).unwrap();
    for (sequence, id, flags, timeout_us) in [(2, 20, "s", 0), (2, 21, "", 50), (3, 30, "se", 70), (4, 40, "s", 0)] {
        batcher.push(Probe { timeout_us, ..step(sequence, id, flags) }, start).unwrap();
    }
    assert_eq!(batcher.next_deadline(start), Some(start + US(50)));
    batcher.expire(start + US(60));
    let dropped: Vec<_> = batcher.take_dropped().into_iter().map(|(item, why)| (item.id, why)).collect();
    assert_eq!(dropped, [(20, Dropped::SequenceExpired), (21, Dropped::SequenceExpired)]);
    assert_eq!(batcher.push(step(2, 22, ""), start + US(60)).unwrap_err().why, Refusal::NotStarted);
    batcher.expire(start + US(70));
    assert_eq!(batcher.take_dropped().len(), 1);
    assert_eq!(rows(batcher.poll(0, start + US(70))), [Some(10)], "who has a place has time");
    batcher.push(step(1, 11, "e"), start + US(70)).unwrap();
    assert_eq!((rows(batcher.poll(0, start)), rows(batcher.poll(0, start))), (vec![Some(11)], vec![Some(40)]));
}

#[test]
fn oldest_batches_candidates_by_size_and_delay() {
    let start = Instant::now();
    let mut batcher = batcher(settings(4, oldest(2, &[2], 100)), 1, start);
    batcher.push(step(1, 10, "s"), start).unwrap();
    batcher.push(step(1, 11, ""), start).unwrap();
    assert_eq!(batcher.poll(0, start), Poll::WaitUntil(start + US(100)));
    for sequence in 2..=4 {
        batcher.push(step(sequence, sequence as usize * 10, "s"), start).unwrap();
    }
    assert_eq!(rows(batcher.poll(0, start)), [Some(10), Some(20)]);
    assert_eq!(rows(batcher.poll(0, start)), [Some(30), Some(40)]);
    assert_eq!(batcher.poll(0, start), Poll::WaitUntil(start + US(100)));
    assert_eq!(rows(batcher.poll(0, start + US(100))), [Some(11)]);
}

#[test]
fn oldest_waits_until_a_request_has_run_before_the_next_of_its_place() {
    let now = Instant::now();
    let mut batcher = batcher(settings(1, oldest(4, &[4], 0)), 1, now);
    batcher.push(step(1, 10, "se"), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(10)]);
    // The place is free for the next sequence, which waits for the end of the last request.
    batcher.push(step(2, 20, "s"), now).unwrap();
    assert_eq!(batcher.len(), 1);
    assert_eq!(rows(batcher.poll(0, now)), [Some(20)]);
}

#[test]
fn iterative_sequences_begin_by_themselves_and_the_model_ends_them() {
    let now = Instant::now();
    let settings = SequenceSettings { is_iterative: true, ..settings(1, direct(1, 0, 0.0)) };
    let mut batcher = batcher(settings, 1, now);
    batcher.push(step(1, 0, "s"), now).unwrap();
    batcher.push(step(0, 1, "e"), now).unwrap();
    let Poll::Batch(first) = batcher.poll(0, now) else { panic!("no batch") };
    assert_eq!(first[0].id, 0);
    // It runs again, and then no more.
    batcher.push_again(step(1, 0, ""), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(0)]);
    batcher.end(&CorrelationId::Int(1), 0, 0, now);
    let Poll::Batch(second) = batcher.poll(0, now) else { panic!("no batch") };
    assert_eq!((second[0].sequence.start, second[0].sequence.end), (true, false));
    let CorrelationId::Int(id) = second[0].sequence.id else { panic!("no number") };
    assert!(id >= 1 << 32, "clients count from 1");
    // Nobody enters it, as the first request or as another; it goes on itself.
    for flags in ["s", ""] {
        assert_eq!(batcher.push(step(id, 2, flags), now).unwrap_err().why, Refusal::Own);
    }
    batcher.push_again(step(id, 1, ""), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(1)]);
    batcher.end(&CorrelationId::Int(id), 0, 0, now);
    batcher.push(step(id, 3, "s"), now).expect("it is over");
}

#[test]
fn an_iterative_sequence_that_begins_anew_does_not_end_with_the_one_before() {
    let now = Instant::now();
    for strategy in [direct(1, 0, 0.0), oldest(1, &[], 0)] {
        let settings = SequenceSettings { is_iterative: true, ..settings(1, strategy) };
        let mut batcher = batcher(settings, 2, now);
        batcher.push(step(7, 0, "s"), now).unwrap();
        assert_eq!(rows(batcher.poll(0, now)), [Some(0)]);
        // The client uses its number again while the first request runs.
        batcher.push(step(7, 1, "s"), now).unwrap();
        batcher.end(&CorrelationId::Int(7), 0, 0, now);
        assert_eq!(rows(batcher.poll(0, now)), [Some(1)]);
        batcher.push_again(step(7, 1, ""), now).expect("it goes on");
        assert_eq!(rows(batcher.poll(0, now)), [Some(1)]);
        // What ends in another place is another sequence of that number.
        batcher.end(&CorrelationId::Int(7), 1, 0, now);
        batcher.push_again(step(7, 1, ""), now).expect("it goes on");
    }
}

#[test]
fn an_instance_leaves_when_its_sequences_are_over() {
    let now = Instant::now();
    let mut batcher = batcher(settings(1, direct(1, 0, 0.0)), 1, now);
    batcher.push(step(1, 10, "s"), now).unwrap();
    batcher.push(step(2, 20, "s"), now).unwrap();
    batcher.remove_instance(0);
    assert_eq!(rows(batcher.poll(0, now)), [Some(10)]);
    assert!(!batcher.is_gone(0));
    batcher.add_instance(1, now);
    assert_eq!(rows(batcher.poll(1, now)), [Some(20)], "the backlog goes to the new one");
    batcher.push(step(1, 11, "e"), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(11)]);
    assert!(batcher.is_gone(0) && !batcher.is_gone(1));
    batcher.remove_instance(1);
    assert_eq!(batcher.poll(1, now), Poll::Idle);
    assert!(!batcher.is_gone(1));
    batcher.expire(now + IDLE);
    assert!(batcher.has_work(1), "woken to go");
    assert!(batcher.is_gone(1));
}

#[test]
fn a_held_queue_runs_once_enough_waits() {
    let now = Instant::now();
    let settings = SequenceSettings { first_batch_hold: 2, backlog_hold: 1, ..settings(2, direct(2, 0, 0.0)) };
    let mut batcher = batcher(settings, 1, now);
    batcher.push(step(1, 10, "s"), now).unwrap();
    assert_eq!(batcher.poll(0, now), Poll::Idle);
    batcher.push(step(2, 20, "s"), now).unwrap();
    assert_eq!(batcher.poll(0, now), Poll::Idle);
    batcher.push(step(3, 30, "s"), now).unwrap();
    assert_eq!(rows(batcher.poll(0, now)), [Some(10), Some(20)]);
}

/// What happens from outside.
#[derive(Debug, Clone)]
enum Event {
    Push { sequence: u64, start: bool, end: bool, timeout_us: u64, kind: u8 },
    Cancel(usize),
    Pass(u64),
    Poll(usize),
    Expire,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..6u64, any::<bool>(), prop::bool::weighted(0.3), prop_oneof![3 => Just(0u64), 1 => 1..500u64], 0..=1u8)
            .prop_map(|(sequence, start, end, timeout_us, kind)| Event::Push { sequence, start, end, timeout_us, kind }),
        1 => (0..64usize).prop_map(Event::Cancel),
        2 => (1..600u64).prop_map(Event::Pass),
        5 => (0..2usize).prop_map(Event::Poll),
        1 => Just(Event::Expire),
    ]
}

fn any_settings() -> impl Strategy<Value = SequenceSettings> {
    let delay = || prop_oneof![Just(0u64), 1..200u64];
    let strategy = prop_oneof![
        (delay(), 0..=4u8).prop_map(|(delay, part)| direct(2, delay, f32::from(part) / 4.0)),
        (1..=3usize, prop::collection::vec(1..=3usize, 0..2), delay())
            .prop_map(|(batch, preferred, delay)| oldest(batch, &preferred, delay)),
    ];
    (1..=2usize, strategy).prop_map(|(slots, strategy)| settings(slots, strategy))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// No request is lost or leaves twice; those of a sequence run in order, in one place, never two in a batch; two
    /// sequences that go on never share a place; once closed, everything runs.
    #[test]
    fn sequences_run_in_order(settings in any_settings(), events in prop::collection::vec(event(), 1..160)) {
        let mut now = Instant::now();
        let is_direct = matches!(settings.strategy, SequenceStrategy::Direct { .. });
        let mut batcher = batcher(settings, 2, now);
        let mut known: Vec<Probe> = Vec::new();
        let mut inside: BTreeSet<usize> = BTreeSet::new();
        // Which sequence a request continues: one start opens another.
        let mut run_of: Vec<usize> = Vec::new();
        let mut current: BTreeMap<u64, usize> = BTreeMap::new();
        let mut places: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut last_of: BTreeMap<usize, usize> = BTreeMap::new();
        let close_at = events.len();
        let polls = (0..4000).map(|i| Event::Poll(i % 2));
        for (number, event) in events.into_iter().chain(polls).enumerate() {
            if number == close_at {
                batcher.close();
            }
            if number > close_at && batcher.len() == 0 {
                break;
            }
            match event {
                Event::Push { sequence, start, end, timeout_us, kind } => {
                    let id = known.len();
                    let flags = [if start { "s" } else { "" }, if end { "e" } else { "" }].concat();
                    let item = Probe { timeout_us, kind, ..step(sequence, id, &flags) };
                    let is_open = batcher.open.contains_key(&item.sequence.id);
                    known.push(item.clone());
                    let run = match current.get(&sequence) {
                        Some(&run) if is_open => run,
                        _ => id,
                    };
                    run_of.push(run);
                    match batcher.push(item, now) {
                        Ok(_) => {
                            inside.insert(id);
                            current.insert(sequence, run);
                        }
                        Err(refused) => {
                            prop_assert_eq!(refused.why, Refusal::NotStarted);
                            prop_assert!(!start && !is_open);
                        }
                    }
                }
                Event::Cancel(index) => if let Some(item) = known.get(index) { item.cancelled.set(true) },
                Event::Pass(us) => now += US(us),
                Event::Expire => batcher.expire(now),
                Event::Poll(instance) => match batcher.poll(instance, now) {
                    Poll::Batch(items) => {
                        prop_assert!(items.iter().any(|item| !item.is_stand_in));
                        let mut slots = BTreeSet::new();
                        for (row, item) in items.iter().enumerate() {
                            prop_assert!(slots.insert(item.slot), "a place twice in a batch");
                            prop_assert_eq!(item.kind, items[0].kind);
                            if is_direct {
                                prop_assert_eq!(item.slot, row);
                            }
                            if item.is_stand_in {
                                continue;
                            }
                            prop_assert!(inside.remove(&item.id), "{} left twice", item.id);
                            let run = run_of[item.id];
                            let place = *places.entry(run).or_insert((instance, item.slot));
                            prop_assert_eq!(place, (instance, item.slot), "a sequence changed its place");
                            let before = last_of.insert(run, item.id);
                            prop_assert!(before.is_none_or(|before| before < item.id), "out of order");
                        }
                    }
                    Poll::WaitUntil(until) => {
                        prop_assert!(until > now && number < close_at);
                        prop_assert!(batcher.len() > 0);
                    }
                    Poll::Idle => {}
                },
            }
            for (item, _) in batcher.take_dropped() {
                prop_assert!(inside.remove(&item.id), "{} left twice", item.id);
            }
            prop_assert_eq!(batcher.len(), inside.len());
        }
        prop_assert!(inside.is_empty(), "never ran: {:?}", inside);
    }
}
