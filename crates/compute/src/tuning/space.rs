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
    /// What there is to try: `None` leaves it out, and comes first.
    tried: Vec<Option<Setting>>,
}

impl Grid {
    /// The grid with one more setting, and the values that it may have. A value that stands twice counts once.
    pub fn with<S: Into<Setting>>(mut self, name: &'static str, values: impl IntoIterator<Item = S>) -> Grid {
        let values = distinct(values);
        let tried = values.iter().cloned().map(Some).collect();
        self.0.push(Axis { name, values, is_optional: false, tried });
        self
    }

    /// The same of a setting that a configuration may leave out, which then is the kernel's own affair: configurations from
    /// before there was such a setting stay what they were. Where it is known which value that comes to, the setting is
    /// left out instead of trying that.
    pub fn optional<S: Into<Setting>>(
        mut self,
        name: &'static str,
        values: impl IntoIterator<Item = S>,
        usual: Option<S>,
    ) -> Grid {
        let (values, usual) = (distinct(values), usual.map(Into::into));
        let others = values.iter().filter(|value| Some(*value) != usual.as_ref()).cloned().map(Some);
        let tried: Vec<Option<Setting>> = usual.iter().map(|_| None).chain(others).collect();
        if !tried.is_empty() {
            self.0.push(Axis { name, values, is_optional: true, tried });
        }
        self
    }

    /// Whether the first combination leaves everything out, which is no configuration of a grid.
    fn begins_empty(&self) -> bool {
        self.0.iter().all(|axis| matches!(axis.tried.first(), Some(None)))
    }

    /// How many configurations it has.
    pub fn len(&self) -> usize {
        self.0.iter().map(|axis| axis.tried.len()).product::<usize>() - usize::from(self.begins_empty())
    }

    /// Whether it has none: some setting has no value, or all are left out.
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
    fn config(&self, index: usize) -> Config {
        let mut index = index + usize::from(self.begins_empty());
        let mut config = Config::default();
        for Axis { name, tried, .. } in self.0.iter().rev() {
            if let Some(setting) = &tried[index % tried.len()] {
                config = config.with(name, setting.clone());
            }
            index /= tried.len();
        }
        config
    }
}

fn distinct<S: Into<Setting>>(values: impl IntoIterator<Item = S>) -> Vec<Setting> {
    let mut distinct: Vec<Setting> = values.into_iter().map(Into::into).collect();
    distinct.sort();
    distinct.dedup();
    distinct
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
        assert!(Grid::default().is_empty());
        assert!(Grid::default().optional("order", ["rows"], Some("rows")).is_empty());
    }

    #[test]
    fn what_is_optional_may_be_left_out() {
        let orders = ["rows", "panels"];
        let known = Grid::default().with("rows", [32, 64]).optional("order", orders, Some("panels"));
        let known = known.optional::<&str>("pack", [], None);
        let unknown = Grid::default().optional("order", orders, None).optional("pack", ["none", "rows"], Some("none"));
        let all = |grid: &Grid| -> Vec<String> {
            Space(vec![grid.clone()]).configs().map(|config| config.to_string()).collect()
        };
        assert_eq!(all(&known), ["rows=32", "order=rows rows=32", "rows=64", "order=rows rows=64"]);
        assert_eq!(all(&unknown), ["order=panels", "order=panels pack=rows", "order=rows", "order=rows pack=rows"]);
        let usual = Grid::default().optional("order", orders, Some("rows")).optional("pack", ["none"], Some("none"));
        assert_eq!(all(&usual), ["order=panels"]);
        let space = Space(vec![known, usual]);
        for known in ["rows=32", "order=panels rows=64", "order=rows", "order=panels pack=none", "pack=none", ""] {
            assert!(space.contains(&known.parse().unwrap()), "{known}");
        }
        for wrong in ["order=columns rows=64", "pack=none rows=64", "rows=96", "pack=rows"] {
            assert!(!space.contains(&wrong.parse().unwrap()), "{wrong}");
        }
    }
}
