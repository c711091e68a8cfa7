//! The schedulers under a simulated clock.

use std::{cell::Cell, collections::BTreeMap, rc::Rc, time::Duration};

use proptest::prelude::*;

use super::*;

/// A request made of nothing but what schedulers look at.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    pub id: usize,
    pub size: usize,
    pub priority: u64,
    pub timeout_us: u64,
    /// Requests of the same kind have the same shapes.
    pub kind: u8,
    pub cancelled: Rc<Cell<bool>>,
    pub sequence: Sequence,
    pub slot: usize,
    pub is_stand_in: bool,
}

impl Item for Probe {
    fn batch_size(&self) -> usize {
        self.size
    }
    fn priority(&self) -> u64 {
        self.priority
    }
    fn timeout_us(&self) -> u64 {
        self.timeout_us
    }
    fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }
    fn joins(&self, first: &Self) -> bool {
        self.kind == first.kind
    }
    fn sequence(&self) -> &Sequence {
        &self.sequence
    }
    fn set_sequence(&mut self, sequence: Sequence) {
        self.sequence = sequence;
    }
    fn slot(&self) -> usize {
        self.slot
    }
    fn set_slot(&mut self, slot: usize) {
        self.slot = slot;
    }
    fn stand_in(&self, slot: usize) -> Self {
        Self { slot, is_stand_in: true, sequence: Sequence::default(), ..self.clone() }
    }
}

pub(super) fn probe(id: usize, size: usize) -> Probe {
    Probe {
        id,
        size,
        priority: 0,
        timeout_us: 0,
        kind: 0,
        cancelled: Rc::default(),
        sequence: Sequence::default(),
        slot: 0,
        is_stand_in: false,
    }
}

fn batcher(max: usize, preferred: &[usize], delay_us: u64) -> DynamicBatcher<Probe> {
    DynamicBatcher::new(settings(max, preferred, delay_us))
}

fn settings(max: usize, preferred: &[usize], delay_us: u64) -> Settings {
    Settings {
        batch_size_max: max,
        preferred_batch_sizes: preferred.iter().copied().collect(),
        queue_delay_max: Duration::from_micros(delay_us),
        ..Settings::default()
    }
}

fn ids(poll: Poll<Probe>) -> Vec<usize> {
    match poll {
        Poll::Batch(items) => items.iter().map(|item| item.id).collect(),
        other => panic!("expected a batch, got {other:?}"),
    }
}

impl PartialEq for Probe {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Probe {}

pub(super) const US: fn(u64) -> Duration = Duration::from_micros;

#[test]
fn fifo_runs_one_at_a_time_and_skips_cancelled() {
    let mut fifo = Fifo::new();
    let gone = probe(9, 1);
    gone.cancelled.set(true);
    fifo.push(gone);
    for id in 0..3 {
        fifo.push(probe(id, 1));
    }
    assert_eq!(ids(fifo.poll()), [0]);
    assert_eq!(fifo.take_dropped(), [(probe(9, 1), Dropped::Cancelled)]);
    assert_eq!((ids(fifo.poll()), ids(fifo.poll())), (vec![1], vec![2]));
    assert_eq!(fifo.poll(), Poll::Idle);
}

#[test]
fn batches_by_size_and_delay() {
    let start = Instant::now();
    // (max, preferred, delay, sizes that wait, at, expected number of requests; None: wait)
    for (max, preferred, delay, sizes, at, expected) in [
        (8, &[8][..], 0, &[1, 1, 1][..], 0, Some(3)), // no delay: whatever waits
        (8, &[8], 100, &[1, 1, 1], 99, None),         // may still grow
        (8, &[8], 100, &[1, 1, 1], 100, Some(3)),     // the delay is over
        (8, &[4], 100, &[1, 1, 2], 0, Some(3)),       // exactly preferred
        (8, &[4, 6], 100, &[4, 1, 1, 1], 0, Some(3)), // the largest preferred size passed
        (8, &[4, 6], 100, &[4, 1], 0, Some(1)),       // a preferred size, though it could grow
        (8, &[4], 100, &[3, 3], 0, Some(1)),          // beyond all preferred sizes
        (8, &[4], 100, &[3, 3], 100, Some(2)),        // ... but the delay is over
        (4, &[8], 100, &[3, 3], 0, Some(1)),          // cannot grow
        (4, &[4], 100, &[4, 4], 0, Some(1)),
        (4, &[], 0, &[1, 1, 1, 1, 1], 0, Some(1)), // without preferred sizes each request passes them all
    ] {
        let mut batcher = batcher(max, preferred, delay);
        for (id, &size) in sizes.iter().enumerate() {
            batcher.push(probe(id, size), start).unwrap();
        }
        let now = start + US(at);
        let case = format!("{max} {preferred:?} {delay} {sizes:?} {at}");
        match expected {
            Some(count) => assert_eq!(ids(batcher.poll(now)), (0..count).collect::<Vec<_>>(), "{case}"),
            None => assert_eq!(batcher.poll(now), Poll::WaitUntil(start + US(delay)), "{case}"),
        }
    }
}

#[test]
fn different_shapes_do_not_share_a_batch() {
    let start = Instant::now();
    let mut batcher = batcher(8, &[8], 100);
    for (id, kind) in [0, 0, 1, 0].into_iter().enumerate() {
        batcher.push(Probe { kind, ..probe(id, 1) }, start).unwrap();
    }
    assert_eq!(ids(batcher.poll(start)), [0, 1], "complete, since the next differs");
    assert_eq!(ids(batcher.poll(start)), [2]);
    assert_eq!(batcher.poll(start), Poll::WaitUntil(start + US(100)));
}

#[test]
fn priorities_run_first_and_unknown_ones_are_the_default() {
    let start = Instant::now();
    let mut batcher =
        DynamicBatcher::new(Settings { priority_levels: 3, default_priority_level: 2, ..settings(1, &[1], 0) });
    for (id, priority) in [3, 0, 1, 2, 99].into_iter().enumerate() {
        batcher.push(Probe { priority, ..probe(id, 1) }, start).unwrap();
    }
    let order: Vec<usize> = (0..5).flat_map(|_| ids(batcher.poll(start))).collect();
    assert_eq!(order, [2, 1, 3, 4, 0]);
}

#[test]
fn timeouts_reject_or_delay_and_requests_only_shorten_them() {
    let start = Instant::now();
    let policy = Policy { default_timeout: US(100), allow_timeout_override: true, ..Policy::default() };
    // (action, default, override, the request's timeout, at, whether it is expired)
    for (timeout_action, default_us, allow_timeout_override, asked, at, expired) in [
        (TimeoutAction::Reject, 100, true, 0, 100, false),
        (TimeoutAction::Reject, 100, true, 0, 101, true),
        (TimeoutAction::Reject, 100, true, 50, 51, true),
        (TimeoutAction::Reject, 100, true, 500, 101, true),
        (TimeoutAction::Reject, 100, false, 50, 51, false),
        (TimeoutAction::Reject, 0, true, 50, 1000, false), // no default: nothing to shorten
        (TimeoutAction::Delay, 100, true, 0, 101, true),
    ] {
        let default_policy =
            Policy { timeout_action, default_timeout: US(default_us), allow_timeout_override, ..policy };
        let mut batcher = DynamicBatcher::new(Settings { default_policy, ..settings(1, &[1], 0) });
        batcher.push(Probe { timeout_us: asked, ..probe(0, 1) }, start).unwrap();
        batcher.push(Probe { timeout_us: 0, ..probe(1, 1) }, start + US(at)).unwrap();
        let first = ids(batcher.poll(start + US(at)));
        let case = format!("{timeout_action:?} {default_us} {asked} {at}");
        assert_eq!(first, [usize::from(expired)], "{case}");
        let dropped: Vec<_> = batcher.take_dropped().into_iter().map(|(item, why)| (item.id, why)).collect();
        match (expired, timeout_action) {
            (true, TimeoutAction::Reject) => assert_eq!(dropped, [(0, Dropped::Expired)], "{case}"),
            (true, TimeoutAction::Delay) => assert_eq!(ids(batcher.poll(start + US(at))), [0], "{case}"),
            (false, _) => assert!(dropped.is_empty(), "{case}"),
        }
    }
}

#[test]
fn requests_expire_while_no_instance_is_free() {
    let start = Instant::now();
    let default_policy = Policy { default_timeout: US(10), ..Policy::default() };
    let mut batcher = DynamicBatcher::new(Settings { default_policy, ..settings(1, &[1], 0) });
    batcher.push(probe(0, 1), start).unwrap();
    assert!(batcher.has_timeouts());
    assert_eq!(batcher.next_deadline(), Some(start + US(10)));
    batcher.expire(start + US(10));
    assert_eq!(batcher.len(), 1, "not before its time is over");
    batcher.expire(start + US(11));
    assert_eq!(batcher.take_dropped().len(), 1);
    assert_eq!((batcher.len(), batcher.next_deadline()), (0, None));
}

#[test]
fn full_levels_give_requests_back() {
    let start = Instant::now();
    let mut batcher = DynamicBatcher::new(Settings {
        priority_levels: 2,
        default_priority_level: 1,
        policies: BTreeMap::from([(2, Policy { queue_len_max: 1, ..Policy::default() })]),
        ..settings(4, &[4], 0)
    });
    let level = |priority, id| Probe { priority, ..probe(id, 1) };
    assert!(batcher.push(level(2, 0), start).is_ok());
    assert_eq!(batcher.push(level(2, 1), start).unwrap_err().0.id, 1);
    assert!(batcher.push(level(1, 2), start).is_ok());
    assert_eq!(ids(batcher.poll(start)), [2, 0]);
}

#[test]
fn a_held_queue_runs_once_it_is_long_enough_or_closed() {
    let start = Instant::now();
    let held = || DynamicBatcher::new(Settings { first_batch_hold: 2, ..settings(4, &[4], 0) });
    let mut batcher = held();
    batcher.push(probe(0, 1), start).unwrap();
    assert_eq!(batcher.poll(start), Poll::Idle);
    batcher.push(probe(1, 1), start).unwrap();
    assert_eq!(ids(batcher.poll(start)), [0, 1]);
    batcher.push(probe(2, 1), start).unwrap();
    assert_eq!(ids(batcher.poll(start)), [2], "the hold is for the first batch");
    let mut batcher = held();
    batcher.push(probe(0, 1), start).unwrap();
    batcher.close();
    assert_eq!(ids(batcher.poll(start)), [0]);
}

/// What happens to a batcher from outside.
#[derive(Debug, Clone)]
enum Event {
    Push { size: usize, priority: u64, timeout_us: u64, kind: u8 },
    Cancel(usize),
    Pass(u64),
    Poll,
    Expire,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..=4usize, 0..=3u64, prop_oneof![Just(0u64), 1..60u64], 0..=1u8)
            .prop_map(|(size, priority, timeout_us, kind)| Event::Push { size, priority, timeout_us, kind }),
        1 => (0..64usize).prop_map(Event::Cancel),
        2 => (1..40u64).prop_map(Event::Pass),
        3 => Just(Event::Poll),
        1 => Just(Event::Expire),
    ]
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let policy = || {
        (any::<bool>(), 0..50u64, any::<bool>(), 0..6usize).prop_map(|(reject, timeout, allow, len)| Policy {
            timeout_action: if reject { TimeoutAction::Reject } else { TimeoutAction::Delay },
            default_timeout: US(timeout),
            allow_timeout_override: allow,
            queue_len_max: len,
        })
    };
    (4..=8usize, proptest::collection::btree_set(1..=8usize, 0..3), 0..50u64, 0..=2u64, policy(), policy()).prop_map(
        |(max, preferred, delay, levels, default_policy, second)| Settings {
            preferred_batch_sizes: preferred.into_iter().filter(|&size| size <= max).collect(),
            priority_levels: levels,
            default_priority_level: levels.min(1),
            default_policy,
            policies: if levels >= 2 { BTreeMap::from([(2, second)]) } else { BTreeMap::new() },
            ..settings(max, &[], delay)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// No request is lost or leaves twice; batches respect size and shape; a request that expires or is
    /// cancelled never runs; nobody waits beyond the delay while an instance asks.
    #[test]
    fn requests_leave_exactly_once(settings in any_settings(), events in proptest::collection::vec(event(), 1..120)) {
        let mut now = Instant::now();
        let max = settings.batch_size_max;
        let delay = settings.queue_delay_max;
        let mut batcher = DynamicBatcher::new(settings.clone());
        let mut known: Vec<(Probe, Instant)> = Vec::new();
        let mut inside: BTreeMap<usize, Probe> = BTreeMap::new();
        for event in events {
            match event {
                Event::Push { size, priority, timeout_us, kind } => {
                    let item = Probe { priority, timeout_us, kind, ..probe(known.len(), size) };
                    known.push((item.clone(), now));
                    match batcher.push(item.clone(), now) {
                        Ok(_) => { inside.insert(item.id, item); }
                        Err(Full(back)) => prop_assert_eq!(back.id, item.id),
                    }
                }
                Event::Cancel(index) => if let Some((item, _)) = known.get(index) { item.cancelled.set(true) },
                Event::Pass(us) => now += US(us),
                Event::Expire => batcher.expire(now),
                Event::Poll => match batcher.poll(now) {
                    Poll::Batch(items) => {
                        prop_assert!(!items.is_empty());
                        prop_assert!(items.iter().map(|item| item.size).sum::<usize>() <= max);
                        let mut last = BTreeMap::new();
                        for item in &items {
                            prop_assert_eq!(item.kind, items[0].kind);
                            prop_assert!(!item.cancelled.get());
                            prop_assert!(inside.remove(&item.id).is_some(), "{} left twice", item.id);
                            if settings.default_policy.default_timeout.is_zero() && settings.policies.is_empty() {
                                let level = match item.priority { p if p == 0 || p > settings.priority_levels => settings.default_priority_level, p => p };
                                let before = last.insert(level, item.id);
                                prop_assert!(before.is_none_or(|before| before < item.id), "order in a level");
                            }
                        }
                    }
                    Poll::WaitUntil(until) => {
                        prop_assert!(until > now && until <= now + delay, "{:?} after {:?}", until, now);
                        prop_assert!(batcher.len() > 0);
                    }
                    Poll::Idle => prop_assert_eq!(batcher.len(), 0),
                },
            }
            for (item, why) in batcher.take_dropped() {
                prop_assert!(inside.remove(&item.id).is_some(), "{} left twice", item.id);
                match why {
                    Dropped::Cancelled => prop_assert!(item.cancelled.get()),
                    Dropped::SequenceExpired => prop_assert!(false, "there are no sequences"),
                    Dropped::Expired => prop_assert!(known[item.id].1 < now),
                }
            }
            prop_assert_eq!(batcher.len(), inside.len());
        }
        // Once closed, every poll gives a batch until the queue is empty.
        batcher.close();
        while batcher.len() > 0 {
            if let Poll::Batch(items) = batcher.poll(now) {
                for item in items {
                    prop_assert!(inside.remove(&item.id).is_some());
                }
            } else {
                prop_assert_eq!(batcher.len(), 0);
            }
            for (item, _) in batcher.take_dropped() {
                prop_assert!(inside.remove(&item.id).is_some());
            }
        }
        prop_assert!(inside.is_empty());
    }
}
