use super::{Config, Setting};

/// The configurations that a kernel has for an operation: those of several grids, since ways to compute have
/// settings of their own. The empty configuration, which leaves everything to the kernel, is always another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Space(pub Vec<Grid>);

/// Settings of which every combination is a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grid(Vec<Axis>);

/// A setting of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Axis {
    name: &'static str,
    values: Vec<Setting>,
    is_optional: bool,
}

impl Grid {
    /// The grid with one more setting, and the values that it may have. A value that stands twice counts once.
    pub fn with<S: Into<Setting>>(self, name: &'static str, values: impl IntoIterator<Item = S>) -> Grid {
        self.and(name, values, false)
    }

    /// The same of a setting that a configuration may leave out, which then is the kernel's own affair: configurations
    /// from before there was such a setting stay what they were. Without two values there is nothing to choose, and
    /// no such setting.
    pub fn optional<S: Into<Setting>>(self, name: &'static str, values: impl IntoIterator<Item = S>) -> Grid {
        let mut grid = self.and(name, values, true);
        grid.0.retain(|axis| !axis.is_optional || axis.values.len() > 1);
        grid
    }

    fn and<S: Into<Setting>>(
        mut self,
        name: &'static str,
        values: impl IntoIterator<Item = S>,
        is_optional: bool,
    ) -> Grid {
        let mut values: Vec<Setting> = values.into_iter().map(Into::into).collect();
        values.sort();
        values.dedup();
        self.0.push(Axis { name, values, is_optional });
        self
    }

    /// How many configurations it has.
    pub fn len(&self) -> usize {
        // Without a setting there is but the empty configuration, which is no grid's.
        if self.0.is_empty() { 0 } else { self.0.iter().map(|axis| axis.values.len()).product() }
    }

    /// Whether it has none: there is no setting, or one without a value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn contains(&self, config: &Config) -> bool {
        let axis = |name: &str| self.0.iter().find(|axis| axis.name == name);
        let is_there = |axis: &Axis| axis.is_optional || config.settings().any(|(name, _)| name == axis.name);
        config.settings().all(|(name, setting)| axis(name).is_some_and(|axis| axis.values.contains(setting)))
            && self.0.iter().all(is_there)
    }

    /// The last setting changes the fastest.
    fn config(&self, mut index: usize) -> Config {
        let mut config = Config::default();
        for Axis { name, values, .. } in self.0.iter().rev() {
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

    /// Whether the kernel can do its work so. Settings that may be left out need not be there.
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
        assert!(Grid::default().is_empty() && Grid::default().optional("order", ["rows"]).is_empty());
    }

    #[test]
    fn what_is_optional_may_be_left_out() {
        let grid = Grid::default().with("rows", [32, 64]).optional("order", ["rows", "panels"]);
        let space = Space(vec![grid.optional("pack", ["none"])]);
        let all: Vec<String> = space.configs().map(|config| config.to_string()).collect();
        assert_eq!(all, ["order=panels rows=32", "order=rows rows=32", "order=panels rows=64", "order=rows rows=64"]);
        for known in ["rows=32", "order=rows rows=64", ""] {
            assert!(space.contains(&known.parse().unwrap()), "{known}");
        }
        for wrong in ["order=rows", "order=columns rows=64", "pack=none rows=64", "rows=96"] {
            assert!(!space.contains(&wrong.parse().unwrap()), "{wrong}");
        }
    }
}
