use std::time::Duration;

use halimede_tensor::Value;

use super::Part;
use crate::{RunError, Session};

/// Every operator may take at least this share of the time that is left.
const SHARE_MIN: f64 = 0.1;

/// What is to be tuned, with the time that it takes in a model: the longest comes first, and gets most of the time.
#[derive(Debug)]
pub struct Agenda<T> {
    /// The longest last.
    items: Vec<(T, Duration)>,
}

impl<T> Agenda<T> {
    /// In whatever order.
    pub fn new(items: impl IntoIterator<Item = (T, Duration)>) -> Agenda<T> {
        let mut items: Vec<(T, Duration)> = items.into_iter().collect();
        // What takes no time that a clock could tell has a share all the same.
        items.iter_mut().for_each(|(_, time)| *time = (*time).max(Duration::from_nanos(1)));
        items.sort_by_key(|(_, time)| *time);
        Agenda { items }
    }

    /// What is to be tuned next, and how long: a share of the time that is `left`.
    pub fn next(&mut self, left: Duration) -> Option<(T, Duration)> {
        let all: Duration = self.items.iter().map(|(_, time)| *time).sum();
        let (item, time) = self.items.pop()?;
        let share = time.as_secs_f64() / all.as_secs_f64();
        Some((item, left.mul_f64(share.clamp(SHARE_MIN, 1.0))))
    }

    /// How many items are left.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Session {
    /// What can be chosen about the steps of a run on these inputs, each operator once, and how long all its steps took.
    ///
    /// # Errors
    /// The run fails, or `is_cancelled` says so between two steps.
    pub fn timed_parts(
        &mut self,
        inputs: &[Value],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<(Part, Duration)>, RunError> {
        // Memory is touched for the first time.
        self.run_watched(inputs, is_cancelled)?;
        self.measure(true);
        let measured = self.run_watched(inputs, is_cancelled);
        let times = self.times().to_vec();
        self.measure(false);
        measured?;
        let time_of = |part: &Part| {
            times.iter().filter(|time| part.steps.contains(&time.step)).map(|time| time.time).sum::<Duration>()
        };
        let timed = |part| {
            let time = time_of(&part);
            (part, time)
        };
        Ok(self.parts().into_iter().map(timed).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_comes_first_and_gets_most_of_the_time() {
        let seconds = Duration::from_secs;
        let mut agenda =
            Agenda::new([("short", seconds(1)), ("long", seconds(8)), ("none", seconds(0)), ("next", seconds(1))]);
        assert_eq!(agenda.len(), 4);
        let (first, share) = agenda.next(seconds(100)).unwrap();
        assert!(first == "long" && (share.as_secs_f64() - 80.0).abs() < 1e-3, "{share:?}");
        let (_, share) = agenda.next(seconds(20)).unwrap();
        assert!((share.as_secs_f64() - 10.0).abs() < 1e-3, "{share:?}");
        // However short it is, it gets a tenth.
        agenda.next(seconds(10)).unwrap();
        assert_eq!(agenda.next(seconds(10)), Some(("none", seconds(10))));
        assert!(agenda.is_empty() && agenda.next(seconds(10)).is_none());
    }
}
