//! Resources and turns, without threads.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Available, Device, Place, RateLimiter};
use crate::config::proto::{ModelRateLimiter, model_rate_limiter::Resource};

/// Resources as name, whether global, and count.
fn needs(priority: u32, resources: &[(&str, bool, u32)]) -> ModelRateLimiter {
    let resource = |(name, global, count): &(&str, bool, u32)| Resource {
        name: (*name).to_owned(),
        global: *global,
        count: *count,
    };
    ModelRateLimiter { resources: resources.iter().map(resource).collect(), priority }
}

fn available(all: &[(&str, u64, Device)]) -> Available {
    let mut available = Available::default();
    all.iter().for_each(|(name, count, device)| available.add(name, *count, *device));
    available
}

fn limiter(all: &[(&str, u64, Device)]) -> Arc<RateLimiter> {
    Arc::new(RateLimiter::new(available(all)))
}

fn join(limiter: &Arc<RateLimiter>, priority: u32, resources: &[(&str, bool, u32)]) -> Place {
    limiter.join(&needs(priority, resources), || {}).unwrap()
}

fn refused(limiter: &Arc<RateLimiter>, resources: &[(&str, bool, u32)]) -> String {
    limiter.join(&needs(1, resources), || {}).err().expect("it was taken in").message
}

const EACH: Device = Device::Each;

#[test]
fn the_log_has_how_much_there_is() {
    let all = limiter(&[]);
    let _place = join(&all, 1, &[("R1", false, 4), ("R2", true, 2), ("R3", false, 1)]);
    let text = all.state.lock().resources.to_string();
    let expected = "\tDevice: GLOBAL\n\t\tResource: R2\t Count: 2\n\tDevice: 0\n\t\tResource: R1\t Count: 4\n\t\tResource: \
                    R3\t Count: 1\n";
    assert_eq!(text, expected);
}

#[test]
fn what_can_never_run_is_refused_in_tritons_words() {
    let too_little = |name, there, needed| {
        format!(
            "Resource count for \"{name}\" is limited to {there} which will prevent scheduling of one or more model \
             instances, the minimum required count is {needed}"
        )
    };
    let small = limiter(&[("R1", 3, EACH), ("R2", 2, Device::Number(7))]);
    assert_eq!(refused(&small, &[("R1", false, 4)]), too_little("R1", 3, 4));
    // Not on the device of the instance, but found for a global need, wherever it is.
    assert_eq!(refused(&small, &[("R2", false, 1)]), too_little("R2", 0, 1));
    let place = join(&small, 1, &[("R2", true, 2)]);
    assert_eq!(refused(&small, &[("R3", false, 1)]), too_little("R3", 0, 1));
    let both = "Resource \"R2\" is present as both global and device-specific resource in the model configuration.";
    let here = limiter(&[("R2", 2, EACH)]);
    let other = join(&here, 1, &[("R2", true, 1)]);
    assert_eq!(refused(&here, &[("R2", false, 1)]), both);
    // Who left is not in the way.
    drop((place, other));
    join(&here, 1, &[("R2", false, 1)]);
    // Of several counts the least holds.
    assert_eq!(refused(&limiter(&[("R", 5, EACH), ("R", 1, EACH)]), &[("R", false, 2)]), too_little("R", 1, 2));
}

#[test]
fn there_is_as_much_as_the_one_needs_that_needs_most() {
    let limiter = limiter(&[]);
    let [a, b, c] = [4, 2, 2].map(|count| join(&limiter, 1, &[("R1", false, count)]));
    [&a, &b, &c].into_iter().for_each(Place::ask);
    assert_eq!([&a, &b, &c].map(Place::may_run), [true, false, false]);
    a.give_back(true, false);
    assert_eq!([&a, &b, &c].map(Place::may_run), [false, true, true]);
    // Without the one that needs most there is less.
    b.give_back(true, false);
    c.give_back(true, false);
    drop(a);
    b.ask();
    c.ask();
    assert_eq!([b.may_run(), c.may_run()], [true, false]);
    // One that ends while it runs leaves what it had.
    drop(b);
    assert!(c.may_run());
}

#[test]
fn who_needs_nothing_waits_for_nobody_but_who_comes_first() {
    let limiter = limiter(&[]);
    let (a, b, free) =
        (join(&limiter, 1, &[("R", true, 1)]), join(&limiter, 1, &[("R", true, 1)]), join(&limiter, 9, &[]));
    a.ask();
    free.ask();
    assert!(a.may_run() && free.may_run());
    free.give_back(true, false);
    // `b` ran less often and comes first, though there is nothing for it yet.
    b.ask();
    free.ask();
    assert!(!b.may_run() && !free.may_run());
    a.give_back(true, false);
    assert!(b.may_run() && free.may_run());
}

#[test]
fn runs_are_shared_out_by_priority() {
    let limiter = limiter(&[]);
    let places = [1, 2, 4].map(|priority| join(&limiter, priority, &[("R", false, 1)]));
    let mut runs = [0; 3];
    places.iter().for_each(Place::ask);
    for _ in 0..64 {
        let running: Vec<usize> = (0..3).filter(|i| places[*i].may_run()).collect();
        let [running] = running[..] else { panic!("not one at a time: {running:?}") };
        runs[running] += 1;
        places[running].give_back(true, true);
    }
    // 40, 20 and 10 with the two that each begins with.
    assert_eq!(runs, [38, 18, 8]);
}

#[test]
fn a_turn_that_was_not_used_does_not_count() {
    let limiter = limiter(&[]);
    let (a, b) = (join(&limiter, 1, &[("R", false, 1)]), join(&limiter, 1, &[("R", false, 1)]));
    a.ask();
    a.give_back(true, true);
    b.ask();
    // `a` has run and has its turn; `b`, which has not, comes next however often it finds nothing to run.
    for _ in 0..3 {
        a.give_back(false, true);
        assert_eq!([a.may_run(), b.may_run()], [false, true]);
        b.give_back(false, true);
        assert_eq!([a.may_run(), b.may_run()], [false, true]);
        b.give_back(false, false);
        assert_eq!([a.may_run(), b.may_run()], [true, false]);
        b.ask();
    }
}

#[test]
fn whoever_gets_its_turn_is_woken_outside_the_lock() {
    let limiter = limiter(&[]);
    let woken = Arc::<Mutex<u32>>::default();
    let (count, again) = (woken.clone(), limiter.clone());
    let place = limiter.join(&needs(0, &[]), move || {
        // Would wait for ever inside the lock.
        drop(again.join(&needs(1, &[]), || {}).unwrap());
        *count.lock() += 1;
    });
    let place = place.unwrap();
    place.ask();
    place.ask();
    assert_eq!(*woken.lock(), 1);
    place.give_back(true, true);
    assert_eq!(*woken.lock(), 2);
}
