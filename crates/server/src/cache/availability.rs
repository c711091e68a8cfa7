//! When a server that fails is asked again.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// How long a server is left alone after the first failure; twice as long after each further one,
const REST_MIN: Duration = Duration::from_secs(1);
/// and no longer than this.
const REST_MAX: Duration = Duration::from_secs(60);

/// What is known of a server: whether it answers, and when it is asked again where it does not. While it rests nobody
/// waits for it, and then one attempt finds out for all.
#[derive(Debug, Default)]
pub(super) struct Availability {
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    rest: Duration,
    /// Until when nobody asks.
    until: Instant,
    /// Whether somebody is asking.
    is_tried: bool,
}

/// The right to ask the server. Its holder says how it went.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Whether it is the one that finds out for all.
    is_trial: bool,
}

/// What the log should hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    Lost,
    /// After how long.
    Back(Duration),
}

impl Availability {
    /// Whether the server may be asked at `now`.
    pub fn attempt(&mut self, now: Instant) -> Option<Attempt> {
        match &mut self.outage {
            None => Some(Attempt { is_trial: false }),
            Some(outage) if outage.is_tried || now < outage.until => None,
            Some(outage) => {
                outage.is_tried = true;
                Some(Attempt { is_trial: true })
            }
        }
    }

    /// The server answered.
    pub fn succeeded(&mut self, attempt: Attempt, now: Instant) -> Option<News> {
        // Who began before the outage knows nothing of its end.
        let outage = self.outage.take_if(|_| attempt.is_trial)?;
        Some(News::Back(now.saturating_duration_since(outage.since)))
    }

    /// The server did not answer.
    pub fn failed(&mut self, attempt: Attempt, now: Instant) -> Option<News> {
        match &mut self.outage {
            None => {
                self.outage = Some(Outage { since: now, rest: REST_MIN, until: now + REST_MIN, is_tried: false });
                Some(News::Lost)
            }
            Some(outage) => {
                if attempt.is_trial {
                    outage.rest = (outage.rest * 2).min(REST_MAX);
                    outage.until = now + outage.rest;
                    outage.is_tried = false;
                }
                None
            }
        }
    }
}

/// Whether commands of one kind are refused, so that the log hears of it once.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    is_refused: bool,
}

impl Refusals {
    /// How the server answered a command. Returns whether that is news.
    pub fn is_news(&mut self, is_refused: bool) -> bool {
        std::mem::replace(&mut self.is_refused, is_refused) != is_refused
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Lost => f.write_str("cannot be reached, models answer without it until it is back"),
            News::Back(after) => write!(f, "is back after {:.1} s", after.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_fails_is_left_alone_longer_and_longer() {
        let start = Instant::now();
        let mut server = Availability::default();
        let first = server.attempt(start).unwrap();
        let second = server.attempt(start).unwrap();
        assert_eq!(server.failed(first, start), Some(News::Lost));
        assert_eq!(server.failed(second, start), None, "one that began before says nothing new");
        let mut now = start;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let until = now + Duration::from_secs(seconds);
            assert!(server.attempt(until - Duration::from_millis(1)).is_none());
            let trial = server.attempt(until).unwrap();
            assert!(server.attempt(until).is_none(), "one finds out for all");
            // A second, as a server that hangs takes.
            now = until + Duration::from_secs(1);
            assert_eq!(server.failed(trial, now), None);
        }
        let trial = server.attempt(now + REST_MAX).unwrap();
        let back = now + REST_MAX;
        assert_eq!(server.succeeded(trial, back), Some(News::Back(back - start)));
        let attempt = server.attempt(back).unwrap();
        assert_eq!(server.succeeded(attempt, back), None);
        // The next outage begins with a short rest.
        let attempt = server.attempt(back).unwrap();
        assert_eq!(server.failed(attempt, back), Some(News::Lost));
        assert!(server.attempt(back + REST_MIN).is_some());
    }

    #[test]
    fn an_answer_from_before_the_outage_does_not_end_it() {
        let now = Instant::now();
        let mut server = Availability::default();
        let (early, failing) = (server.attempt(now).unwrap(), server.attempt(now).unwrap());
        server.failed(failing, now);
        assert_eq!(server.succeeded(early, now), None);
        assert!(server.attempt(now).is_none());
    }

    #[test]
    fn refusals_are_news_once() {
        let mut refusals = Refusals::default();
        assert_eq!(
            [false, true, true, false, false].map(|is_refused| refusals.is_news(is_refused)),
            [false, true, false, true, false]
        );
    }
}
