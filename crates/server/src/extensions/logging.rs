//! The logging extension: settings of the log, read and changed while the server runs.

use std::sync::atomic::Ordering::Relaxed;

use halimede_serving::Error;

use crate::{
    json::{Document, Value, Writer},
    logging::Logging,
};

/// Settings to change; what is `None` stays.
#[derive(Debug, Default)]
struct Changes {
    info: Option<bool>,
    warning: Option<bool>,
    error: Option<bool>,
    verbose: Option<i32>,
    iso8601: Option<bool>,
}

impl Changes {
    fn apply(&self, logging: &Logging) {
        for (setting, value) in
            [(&logging.info, self.info), (&logging.warning, self.warning), (&logging.error, self.error)]
        {
            if let Some(value) = value {
                setting.store(value, Relaxed);
            }
        }
        if let Some(level) = self.verbose {
            logging.verbose.store(level, Relaxed);
        }
        if let Some(iso8601) = self.iso8601 {
            logging.iso8601.store(iso8601, Relaxed);
        }
        logging.changed();
    }
}

const FILE_IS_FIXED: &str = "log file location can not be updated through network protocol";

/// Changes what `body` names, if there is one, and prints all settings.
pub(crate) fn http(logging: &Logging, body: Option<&[u8]>) -> Result<Vec<u8>, Error> {
    if let Some(body) = body {
        let document = Document::parse(body)?;
        let root = document.root();
        let setting = |name| root.find(name).filter(|value: &Value<'_>| !value.is_null());
        if setting("log_file").is_some() {
            return Err(Error::unsupported(FILE_IS_FIXED));
        }
        let switch = |name| setting(name).map(Value::boolean).transpose();
        // Nothing changes unless everything is right.
        let changes = Changes {
            info: switch("log_info")?,
            warning: switch("log_warning")?,
            error: switch("log_error")?,
            verbose: setting("log_verbose_level").map(Value::unsigned).transpose()?.map(level),
            iso8601: setting("log_format")
                .map(|value| match &*value.text()? {
                    "default" => Ok(false),
                    "ISO8601" => Ok(true),
                    other => Err(Error::unavailable(format!("invalid argument for --log_format, got: {other}"))),
                })
                .transpose()?,
        };
        changes.apply(logging);
    }
    let mut writer = Writer::default();
    writer.begin_object();
    writer.member("log_file", &logging.file);
    for (name, setting) in
        [("log_info", &logging.info), ("log_warning", &logging.warning), ("log_error", &logging.error)]
    {
        writer.name(name);
        writer.boolean(setting.load(Relaxed));
    }
    writer.name("log_verbose_level");
    writer.signed(logging.verbose.load(Relaxed).into());
    writer.member("log_format", logging.format());
    writer.end_object();
    Ok(writer.into_bytes())
}

fn level(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
