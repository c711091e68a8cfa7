//! The files that traces are written to.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Seek as _, SeekFrom, Write as _},
    mem,
};

/// Bytes of text that are kept for files whose traces are not complete.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// Where the traces of one setting go.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    /// Number of the setting.
    pub setting: u64,
    pub file: String,
    pub log_frequency: u32,
    /// Whether a certain number of traces is taken, which then have a file of their own.
    pub is_counted: bool,
}

/// What became of traces.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub written: u64,
    /// Their file could not be written.
    pub failed: u64,
    /// Too much was kept already.
    pub dropped: u64,
}

/// Files and what is to be written to them.
#[derive(Default)]
pub(super) struct Files {
    /// Texts by the number of their setting.
    kept: BTreeMap<u64, Vec<String>>,
    kept_bytes: usize,
    /// Files that grow, by name.
    growing: BTreeMap<String, Growing>,
    /// Numbers of the next files, by name.
    numbers: BTreeMap<String, u64>,
    /// How many traces could not be written since one could, by name.
    lost: BTreeMap<String, u64>,
    outcome: Outcome,
}

impl Files {
    /// Takes a trace. What is empty is of a request that was refused before anything happened to it.
    pub fn add(&mut self, destination: &Destination, text: String) {
        if text.is_empty() {
            return;
        }
        if self.kept_bytes + text.len() > KEPT_BYTES_MAX {
            self.outcome.dropped += 1;
            return;
        }
        self.kept_bytes += text.len();
        let kept = self.kept.entry(destination.setting).or_default();
        kept.push(text);
        let count = kept.len();
        match destination.log_frequency {
            0 if destination.is_counted => {}
            0 => {
                let texts = self.take(destination.setting);
                self.append(&destination.file, &texts);
            }
            frequency if count >= frequency as usize => self.complete(destination),
            _ => {}
        }
    }

    /// All traces of a setting that takes a certain number are there.
    pub fn complete(&mut self, destination: &Destination) {
        let texts = self.take(destination.setting);
        self.write_numbered(&destination.file, &texts);
    }

    /// Writes what is left of a setting.
    pub fn flush(&mut self, destination: &Destination) {
        let texts = self.take(destination.setting);
        match destination.log_frequency {
            0 => self.append(&destination.file, &texts),
            _ => self.write_numbered(&destination.file, &texts),
        }
    }

    /// What became of traces since the last call.
    pub fn take_outcome(&mut self) -> Outcome {
        mem::take(&mut self.outcome)
    }

    pub fn close(&mut self) {
        for (name, growing) in mem::take(&mut self.growing) {
            if let Err(error) = growing.close(&name) {
                tracing::error!("the trace file {name} has no end: {error}");
            }
        }
    }

    fn take(&mut self, setting: u64) -> Vec<String> {
        let texts = self.kept.remove(&setting).unwrap_or_default();
        self.kept_bytes -= texts.iter().map(String::len).sum::<usize>();
        texts
    }

    fn write_numbered(&mut self, name: &str, texts: &[String]) {
        if texts.is_empty() {
            return;
        }
        let number = self.numbers.entry(name.to_owned()).or_default();
        let path = format!("{name}.{number}");
        let result = File::create(&path).and_then(|mut file| {
            let written = file.write_all(format!("[{}]", texts.join(",")).as_bytes());
            // Half a file helps nobody, and its place is wanted.
            written.inspect_err(|_| drop(fs::remove_file(&path)))
        });
        *number += u64::from(result.is_ok());
        self.note(name, &path, texts.len(), result);
    }

    /// Adds to the file that grows until the server ends.
    fn append(&mut self, name: &str, texts: &[String]) {
        if texts.is_empty() {
            return;
        }
        let result = self.growing.entry(name.to_owned()).or_default().append(name, &texts.join(","));
        self.note(name, name, texts.len(), result);
    }

    /// Counts traces. The log hears of the first that is lost, and when traces are written again.
    fn note(&mut self, name: &str, path: &str, count: usize, result: io::Result<()>) {
        let count = count as u64;
        match result {
            Ok(()) => {
                self.outcome.written += count;
                if let Some(lost) = self.lost.remove(name) {
                    tracing::warn!("trace files are written again: {path}; {lost} traces before are lost");
                }
            }
            Err(error) => {
                self.outcome.failed += count;
                let lost = self.lost.entry(name.to_owned()).or_default();
                if *lost == 0 {
                    tracing::error!("failed creating trace file: {path}: {error} (further ones are counted)");
                }
                *lost += count;
            }
        }
    }
}

/// A file with a JSON array that grows.
#[derive(Debug, Default)]
struct Growing {
    /// `None` at the beginning, and after something could not be written.
    file: Option<File>,
    /// Bytes of the file that are whole traces.
    whole: u64,
}

impl Growing {
    fn append(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut file = self.open(name)?;
        let separator = if self.whole == 0 { "[" } else { "," };
        let text = format!("{separator}{text}");
        if let Err(error) = file.write_all(text.as_bytes()) {
            // Where this fails, it is done when the file is opened again.
            let _ = file.set_len(self.whole);
            return Err(error);
        }
        self.whole += text.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    /// The file, ready for what comes behind that which is whole.
    fn open(&mut self, name: &str) -> io::Result<File> {
        if let Some(file) = self.file.take() {
            return Ok(file);
        }
        if self.whole > 0 {
            match OpenOptions::new().write(true).open(name) {
                Ok(mut file) if file.metadata()?.len() >= self.whole => {
                    file.set_len(self.whole)?;
                    file.seek(SeekFrom::Start(self.whole))?;
                    return Ok(file);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            // Somebody took away what was written: a new file begins.
            self.whole = 0;
        }
        File::create(name)
    }

    fn close(mut self, name: &str) -> io::Result<()> {
        if self.whole == 0 {
            return Ok(());
        }
        let mut file = self.open(name)?;
        file.write_all(if self.whole == 0 { b"[]" } else { b"]" })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Folder, *};

    fn destination(file: &str, log_frequency: u32) -> Destination {
        Destination { setting: 1, file: file.to_owned(), log_frequency, is_counted: false }
    }

    fn outcome(written: u64, failed: u64) -> Outcome {
        Outcome { written, failed, dropped: 0 }
    }

    #[test]
    fn a_file_that_could_not_be_written_is_tried_again() {
        let folder = Folder::new("again");
        for log_frequency in [0, 1] {
            let place = folder.path().join(format!("later-{log_frequency}"));
            let destination = destination(place.join("trace.json").to_str().unwrap(), log_frequency);
            let mut files = Files::default();
            files.add(&destination, "1".to_owned());
            files.add(&destination, "2".to_owned());
            assert_eq!(files.take_outcome(), outcome(0, 2));
            fs::create_dir(&place).unwrap();
            files.add(&destination, "3".to_owned());
            assert_eq!(files.take_outcome(), outcome(1, 0));
            files.close();
            let name = if log_frequency == 0 { "trace.json" } else { "trace.json.0" };
            assert_eq!(fs::read_to_string(place.join(name)).unwrap(), "[3]", "a failure takes no number");
        }
    }

    #[test]
    fn what_is_half_written_goes() {
        let folder = Folder::new("half");
        let name = folder.file();
        let destination = destination(&name, 0);
        let mut files = Files::default();
        files.add(&destination, "1".to_owned());
        // The disk is full in the middle of a trace: some bytes are there, and the file takes no more.
        OpenOptions::new().append(true).open(&name).unwrap().write_all(b",\"half of a trace").unwrap();
        files.growing.get_mut(&name).unwrap().file = Some(File::open(&name).unwrap());
        files.add(&destination, "2".to_owned());
        assert_eq!(files.take_outcome(), outcome(1, 1));
        files.add(&destination, "3".to_owned());
        assert_eq!(files.take_outcome(), outcome(1, 0));
        assert_eq!(fs::read_to_string(&name).unwrap(), "[1,3");
        // Somebody takes the file away while it cannot be written.
        fs::remove_file(&name).unwrap();
        files.growing.get_mut(&name).unwrap().file = None;
        files.add(&destination, "4".to_owned());
        assert_eq!(fs::read_to_string(&name).unwrap(), "[4");
        files.close();
        assert_eq!(fs::read_to_string(&name).unwrap(), "[4]");
    }
}
