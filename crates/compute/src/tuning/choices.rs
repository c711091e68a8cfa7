use super::{Config, Operator};
use parking_lot::RwLock;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// The configurations that operators have been given, for one unit on one machine. Shared by everything that
/// compiles for it; what changes holds for plans that are made afterwards.
#[derive(Debug, Default)]
pub struct Choices(RwLock<HashMap<String, Config>>);

impl Choices {
    /// What was chosen for an operator.
    pub fn find(&self, operator: &Operator) -> Option<Config> {
        // Most machines know nothing: then no key is made.
        if self.is_empty() { None } else { self.get(&operator.to_string()) }
    }

    /// [`Choices::find`] by the operator's text.
    pub(super) fn get(&self, operator: &str) -> Option<Config> {
        self.0.read().get(operator).cloned()
    }

    /// Chooses for an operator, or leaves it to its kernel again.
    pub fn set(&self, operator: &Operator, config: Option<Config>) {
        let mut choices = self.0.write();
        match config {
            Some(config) => choices.insert(operator.to_string(), config),
            None => choices.remove(&operator.to_string()),
        };
    }

    /// The hash of all of them.
    pub fn fingerprint(&self) -> u64 {
        let choices = self.0.read();
        // Their order is that of a hash map: the sum does not depend on it.
        let each = |(operator, config): (&String, &Config)| xxh3_64(format!("{operator}\0{config}").as_bytes());
        choices.iter().map(each).fold(0, u64::wrapping_add)
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
