use super::{Config, Operator};
use parking_lot::RwLock;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// The configurations that operators have been given, for one unit on one machine. Shared by everything that
/// compiles for it; what changes holds for plans that are made afterwards.
#[derive(Debug, Default)]
pub struct Choices(RwLock<HashMap<String, Config>>);

impl Choices {
    /// What was chosen for an operator; `None` where that is left to its kernel.
    pub fn find(&self, operator: &Operator) -> Option<Config> {
        self.known(operator).filter(|config| !config.is_empty())
    }

    /// What was found out about an operator: the empty configuration where none is faster than its kernel's own.
    pub fn known(&self, operator: &Operator) -> Option<Config> {
        // Most machines know nothing: then no key is made.
        if self.is_empty() { None } else { self.get(&operator.to_string()) }
    }

    /// [`Choices::known`] by the operator's text.
    pub(super) fn get(&self, operator: &str) -> Option<Config> {
        self.0.read().get(operator).cloned()
    }

    /// These and one more, or another for an operator that has one: what was compiled by these keeps them.
    pub fn with(&self, operator: &Operator, config: Config) -> Choices {
        let mut choices = self.0.read().clone();
        choices.insert(operator.to_string(), config);
        Choices(RwLock::new(choices))
    }

    /// Chooses for an operator, or leaves it to its kernel again.
    pub fn set(&self, operator: &Operator, config: Option<Config>) {
        let mut choices = self.0.write();
        match config {
            Some(config) => choices.insert(operator.to_string(), config),
            None => choices.remove(&operator.to_string()),
        };
    }

    /// The hash of all of them. Operators that are left to their kernels are as good as unknown ones.
    pub fn fingerprint(&self) -> u64 {
        let choices = self.0.read();
        // Their order is that of a hash map: the sum does not depend on it.
        let each = |(operator, config): (&String, &Config)| xxh3_64(format!("{operator}\0{config}").as_bytes());
        choices.iter().filter(|(_, config)| !config.is_empty()).map(each).fold(0, u64::wrapping_add)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

impl FromIterator<(String, Config)> for Choices {
    /// From operators' texts; of several for one operator the last counts.
    fn from_iter<I: IntoIterator<Item = (String, Config)>>(choices: I) -> Choices {
        Choices(RwLock::new(choices.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Epilogue;
    use halimede_tensor::DType;

    fn operator(threads: usize) -> Operator {
        Operator {
            kind: "contract",
            axes: "ab,bc>ac".to_owned(),
            sizes: [vec![2, 3], vec![3, 4]],
            dtypes: [DType::F32; 3],
            factors: None,
            constant: true,
            epilogue: Epilogue::None,
            threads,
        }
    }

    #[test]
    fn an_operator_that_is_left_to_its_kernel_is_known_and_changes_nothing() {
        let none = Choices::default();
        let left = none.with(&operator(1), Config::default());
        assert_eq!((left.find(&operator(1)), left.known(&operator(1))), (None, Some(Config::default())));
        assert_eq!((left.fingerprint(), left.known(&operator(2))), (none.fingerprint(), None));
        assert!(none.is_empty(), "what was there keeps what it had");
    }

    #[test]
    fn what_is_chosen_tells_choices_apart() {
        let rows = |rows| Config::default().with("rows", rows);
        let one = Choices::default().with(&operator(1), rows(32));
        let other = one.with(&operator(1), rows(64));
        assert_eq!((one.find(&operator(1)), other.find(&operator(1))), (Some(rows(32)), Some(rows(64))));
        let more = other.with(&operator(2), rows(64));
        let all = [Choices::default(), one, other, more].map(|choices| choices.fingerprint());
        assert!((1..all.len()).all(|index| !all[..index].contains(&all[index])), "{all:?}");
    }
}
