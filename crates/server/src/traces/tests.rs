use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::*;

/// A folder that goes with its owner.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("halimede-tracing-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self) -> String {
        self.0.join("trace.json").to_str().unwrap().to_owned()
    }

    /// The files by name, each with the number of its traces.
    fn files(&self) -> Vec<(String, usize)> {
        let mut files: Vec<(String, usize)> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let text = fs::read_to_string(entry.path()).unwrap();
                let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
                (entry.file_name().into_string().unwrap(), all.len())
            })
            .collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn tracing(file: &str, rate: u32, count: i32, log_frequency: u32) -> Tracing {
    let level = Levels { timestamps: true, tensors: false };
    Tracing::new(&TraceFlags { level, rate, count, log_frequency, file: file.to_owned(), ..TraceFlags::default() })
        .unwrap()
}

/// A request that says nothing of its trace.
struct NoHeaders;

impl TraceHeaders for NoHeaders {
    fn texts(&self, _: &'static str) -> impl Iterator<Item = Option<&str>> {
        std::iter::empty()
    }
}

/// Sends requests; how many were traced.
fn send(tracing: &Tracing, model: &str, requests: usize) -> usize {
    let records = (0..requests).filter_map(|_| tracing.sample(model, &NoHeaders));
    records.map(|record| record.mark("HTTP_RECV_START", Instant::now())).count()
}

#[test]
fn one_file_grows_until_the_end() {
    let folder = Folder::new("grows");
    let tracing = tracing(&folder.file(), 3, -1, 0);
    assert_eq!(send(&tracing, "m", 10), 3);
    tracing.end(Duration::from_secs(10));
    assert_eq!(send(&tracing, "m", 10), 0, "nothing is traced after the end");
    assert_eq!(folder.files(), [("trace.json".to_owned(), 3)]);
}

#[test]
fn files_are_numbered_where_a_frequency_is_given() {
    let folder = Folder::new("frequency");
    let tracing = tracing(&folder.file(), 1, -1, 2);
    assert_eq!(send(&tracing, "m", 5), 5);
    tracing.end(Duration::from_secs(10));
    let expected = [("trace.json.0", 2), ("trace.json.1", 2), ("trace.json.2", 1)];
    assert_eq!(folder.files(), expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn a_count_ends_the_tracing_and_has_a_file() {
    let folder = Folder::new("count");
    let tracing = tracing(&folder.file(), 1, 3, 0);
    assert_eq!(send(&tracing, "m", 2), 2);
    assert_eq!(tracing.values(None).count, 1);
    assert_eq!(send(&tracing, "m", 5), 1);
    assert_eq!(tracing.values(None).count, 0);
    tracing.end(Duration::from_secs(10));
    assert_eq!(folder.files(), [("trace.json.0".to_owned(), 3)]);
}

#[test]
fn a_count_has_its_file_before_the_end_whatever_the_rate() {
    let folder = Folder::new("count-rate");
    let tracing = tracing(&folder.file(), 3, 2, 0);
    // Another trace ends after the last one has begun.
    let first: Vec<_> = (0..3).filter_map(|_| tracing.sample("m", &NoHeaders)).collect();
    assert_eq!(send(&tracing, "m", 9), 1);
    first.iter().for_each(|record| record.mark("HTTP_RECV_START", Instant::now()));
    drop(first);
    let written = Path::new(&folder.file()).with_extension("json.0");
    let end = Instant::now() + Duration::from_secs(30);
    while !fs::read_to_string(&written).is_ok_and(|text| text.ends_with(']')) {
        assert!(Instant::now() < end, "the file is not written");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(folder.files(), [("trace.json.0".to_owned(), 2)]);
    tracing.end(Duration::from_secs(10));
    assert_eq!(folder.files(), [("trace.json.0".to_owned(), 2)]);
}

#[test]
fn a_change_for_all_is_made_whole_or_not_at_all() {
    let folder = Folder::new("whole");
    let tracing = tracing(&folder.file(), 1, -1, 0);
    let on = Levels { timestamps: true, tensors: false };
    let own_count = Changes { count: Change::Set(1), ..Changes::default() };
    tracing.change(Some("counted"), &own_count).unwrap();
    assert_eq!(send(&tracing, "counted", 3), 1);
    // The model's count is used up, which keeps nobody from changing what is for all.
    tracing.change(None, &Changes { rate: Change::Set(2), ..Changes::default() }).unwrap();
    assert_eq!((tracing.values(None).rate, tracing.values(Some("counted")).rate), (2, 2));
    assert_eq!((send(&tracing, "counted", 4), send(&tracing, "other", 4)), (0, 2));
    // A change that a model cannot follow leaves everything as it was, models before it included.
    tracing.change(Some("a"), &Changes { log_frequency: Change::Set(7), ..Changes::default() }).unwrap();
    tracing.change(Some("traced"), &Changes { level: Change::Set(on), ..Changes::default() }).unwrap();
    let off = Changes { level: Change::Set(Levels::default()), rate: Change::Set(0), ..Changes::default() };
    let error = tracing.change(None, &off).unwrap_err();
    assert_eq!(error.message, "Attempting to set invalid trace setting :sample rate must be non-zero");
    for model in [None, Some("a"), Some("traced"), Some("counted")] {
        let values = tracing.values(model);
        assert_eq!((values.level, values.rate), (on, 2), "{model:?}");
    }
    tracing.end(Duration::from_secs(10));
}

#[test]
fn a_stream_without_end_keeps_so_much_and_says_what_is_left_out() {
    let folder = Folder::new("stream");
    let tracing = tracing(&folder.file(), 1, -1, 1);
    let record = tracing.sample("m", &NoHeaders).unwrap();
    (0..10_005).for_each(|_| record.mark("GRPC_SEND_START", Instant::now()));
    drop(record);
    tracing.end(Duration::from_secs(10));
    let text = fs::read_to_string(folder.path().join("trace.json.0")).unwrap();
    assert!(text.ends_with(r#",{"id":1,"left_out":{"activities":5,"tensors":0}}]"#), "{}", &text[text.len() - 100..]);
    let left_out = tracing.metrics().into_iter().find(|family| family.name == "halimede_trace_left_out").unwrap();
    assert!(matches!(left_out.samples[0].value, halimede_serving::metrics::Value::Number(5.0)));
}

#[test]
fn models_have_values_of_their_own_until_they_are_cleared() {
    let folder = Folder::new("models");
    let tracing = tracing(&folder.file(), 2, -1, 0);
    let own = Changes { rate: Change::Set(1), ..Changes::default() };
    tracing.change(Some("m"), &own).unwrap();
    assert_eq!((send(&tracing, "m", 4), send(&tracing, "other", 4)), (4, 2));
    // What the model has not set itself follows what is set for all.
    let of_all = Changes { rate: Change::Set(4), count: Change::Set(8), ..Changes::default() };
    tracing.change(None, &of_all).unwrap();
    let (m, all) = (tracing.values(Some("m")), tracing.values(None));
    assert_eq!((m.rate, m.count, all.rate, all.count), (1, 8, 4, 8));
    tracing.change(Some("m"), &Changes { rate: Change::Clear, ..Changes::default() }).unwrap();
    assert_eq!(tracing.values(Some("m")).rate, 4);
    tracing.change(None, &Changes { rate: Change::Clear, count: Change::Clear, ..Changes::default() }).unwrap();
    assert_eq!((tracing.values(None).rate, tracing.values(None).count), (2, -1));
    // Off for one model alone.
    tracing.change(Some("m"), &Changes { level: Change::Set(Levels::default()), ..Changes::default() }).unwrap();
    assert_eq!((send(&tracing, "m", 4), send(&tracing, "other", 4)), (0, 2));
    tracing.end(Duration::from_secs(10));
}

#[test]
fn values_that_cannot_trace_are_refused() {
    let refused = tracing("", 1, -1, 0);
    assert_eq!(send(&refused, "m", 4), 0);
    let on = Changes { level: Change::Set(Levels { timestamps: true, tensors: false }), ..Changes::default() };
    let message = |tracing: &Tracing, changes| tracing.change(Some("m"), changes).unwrap_err().message;
    let invalid = "Attempting to set invalid trace setting :";
    assert_eq!(message(&refused, &on), format!("{invalid}trace file name is not given"));
    let folder = Folder::new("refused");
    let tracing = tracing(&folder.file(), 1, -1, 0);
    let changes = Changes { rate: Change::Set(0), ..Changes::default() };
    assert_eq!(message(&tracing, &changes), format!("{invalid}sample rate must be non-zero"));
    assert_eq!(tracing.values(Some("m")).rate, 1);
    tracing.end(Duration::from_secs(10));
}

#[test]
fn a_folder_that_is_not_there_costs_nothing_but_the_traces() {
    let tracing = tracing("/nowhere/at/all/trace.json", 1, -1, 0);
    assert_eq!(send(&tracing, "m", 3), 3);
    tracing.end(Duration::from_secs(10));
    let count =
        |name| tracing.metrics().into_iter().find(|family| family.name == name).unwrap().samples[0].value.clone();
    use halimede_serving::metrics::Value::Number;
    assert!(matches!(count("halimede_trace_written"), Number(0.0)));
    assert!(matches!(count("halimede_trace_failed"), Number(3.0)));
}
