//! Where it is kept which configurations of kernels are the fastest.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use halimede_compute::tuning::{Choices, Damage, Database, DatabaseError, Origin};
use halimede_compute_cpu::KERNELS_VERSION;
use halimede_platform::chip::Chip;

use crate::source::Source;

/// What was measured before this version was published, with release kernels.
const SHIPPED: &str = include_str!("../tuned.jsonl");

impl Source {
    /// The database, where there is one to read or to write.
    pub fn file(&self) -> Option<PathBuf> {
        self.path("tuning.jsonl")
    }

    /// What is known about the kernels of the CPU, and the lines that could not be read.
    pub fn read(&self, matrix: bool) -> Result<(Arc<Choices>, Vec<Damage>), DatabaseError> {
        if *self == Source::Off {
            return Ok(Default::default());
        }
        let mut known = Database::parse(SHIPPED.as_bytes(), Path::new("entries of the program"));
        if let Some(file) = self.file() {
            let own = Database::read(&file)?;
            known.records.extend(own.records);
            known.damaged.extend(own.damaged);
        }
        Ok((Arc::new(known.choices(&origin(matrix))), known.damaged))
    }

    /// The same for a program that does its work without as well: what is wrong is told.
    pub fn read_or_warn(&self, matrix: bool, warn: &dyn Fn(&str)) -> Arc<Choices> {
        match self.read(matrix) {
            Ok((choices, damaged)) => {
                damaged.iter().for_each(|damage| warn(&damage.to_string()));
                choices
            }
            Err(error) => {
                warn(&format!("{error}; kernels do what they do by themselves"));
                Arc::default()
            }
        }
    }
}

/// What measurements on this machine count for.
pub fn origin(matrix: bool) -> Origin {
    let unit = if matrix { "cpu+matrix" } else { "cpu" };
    Origin { unit: unit.to_owned(), chip: Chip::detect().key(), kernels: KERNELS_VERSION }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_entry_is_one() {
        let shipped = Database::parse(SHIPPED.as_bytes(), Path::new("tuned.jsonl"));
        assert_eq!(shipped.damaged, []);
        let current = |record: &&halimede_compute::tuning::Record| record.origin.kernels == KERNELS_VERSION;
        assert_eq!(shipped.records.iter().filter(current).count(), shipped.records.len(), "made for other kernels");
    }
}
