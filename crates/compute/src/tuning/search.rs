//! Finding the fastest configuration of an operator by measuring.
//!
//! ```text
//! screening      rounds in which the default and some candidates take turns, warm and cold; those of slow
//!                moments are dropped; what counts of a candidate is how many times longer the default took
//!                in the same round
//! confirmation   the best candidates, each in pairs with the default
//! ```
//!
//! Nothing is compared across rounds: neighbours on the machine make moments differ by more than candidates do.

use super::{Config, Measured, Strategy, Timing, Tunable};

/// Where the operands lie before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heat {
    /// Where the run before has left them.
    Warm,
    /// Not in the second-level cache.
    Cold,
}

/// What runs configurations.
pub trait Bench {
    /// How fast the machine was at a moment.
    type Moment;
    /// Why a configuration cannot be run.
    type Error;

    /// Seconds of each configuration, run one after the other, and how fast the machine was meanwhile. The empty
    /// configuration is the default.
    fn round(&mut self, configs: &[Config], heat: Heat) -> Result<(Vec<f64>, Self::Moment), Self::Error>;

    /// Whether a moment was slow, beside the best of all rounds so far.
    fn is_slow(&self, moment: &Self::Moment) -> bool;
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Candidates that take turns with the default.
    pub group: usize,
    /// Rounds of a group, warm and again cold.
    pub rounds: usize,
    /// Candidates that are confirmed.
    pub finalists: usize,
    /// Pairs of each, warm and again cold.
    pub pairs: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { group: 6, rounds: 5, finalists: 2, pairs: 21 }
    }
}

/// What a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Candidates that were measured.
    pub tried: usize,
    /// Whether these were all that the strategy wanted, and each was seen at full speed.
    pub is_complete: bool,
    /// Samples of slow moments, which do not count.
    pub dropped: usize,
    /// The configuration that beats the default beyond doubt.
    pub winner: Option<Winner>,
}

/// A configuration that was confirmed.
#[derive(Debug, Clone, PartialEq)]
pub struct Winner {
    /// What to tell the kernel.
    pub config: Config,
    /// Against the default, when both run again and again.
    pub warm: Timing,
    /// Against the default, when nothing lies in the second-level cache.
    pub cold: Timing,
}

/// Gain over the default from which on a configuration is worth telling apart from it.
const GAIN_MIN: f64 = 1.02;
/// A configuration that wins in one heat may lose so much in the other.
const LOSS_MAX: f64 = 0.99;
/// Share of the pairs that a winner wins: of 20 pairs of equals, as many or more fall to one side once in 50.
const PAIRS_WON_MIN: f64 = 0.75;
/// Pairs below which nothing is beyond doubt.
const PAIRS_MIN: usize = 8;

/// Searches until the strategy has no more candidates or `is_over` says so; then what was found by then is
/// confirmed.
pub fn search<B: Bench>(
    tunable: &Tunable,
    strategy: &dyn Strategy,
    bench: &mut B,
    effort: &Effort,
    is_over: &dyn Fn() -> bool,
) -> Result<Found, B::Error> {
    let mut measured: Vec<Measured> = Vec::new();
    let mut dropped = 0;
    let is_exhausted = 'screening: loop {
        let candidates = strategy.next(&tunable.space, &tunable.cost, &measured);
        if candidates.is_empty() {
            break true;
        }
        for group in candidates.chunks(effort.group.max(1)) {
            if is_over() {
                break 'screening false;
            }
            let configs = [&[Config::default()], group].concat();
            let warm = rounds(bench, &configs, Heat::Warm, effort.rounds, &mut dropped)?;
            let cold = rounds(bench, &configs, Heat::Cold, effort.rounds, &mut dropped)?;
            measured.extend(group.iter().enumerate().map(|(index, config)| {
                let gain = gain(&ratios(&warm, index + 1), &ratios(&cold, index + 1));
                // Where every moment was slow, nothing is known.
                Measured { config: config.clone(), relative: if gain.is_finite() { 1.0 / gain } else { f64::INFINITY } }
            }));
        }
    };
    let tried = measured.len();
    let is_complete = is_exhausted && measured.iter().all(|measured| measured.relative.is_finite());
    measured.sort_by(|a, b| a.relative.total_cmp(&b.relative));
    let mut winner: Option<Winner> = None;
    for candidate in measured.into_iter().take(effort.finalists).filter(|candidate| candidate.relative < 1.0) {
        let configs = [Config::default(), candidate.config];
        let warm = rounds(bench, &configs, Heat::Warm, effort.pairs, &mut dropped)?;
        let cold = rounds(bench, &configs, Heat::Cold, effort.pairs, &mut dropped)?;
        if !wins(&ratios(&warm, 1), &ratios(&cold, 1)) {
            continue;
        }
        let [_, config] = configs;
        let confirmed = Winner { config, warm: timing(&warm), cold: timing(&cold) };
        if winner.as_ref().is_none_or(|best| best.gain() < confirmed.gain()) {
            winner = Some(confirmed);
        }
    }
    Ok(Found { tried, is_complete, dropped, winner })
}

impl Winner {
    /// How many times longer the default takes, warm and cold alike.
    pub fn gain(&self) -> f64 {
        (self.warm.ratio * self.cold.ratio).sqrt()
    }
}

/// Seconds of each configuration in rounds at full speed.
fn rounds<B: Bench>(
    bench: &mut B,
    configs: &[Config],
    heat: Heat,
    count: usize,
    dropped: &mut usize,
) -> Result<Vec<Vec<f64>>, B::Error> {
    let mut all = Vec::new();
    for number in 0..count {
        // Whoever runs first has no advantage over all rounds.
        let mut turns = configs.to_vec();
        turns.rotate_left(number % configs.len());
        let (mut seconds, moment) = bench.round(&turns, heat)?;
        seconds.rotate_right(number % configs.len());
        all.push((seconds, moment));
    }
    let steady: Vec<Vec<f64>> =
        all.iter().filter(|(_, moment)| !bench.is_slow(moment)).map(|(seconds, _)| seconds.clone()).collect();
    *dropped += (count - steady.len()) * configs.len();
    Ok(steady)
}

/// Round by round, how many times longer the default took.
fn ratios(rounds: &[Vec<f64>], config: usize) -> Vec<f64> {
    rounds.iter().map(|seconds| seconds[0] / seconds[config]).collect()
}

fn gain(warm: &[f64], cold: &[f64]) -> f64 {
    (quantile(warm, 0.5) * quantile(cold, 0.5)).sqrt()
}

/// Whether ratios show that a configuration is faster: on the whole and in most pairs, and nowhere slower.
fn wins(warm: &[f64], cold: &[f64]) -> bool {
    let won = warm.iter().chain(cold).filter(|&&ratio| ratio > 1.0).count();
    let enough = warm.len().min(cold.len()) >= PAIRS_MIN;
    let most = won as f64 >= PAIRS_WON_MIN * (warm.len() + cold.len()) as f64;
    let nowhere_slower = [warm, cold].iter().all(|ratios| quantile(ratios, 0.5) >= LOSS_MAX);
    enough && most && nowhere_slower && gain(warm, cold) >= GAIN_MIN
}

/// Times of the second of two configurations.
fn timing(pairs: &[Vec<f64>]) -> Timing {
    let micros: Vec<f64> = pairs.iter().map(|seconds| seconds[1] * 1e6).collect();
    Timing {
        median_us: quantile(&micros, 0.5),
        p10_us: quantile(&micros, 0.1),
        ratio: quantile(&ratios(pairs, 1), 0.5),
        samples: pairs.len(),
    }
}

/// The number below which such a share of all lies; no number where there are none.
fn quantile(numbers: &[f64], share: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((numbers.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{CostModelTopK, Epilogue, Exhaustive, Grid, Operator, Space};
    use halimede_tensor::DType;
    use std::cell::Cell;

    /// A machine on which configurations take what a formula says, with noise, in a mode that is twice as slow now
    /// and then.
    struct Model {
        seconds: fn(&Config, Heat) -> f64,
        state: u64,
        rounds: Cell<usize>,
        /// Every so manieth round is slow.
        slow: usize,
    }

    impl Model {
        fn new(seconds: fn(&Config, Heat) -> f64) -> Model {
            Model { seconds, state: 1, rounds: Cell::new(0), slow: usize::MAX }
        }
    }

    impl Bench for Model {
        type Moment = bool;
        type Error = String;

        fn round(&mut self, configs: &[Config], heat: Heat) -> Result<(Vec<f64>, bool), String> {
            self.rounds.set(self.rounds.get() + 1);
            let slow = self.rounds.get().is_multiple_of(self.slow);
            let mut seconds = Vec::new();
            for config in configs {
                self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let noise = 1.0 + 0.02 * ((self.state >> 40) as f64 / (1u64 << 24) as f64 - 0.5);
                // In the slow mode what else counts does not.
                let factor = if slow { 3.0 / (self.seconds)(config, heat) } else { 1.0 };
                seconds.push((self.seconds)(config, heat) * noise * factor);
            }
            Ok((seconds, slow))
        }

        fn is_slow(&self, moment: &bool) -> bool {
            *moment
        }
    }

    fn tunable() -> Tunable {
        let operator = Operator {
            kind: "contract",
            axes: "ab,bc>ac".to_owned(),
            sizes: [vec![2, 3], vec![3, 4]],
            dtypes: [DType::F32; 3],
            factors: None,
            constant: true,
            epilogue: Epilogue::None,
            threads: 1,
        };
        let space = Space(vec![Grid::default().with("rows", [16, 32, 48, 64, 96, 128, 192, 256])]);
        let cost = Box::new(|config: &Config| config.number("rows").unwrap_or(0) as f64);
        Tunable { operator, space, chosen: None, cost }
    }

    fn rows(config: &Config) -> f64 {
        config.number("rows").unwrap_or(96) as f64
    }

    fn found(mut model: Model) -> Found {
        search(&tunable(), &Exhaustive, &mut model, &Effort::default(), &|| false).unwrap()
    }

    #[test]
    fn the_fastest_is_found() {
        let found = found(Model::new(|config, _| 1.0 + (rows(config) - 192.0).abs() / 400.0));
        let winner = found.winner.unwrap();
        assert_eq!((winner.config.number("rows"), found.tried, found.dropped), (Some(192), 8, 0));
        assert!(found.is_complete);
        assert!((1.2..1.3).contains(&winner.warm.ratio), "{winner:?}");
        assert!(winner.warm.p10_us <= winner.warm.median_us && winner.warm.samples == 21, "{winner:?}");
    }

    #[test]
    fn noise_is_no_winner() {
        assert_eq!(found(Model::new(|_, _| 1.0)).winner, None);
        assert_eq!(found(Model::new(|config, _| if config.is_empty() { 1.0 } else { 0.995 })).winner, None);
    }

    #[test]
    fn who_loses_cold_does_not_win_warm() {
        let seconds: fn(&Config, Heat) -> f64 = |config, heat| match (config.is_empty(), heat) {
            (true, _) => 1.0,
            (false, Heat::Warm) => 0.8,
            (false, Heat::Cold) => 1.1,
        };
        assert_eq!(found(Model::new(seconds)).winner, None);
    }

    #[test]
    fn slow_moments_do_not_count() {
        let seconds: fn(&Config, Heat) -> f64 = |config, _| 1.0 + (rows(config) - 192.0).abs() / 400.0;
        let found = found(Model { slow: 3, ..Model::new(seconds) });
        let winner = found.winner.unwrap();
        assert_eq!(winner.config.number("rows"), Some(192));
        assert!((1.2..1.3).contains(&winner.warm.ratio) && found.dropped > 0, "{winner:?}, {}", found.dropped);
        // Nothing but slow moments: nothing is known.
        let blind = super::tests::found(Model { slow: 1, ..Model::new(seconds) });
        assert_eq!((blind.winner, blind.tried, blind.is_complete), (None, 8, false));
    }

    #[test]
    fn a_search_ends_when_its_time_is_over() {
        let mut model = Model::new(|_, _| 1.0);
        let effort = Effort { group: 2, ..Effort::default() };
        let asked = Cell::new(0);
        let is_over = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let found = search(&tunable(), &CostModelTopK { count: 7 }, &mut model, &effort, &is_over).unwrap();
        assert_eq!((found.tried, found.is_complete), (4, false));
    }
}
