use super::{Config, Setting};

/// The configurations that a kernel has for an operation: those of several grids, since ways to compute have
/// settings of their own. The empty configuration, which leaves everything to the kernel, is always another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Space(pub Vec<Grid>);

/// Settings of which every combination is a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grid(Vec<(&'static str, Vec<Setting>)>);

impl Grid {
    /// The grid with one more setting, and the values that it may have. A value that stands twice counts once.
    pub fn with<S: Into<Setting>>(mut self, name: &'static str, values: impl IntoIterator<Item = S>) -> Grid {
        let mut distinct: Vec<Setting> = values.into_iter().map(Into::into).collect();
        distinct.sort();
        distinct.dedup();
        self.0.push((name, distinct));
        self
    }

    /// How many configurations it has.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(_, values)| values.len()).product()
    }

    /// Whether it has none: some setting has no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn contains(&self, config: &Config) -> bool {
        let fits = |(name, values): &(&str, Vec<Setting>)| {
            config.settings().any(|(own, setting)| own == *name && values.contains(setting))
        };
        config.settings().count() == self.0.len() && self.0.iter().all(fits)
    }

    /// The last setting changes the fastest.
    fn config(&self, mut index: usize) -> Config {
        let mut config = Config::default();
        for (name, values) in self.0.iter().rev() {
            config = config.with(name, values[index % values.len()].clone());
            index /= values.len();
        }
        config
    }
}

impl Space {
    /// How many configurations there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(Grid::len).sum()
    }

    /// Whether there is nothing to choose.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the kernel can do its work so.
    pub fn contains(&self, config: &Config) -> bool {
        config.is_empty() || self.0.iter().any(|grid| grid.contains(config))
    }

    /// Every configuration of the grids.
    pub fn configs(&self) -> impl Iterator<Item = Config> {
        self.0.iter().flat_map(|grid| (0..grid.len()).map(|index| grid.config(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_combination_is_there_once() {
        let direct = Grid::default().with("algorithm", ["direct"]).with("rows", [32, 64, 32]).with("depth", [1, 2, 3]);
        let other = Grid::default().with("algorithm", ["f2", "f4"]);
        let space = Space(vec![direct, other]);
        let all: BTreeSet<String> = space.configs().map(|config| config.to_string()).collect();
        assert_eq!((space.len(), all.len()), (8, 8));
        assert!(all.contains("algorithm=direct depth=3 rows=64") && all.contains("algorithm=f4"), "{all:?}");
        assert!(space.configs().all(|config| space.contains(&config)));
        assert!(space.contains(&Config::default()));
        for wrong in ["rows=32", "algorithm=f4 rows=32", "algorithm=direct depth=4 rows=64", "algorithm=f6"] {
            assert!(!space.contains(&wrong.parse().unwrap()), "{wrong}");
        }
    }

    #[test]
    fn without_a_value_there_is_nothing() {
        assert!(Space::default().is_empty());
        assert!(Grid::default().with::<usize>("rows", []).is_empty());
    }
}
