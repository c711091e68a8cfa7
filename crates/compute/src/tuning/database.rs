//! Records in a file: a line of JSON each, in the order in which they were found.
//!
//! Lines are only ever added, under a lock of the file and in one piece, so that several processes may tune at
//! once and a reader never sees half of what one writes. A later record of an operator takes the place of the
//! earlier ones. A line that is none (a machine lost power, somebody edited the file) is skipped and told.

use super::{Choices, Origin, Record};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Larger files are not read: some ten thousand times what the operators of a model take.
pub const BYTES_MAX: u64 = 64 << 20;

/// Records with what could not be read of them.
#[derive(Debug, Clone, Default)]
pub struct Database {
    /// In the order of the lines.
    pub records: Vec<Record>,
    /// Lines that hold no record.
    pub damaged: Vec<Damage>,
}

/// A line that holds no record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: this line is no record: {}", self.file.display(), self.line, self.reason)
    }
}

/// A database that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the tuning database '{}': {source}", .file.display())]
pub struct DatabaseError {
    what: &'static str,
    file: PathBuf,
    source: io::Error,
}

impl Database {
    /// Reads a file; one that does not exist has no records.
    pub fn read(file: &Path) -> Result<Database, DatabaseError> {
        let failed = |source| DatabaseError { what: "read", file: file.to_owned(), source };
        let mut bytes = Vec::new();
        match File::open(file) {
            Ok(open) => {
                let _lock = Lock::shared(&open).map_err(failed)?;
                (&open).take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        if bytes.len() as u64 > BYTES_MAX {
            return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {BYTES_MAX} bytes"))));
        }
        Ok(Database::parse(&bytes, file))
    }

    /// Reads lines that are said to lie in `file`. Empty ones count as nothing.
    pub fn parse(bytes: &[u8], file: &Path) -> Database {
        let mut database = Database::default();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(record) => database.records.push(record),
                Err(error) => {
                    let damage = Damage { file: file.to_owned(), line: index + 1, reason: error.to_string() };
                    database.damaged.push(damage);
                }
            }
        }
        database
    }

    /// Adds those records to a file that it does not end with already, all or none, and says how many those
    /// were. Folder and file are made where they do not exist.
    pub fn merge(file: &Path, records: &[Record]) -> Result<usize, DatabaseError> {
        Database::write(file, records).map_err(|source| DatabaseError { what: "write", file: file.to_owned(), source })
    }

    fn write(file: &Path, records: &[Record]) -> io::Result<usize> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let open = OpenOptions::new().read(true).append(true).create(true).open(file)?;
        let _lock = Lock::exclusive(&open)?;
        let mut bytes = Vec::new();
        (&open).take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        let known = Database::parse(&bytes, file);
        let mut text = Vec::new();
        // Whoever died while it wrote has left a line without an end.
        if bytes.last().is_some_and(|&byte| byte != b'\n') {
            text.push(b'\n');
        }
        let mut added = 0;
        for record in records.iter().filter(|record| known.latest(record) != Some(record)) {
            serde_json::to_writer(&mut text, record)?;
            text.push(b'\n');
            added += 1;
        }
        if bytes.len() + text.len() > BYTES_MAX as usize {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {BYTES_MAX} bytes")));
        }
        if added > 0 {
            (&open).write_all(&text)?;
            open.sync_data()?;
        }
        Ok(added)
    }

    /// The newest record about the operator of another, for the same machine and kernels.
    fn latest(&self, record: &Record) -> Option<&Record> {
        let same = |own: &&Record| own.operator == record.operator && own.origin == record.origin;
        self.records.iter().rev().find(same)
    }

    /// All that was chosen for a machine and its kernels. Records of others, and of other versions of the
    /// kernels, count as nothing.
    pub fn choices(&self, origin: &Origin) -> Choices {
        let own = self.records.iter().filter(|record| record.origin == *origin);
        own.map(|record| (record.operator.clone(), record.config.clone())).collect()
    }
}

/// A lock of a file, given back when dropped. Where files cannot be locked there is none: an addition is one
/// write at the end all the same.
struct Lock<'a>(&'a File);

impl Lock<'_> {
    fn shared(file: &File) -> io::Result<Lock<'_>> {
        Lock::taken(file, file.lock_shared())
    }

    fn exclusive(file: &File) -> io::Result<Lock<'_>> {
        Lock::taken(file, file.lock())
    }

    fn taken(file: &File, result: io::Result<()>) -> io::Result<Lock<'_>> {
        match result {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
            _ => Ok(Lock(file)),
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // Closing the file gives the lock back as well.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{Config, Probed, Timing};
    use proptest::prelude::*;
    use std::thread;

    fn origin() -> Origin {
        Origin { unit: "cpu".to_owned(), chip: "Maker-6-1-2".to_owned(), kernels: 3 }
    }

    fn record(operator: &str, rows: usize) -> Record {
        let timing = Timing { median_us: 12.5, p10_us: 12.0, ratio: 1.25, samples: 21 };
        Record {
            operator: operator.to_owned(),
            origin: origin(),
            config: Config::default().with("rows", rows).with("algorithm", "direct"),
            warm: Some(timing),
            cold: Some(Timing { median_us: 20.0, ..timing }),
            probed: Probed { f32_gflops: 140.0, l1_read_gbps: 210.0, dropped: 2 },
            date: "2026-11-22".to_owned(),
        }
    }

    /// A folder of its own that is gone after the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("halimede-tuning-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_record_is_one_line() {
        let line = serde_json::to_string(&record("conv", 64)).unwrap();
        let text = r#"{"operator":"conv","unit":"cpu","chip":"Maker-6-1-2","kernels":3,"config":{"algorithm":"direct","rows":64},"warm":{"median_us":12.5,"p10_us":12.0,"ratio":1.25,"samples":21},"cold":{"median_us":20.0,"p10_us":12.0,"ratio":1.25,"samples":21},"probed":{"f32_gflops":140.0,"l1_read_gbps":210.0,"dropped":2},"date":"2026-11-22"}"#;
        assert_eq!(line, text);
    }

    #[test]
    fn what_is_added_is_found() {
        let folder = Folder::new("added");
        let file = folder.0.join("deep").join("tuning.jsonl");
        assert!(Database::read(&file).unwrap().records.is_empty());
        assert_eq!(Database::merge(&file, &[record("a", 1), record("b", 2)]).unwrap(), 2);
        assert_eq!(Database::merge(&file, &[record("a", 1), record("b", 3)]).unwrap(), 1, "a is known already");
        assert_eq!(Database::merge(&file, &[record("b", 2)]).unwrap(), 1, "b was something else in between");
        let found = Database::read(&file).unwrap();
        assert_eq!(found.records, [record("a", 1), record("b", 2), record("b", 3), record("b", 2)]);
        assert!(found.damaged.is_empty());
    }

    #[test]
    fn the_last_record_of_this_machine_counts() {
        let mut others = [record("a", 7), record("a", 8), record("a", 9)];
        others[0].origin.kernels += 1;
        others[1].origin.chip = "Other".to_owned();
        others[2].origin.unit = "gpu:0".to_owned();
        let records = [vec![record("a", 1), record("a", 2), record("b", 3)], others.to_vec()].concat();
        let choices = Database { records, damaged: Vec::new() }.choices(&origin());
        assert_eq!(choices.get("a"), Some(record("a", 2).config));
        assert_eq!(choices.get("b"), Some(record("b", 3).config));
        assert_eq!(choices.len(), 2);
    }

    #[test]
    fn damaged_lines_are_told_and_skipped() {
        let good = serde_json::to_string(&record("a", 1)).unwrap();
        let text = format!("{good}\n{{\"operator\":\n\n{}\n\u{0}\n{good}", &good[..40]);
        let found = Database::parse(text.as_bytes(), Path::new("some/file"));
        assert_eq!(found.records, [record("a", 1), record("a", 1)]);
        assert_eq!(found.damaged.iter().map(|damage| damage.line).collect::<Vec<_>>(), [2, 4, 5]);
        assert!(found.damaged[0].to_string().starts_with("some/file:2: this line is no record: EOF"));
    }

    #[test]
    fn a_torn_end_does_not_spoil_the_next_record() {
        let folder = Folder::new("torn");
        let file = folder.0.join("tuning.jsonl");
        Database::merge(&file, &[record("a", 1)]).unwrap();
        let whole = fs::read(&file).unwrap();
        fs::write(&file, [&whole[..], &whole[..30]].concat()).unwrap();
        Database::merge(&file, &[record("b", 2)]).unwrap();
        let found = Database::read(&file).unwrap();
        assert_eq!(found.records, [record("a", 1), record("b", 2)]);
        assert_eq!(found.damaged.len(), 1);
    }

    #[test]
    fn writers_do_not_lose_each_others_records() {
        let folder = Folder::new("writers");
        let file = folder.0.join("tuning.jsonl");
        thread::scope(|scope| {
            for writer in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    for number in 0..25 {
                        Database::merge(file, &[record(&format!("{writer} {number}"), number)]).unwrap();
                        assert!(Database::read(file).unwrap().damaged.is_empty());
                    }
                });
            }
        });
        assert_eq!(Database::read(&file).unwrap().records.len(), 100);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let folder = Folder::new("place");
        fs::create_dir_all(&folder.0).unwrap();
        let error = Database::merge(&folder.0, &[record("a", 1)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write the tuning database '{}': ", folder.0.display())), "{error}");
    }

    proptest! {
        /// Whatever bytes a file holds, reading ends, and each line is a record, damaged or empty.
        #[test]
        fn any_bytes_are_read(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    Just(b"\n".to_vec()),
                    (0usize..500, 1usize..9).prop_map(|(end, rows)| {
                        let line = serde_json::to_vec(&record("a", rows)).unwrap();
                        line[..end.min(line.len())].to_vec()
                    }),
                ],
                0..20,
            )
        ) {
            let bytes = pieces.concat();
            let found = Database::parse(&bytes, Path::new("file"));
            let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
            prop_assert_eq!(found.records.len() + found.damaged.len(), lines);
        }

        /// Records come back as they were written, but for nothing.
        #[test]
        fn records_survive(operator in "\\PC*", rows in any::<u32>(), median in 0.0f64..1e9, word in "[a-z0-9]+") {
            let mut written = record(&operator, rows as usize);
            written.warm.as_mut().unwrap().median_us = median;
            written.config = written.config.with("word", word.as_str());
            let line = serde_json::to_vec(&written).unwrap();
            let found = Database::parse(&line, Path::new("file"));
            prop_assert_eq!(found.records, vec![written]);
        }
    }
}
