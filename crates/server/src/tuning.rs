//! Where it is kept which configurations of kernels are the fastest.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use halimede_compute::tuning::{
    Choices, Config, Damage, Database, DatabaseError, Found, Operator, Origin, Probe, Probed, Record,
};
use halimede_compute_cpu::KERNELS_VERSION;
use halimede_platform::chip::Chip;
use halimede_serving::backends::Remember;

use crate::{logging::civil_date, source::Source};

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

/// Makes the file where there is none, so that nothing is measured whose result could not be written.
pub fn check_writable(file: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot write the tuning database '{}': {error}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    OpenOptions::new().append(true).create(true).open(file).map(drop).map_err(failed)
}

/// What to remember of a search: the winner, or that there is none, where that is beyond doubt and new.
pub fn record(
    operator: &Operator,
    found: &Found,
    known: Option<Config>,
    machine: Probe,
    origin: &Origin,
) -> Option<Record> {
    let probed = Probed { f32_gflops: machine.f32_gflops, l1_read_gbps: machine.l1_read_gbps, dropped: found.dropped };
    let (config, warm, cold) = match (&found.winner, known) {
        (Some(winner), _) => (winner.config.clone(), Some(winner.warm), Some(winner.cold)),
        // It won once, and does not any more though it had every chance to.
        (None, Some(before)) if !before.is_empty() && found.tried > 0 => Default::default(),
        (None, None) if found.is_complete => Default::default(),
        (None, _) => return None,
    };
    Some(Record { operator: operator.to_string(), origin: origin.clone(), config, warm, cold, probed, date: today() })
}

/// Adds what a search found to the file of a database.
pub fn remember(file: PathBuf, matrix: bool) -> Box<Remember> {
    Box::new(move |operator, found, known, machine| {
        let Some(record) = record(operator, found, known, machine, &origin(matrix)) else { return Ok(None) };
        Database::merge(&file, std::slice::from_ref(&record)).map_err(|error| error.to_string())?;
        Ok(Some(record.config))
    })
}

/// The day in UTC.
fn today() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil_date(since_epoch.as_secs() / (24 * 60 * 60));
    format!("{year}-{month:02}-{day:02}")
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
