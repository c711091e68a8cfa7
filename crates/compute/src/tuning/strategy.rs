use super::{Config, Space};

/// A configuration with the time that it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The configuration.
    pub config: Config,
    /// Times what the default took.
    pub relative: f64,
}

/// In which order configurations are measured, and which of them.
pub trait Strategy {
    /// The name that users say.
    fn name(&self) -> &'static str;

    /// What to measure next, after all of `measured`; nothing ends the search. `cost` is what the kernel expects
    /// of a configuration: seconds, or anything that grows with them.
    fn next(&self, space: &Space, cost: &dyn Fn(&Config) -> f64, measured: &[Measured]) -> Vec<Config>;
}

/// Every configuration, the cheapest by the cost model first: what a budget cuts off is the least promising.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exhaustive;

impl Strategy for Exhaustive {
    fn name(&self) -> &'static str {
        "exhaustive"
    }

    fn next(&self, space: &Space, cost: &dyn Fn(&Config) -> f64, measured: &[Measured]) -> Vec<Config> {
        CostModelTopK { count: usize::MAX }.next(space, cost, measured)
    }
}

/// The cheapest configurations by the cost model.
#[derive(Debug, Clone, Copy)]
pub struct CostModelTopK {
    /// How many of them.
    pub count: usize,
}

impl Strategy for CostModelTopK {
    fn name(&self) -> &'static str {
        "cost-model"
    }

    fn next(&self, space: &Space, cost: &dyn Fn(&Config) -> f64, measured: &[Measured]) -> Vec<Config> {
        let mut configs: Vec<(f64, Config)> = space.configs().map(|config| (cost(&config), config)).collect();
        // Stable: of equally cheap ones the first of the space.
        configs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let known = |config: &Config| measured.iter().any(|measured| measured.config == *config);
        configs.into_iter().map(|(_, config)| config).take(self.count).filter(|config| !known(config)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Grid;

    fn space() -> Space {
        Space(vec![Grid::default().with("rows", [32, 64, 96, 128])])
    }

    fn rows(strategy: &dyn Strategy, measured: &[Measured]) -> Vec<usize> {
        let cost = |config: &Config| config.number("rows").unwrap().abs_diff(100) as f64;
        strategy.next(&space(), &cost, measured).iter().filter_map(|config| config.number("rows")).collect()
    }

    #[test]
    fn the_cheapest_come_first() {
        assert_eq!(rows(&Exhaustive, &[]), [96, 128, 64, 32]);
        assert_eq!(rows(&CostModelTopK { count: 2 }, &[]), [96, 128]);
    }

    #[test]
    fn nothing_is_measured_twice() {
        let measured = |rows: usize| Measured { config: Config::default().with("rows", rows), relative: 1.0 };
        assert_eq!(rows(&Exhaustive, &[measured(128), measured(64)]), [96, 32]);
        assert_eq!(rows(&CostModelTopK { count: 2 }, &[measured(96)]), [128]);
        assert!(rows(&CostModelTopK { count: 2 }, &[measured(96), measured(128)]).is_empty());
    }
}
