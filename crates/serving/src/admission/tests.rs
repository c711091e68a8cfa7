use parking_lot::Mutex;
use std::sync::atomic::AtomicUsize;

use super::*;

/// Memory as a test says it is.
#[derive(Default)]
struct Scripted {
    reading: Mutex<MemoryReading>,
    reads: AtomicUsize,
    releases: AtomicUsize,
    /// What is freed and still held.
    freed: AtomicU64,
}

impl Scripted {
    fn set(&self, private: u64, left: u64) {
        *self.reading.lock() = MemoryReading { private: Some(private), left: Some(left) };
    }
}

impl MemorySensor for Scripted {
    fn read(&self) -> MemoryReading {
        self.reads.fetch_add(1, Relaxed);
        *self.reading.lock()
    }

    fn release(&self) {
        self.releases.fetch_add(1, Relaxed);
        let freed = self.freed.swap(0, Relaxed);
        let mut reading = self.reading.lock();
        reading.private = reading.private.map(|private| private - freed);
    }
}

fn admission(bytes: Option<u64>, private: u64, left: u64) -> (Admission, Arc<Scripted>, Instant) {
    let sensor = Arc::new(Scripted::default());
    sensor.set(private, left);
    let start = Instant::now();
    (Admission::new(MemoryLimit { bytes, sensor: sensor.clone() }, start), sensor, start)
}

fn need(weights: u64) -> MemoryNeed {
    MemoryNeed { weights, ..MemoryNeed::default() }
}

#[test]
fn a_model_that_would_not_fit_is_refused_with_the_numbers() {
    let (admission, ..) = admission(Some(1000), 400, 10_000);
    assert!(admission.promise("fits", &need(600)).is_ok());
    let error = admission.promise("big", &MemoryNeed { weights: 500, instance: 51, instances: 2 }).unwrap_err();
    assert_eq!(error.code, crate::error::Code::Unavailable);
    for part in [
        "model 'big' would not fit into memory: it needs at least 602 bytes (500 for weights, 51 for each of 2 instances)",
        "600 bytes of the limit of 1000 bytes (--memory-limit) are left; the server holds 400.",
        "Unload models",
        "raise --memory-limit",
    ] {
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[test]
fn the_smallest_limit_is_one() {
    let (admission, _, start) = admission(Some(1), 400, 10_000);
    assert!(admission.refuse_request(start).is_some());
}

#[test]
fn what_the_machine_has_counts_too() {
    let (limited, ..) = admission(Some(1000), 400, 100);
    let error = limited.promise("m", &need(101)).unwrap_err().message;
    assert!(error.contains("100 bytes of the memory of this machine or container are left"), "{error}");
    let (unlimited, ..) = admission(None, 400, 100);
    assert!(unlimited.promise("m", &need(101)).is_err() && unlimited.promise("m", &need(100)).is_ok());
}

#[test]
fn models_that_load_at_once_are_promised_memory_once() {
    let (admission, sensor, _) = admission(Some(1000), 0, 10_000);
    let first = admission.promise("a", &need(600)).unwrap();
    assert!(admission.promise("b", &need(401)).unwrap_err().message.contains("another model is being loaded"));
    // What the first one took is not counted twice.
    sensor.set(600, 10_000);
    let second = admission.promise("b", &need(400)).unwrap();
    drop(first);
    assert!(admission.promise("c", &need(1)).is_err());
    // The second one took less in the end.
    drop(second);
    assert!(admission.promise("c", &need(400)).is_ok());
}

#[test]
fn memory_that_was_freed_is_given_back_before_a_model_is_refused() {
    let (admission, sensor, _) = admission(Some(1000), 900, 10_000);
    sensor.freed.store(500, Relaxed);
    assert!(admission.promise("m", &need(600)).is_ok());
    assert_eq!(sensor.releases.load(Relaxed), 1);
}

#[test]
fn requests_are_refused_while_memory_is_scarce_and_not_by_turns() {
    // 100 bytes of 3200 are kept free.
    let (admission, sensor, start) = admission(Some(3200), 1000, 1 << 40);
    let mut now = start;
    let mut refused = |private: u64| {
        sensor.set(private, 1 << 40);
        now += READ_INTERVAL;
        admission.refuse_request(now)
    };
    assert_eq!(refused(3100), None);
    let error = refused(3101).unwrap();
    assert_eq!((error.code, error.retry_after), (crate::error::Code::Unavailable, Some(RETRY_AFTER)));
    for private in [3100, 3050, 3001] {
        assert!(refused(private).is_some(), "{private}");
    }
    for private in [3000, 3050, 3100] {
        assert_eq!(refused(private), None, "{private}");
    }
    assert!(refused(3101).is_some());
}

#[test]
fn the_memory_is_read_now_and_then() {
    let (admission, sensor, start) = admission(Some(3200), 1000, 1 << 40);
    let reads = || sensor.reads.load(Relaxed);
    let first = reads();
    for millis in 0..100 {
        admission.refuse_request(start + Duration::from_millis(millis));
    }
    assert_eq!(reads(), first);
    admission.refuse_request(start + READ_INTERVAL);
    assert_eq!(reads(), first + 1);
    // While there is too little, what was freed is given back once a second.
    sensor.set(3200, 1 << 40);
    for tenth in 2..22 {
        admission.refuse_request(start + READ_INTERVAL * tenth);
    }
    assert_eq!(sensor.releases.load(Relaxed), 2);
}

#[test]
fn without_a_sensor_nothing_is_refused() {
    let sensor = Arc::new(Scripted::default());
    let start = Instant::now();
    for bytes in [None, Some(1)] {
        let admission = Admission::new(MemoryLimit { bytes, sensor: sensor.clone() }, start);
        assert!(!admission.is_available());
        assert!(admission.promise("m", &need(u64::MAX)).is_ok());
        assert_eq!(admission.refuse_request(start + READ_INTERVAL), None);
        assert!(admission.metrics(start).is_empty());
    }
}

#[test]
fn numbers_of_any_size_do_no_harm() {
    let (admission, ..) = admission(Some(u64::MAX), u64::MAX, u64::MAX);
    let need = MemoryNeed { weights: u64::MAX, instance: u64::MAX, instances: u64::MAX };
    assert!(admission.promise("m", &need).is_err());
}
