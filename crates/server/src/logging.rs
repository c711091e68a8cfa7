//! The log: Triton's format, and settings that clients may change while the server runs.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    fs::OpenOptions,
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use halimede_serving::LOG_UNESCAPED;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{flags::LogFlags, json::Writer};

/// Set to 0, it has messages printed as they are, as in Triton.
const ESCAPE_VARIABLE: &str = "TRITON_SERVER_ESCAPE_LOG_MESSAGES";

/// What is logged, and where to. Shared by the log itself and the protocols.
pub(crate) struct Logging {
    pub info: AtomicBool,
    pub warning: AtomicBool,
    pub error: AtomicBool,
    pub verbose: AtomicI32,
    pub iso8601: AtomicBool,
    /// Name of the file; empty for standard error.
    pub file: String,
    /// Whether messages are printed as JSON strings, so that nothing that a client sends looks like a line of
    /// the log.
    is_escaped: bool,
    sink: Mutex<Box<dyn Write + Send>>,
}

impl Logging {
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn new(flags: &LogFlags) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match flags.file.as_str() {
            "" => Box::new(io::stderr()),
            path => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        };
        Ok(Self {
            info: flags.info.into(),
            warning: flags.warning.into(),
            error: flags.error.into(),
            verbose: flags.verbose.into(),
            iso8601: flags.iso8601.into(),
            file: flags.file.clone(),
            is_escaped: std::env::var_os(ESCAPE_VARIABLE).is_none_or(|value| value != "0"),
            sink: Mutex::new(sink),
        })
    }

    /// Makes this the log of the process. Only the first log of a process takes effect.
    pub fn install(self: &Arc<Self>) {
        // A second one can only come from a test that starts two servers.
        let _ = tracing::subscriber::set_global_default(Log(self.clone()));
    }

    /// To be called after a change of settings.
    pub fn changed(&self) {
        tracing::callsite::rebuild_interest_cache();
    }

    /// The format's name in flags and settings.
    pub fn format(&self) -> &'static str {
        if self.iso8601.load(Relaxed) { "ISO8601" } else { "default" }
    }

    fn is_on(&self, level: Level) -> bool {
        match level {
            Level::ERROR => self.error.load(Relaxed),
            Level::WARN => self.warning.load(Relaxed),
            Level::INFO => self.info.load(Relaxed),
            Level::DEBUG => self.verbose.load(Relaxed) > 0,
            _ => self.verbose.load(Relaxed) > 1,
        }
    }

    fn line(&self, event: &Event<'_>, since_epoch: std::time::Duration) -> String {
        let letter = match *event.metadata().level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let (year, month, day) = civil_date(since_epoch.as_secs() / 86400);
        let second = since_epoch.as_secs() % 86400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let micros = since_epoch.subsec_micros();
        let mut line = if self.iso8601.load(Relaxed) {
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {letter}")
        } else {
            format!("{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
        };
        let mut text = Text::default();
        event.record(&mut text);
        let (file, number) = match std::mem::take(&mut text.source) {
            (file, number) if !file.is_empty() => (file, number),
            _ => {
                let file = event.metadata().file().unwrap_or_default().rsplit('/').next().unwrap_or_default();
                (file.to_owned(), u64::from(event.metadata().line().unwrap_or_default()))
            }
        };
        // Writing to a string does not fail.
        let _ = write!(line, " {} {file}:{number}] ", std::process::id());
        let text = text.message + &text.fields;
        line.push_str(&match event.metadata().target() {
            LOG_UNESCAPED => visible(&text),
            _ => message(&text, self.is_escaped),
        });
        line.push('\n');
        line
    }
}

impl fmt::Debug for Logging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logging").field("file", &self.file).field("format", &self.format()).finish_non_exhaustive()
    }
}

/// The message of an event, and its other fields as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
    /// File and line of code that is not ours, from the fields `source_file` and `source_line`.
    source: (String, u64),
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            // A name of a file may have anything in it.
            "source_file" => self.source.0 = value.chars().flat_map(char::escape_debug).collect(),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "source_line" => self.source.1 = value,
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// The text of an event as the log prints it.
fn message(text: &str, is_escaped: bool) -> Cow<'_, str> {
    if !is_escaped {
        return Cow::Borrowed(text);
    }
    let mut writer = Writer::with_capacity(text.len() + 2);
    writer.text(text);
    // A string of JSON is as valid UTF-8 as its text.
    Cow::Owned(String::from_utf8_lossy(&writer.into_bytes()).into_owned())
}

/// A text without quotes around it. Who logs it has seen to its lines; other control characters are escaped.
fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_hidden(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Receives the events of the process.
struct Log(Arc<Logging>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries log for their own developers.
        metadata.is_event() && metadata.target().starts_with("halimede") && self.0.is_on(*metadata.level())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = self.0.line(event, since_epoch);
        let mut sink = self.0.sink.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody is left to tell when the log itself cannot be written.
        let _ = sink.write_all(line.as_bytes());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
pub(crate) fn civil_date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (days, date) in [(0, (1970, 1, 1)), (59, (1970, 3, 1)), (11_016, (2000, 2, 29)), (20_778, (2026, 11, 21))] {
            assert_eq!(civil_date(days), date);
        }
    }

    #[test]
    fn what_is_not_escaped_has_no_hidden_characters() {
        assert_eq!(visible("\n+---+\n| é |\n"), "\n+---+\n| é |\n");
        assert_eq!(visible("a\r\u{1b}[31m\tb"), "a\\r\\u{1b}[31m\\tb");
    }

    #[test]
    fn a_message_is_one_line_that_nothing_can_forge() {
        let text = "unknown model: 'a\"\nI0205 18:34:18.707423 1 file.cc:123] \"forged\x1b[31m'";
        let escaped = "\"unknown model: 'a\\\"\\nI0205 18:34:18.707423 1 file.cc:123] \\\"forged\\u001B[31m'\"";
        assert_eq!(message(text, true), escaped);
        assert_eq!(message(text, false), text);
    }
}
