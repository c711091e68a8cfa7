//! The logging extension: settings of the log, read and changed while the server runs.

use std::sync::atomic::Ordering::Relaxed;

use halimede_serving::Error;

use crate::{
    grpc::proto::{
        self, log_settings_request::setting_value::ParameterChoice as Asked,
        log_settings_response::setting_value::ParameterChoice as Answered,
    },
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

/// Changes what the request names and answers with all settings, for gRPC.
pub(crate) fn grpc(
    logging: &Logging,
    request: &proto::LogSettingsRequest,
) -> Result<proto::LogSettingsResponse, Error> {
    let choice = |name: &str| request.settings.get(name).map(|value| &value.parameter_choice);
    if choice("log_file").is_some() {
        return Err(Error::unsupported(FILE_IS_FIXED));
    }
    let switch = |name: &str| match choice(name) {
        None => Ok(None),
        Some(Some(Asked::BoolParam(value))) => Ok(Some(*value)),
        Some(_) => Err(Error::invalid(format!("expect boolean for '{name}'"))),
    };
    let changes = Changes {
        info: switch("log_info")?,
        warning: switch("log_warning")?,
        error: switch("log_error")?,
        verbose: match choice("log_verbose_level") {
            None => None,
            Some(Some(Asked::Uint32Param(value))) => Some(level(u64::from(*value))),
            Some(_) => return Err(Error::invalid("expect int32 for 'log_verbose_level'")),
        },
        iso8601: match choice("log_format") {
            None => None,
            Some(Some(Asked::StringParam(value))) => match value.as_str() {
                "default" => Some(false),
                "ISO8601" => Some(true),
                other => return Err(Error::invalid(format!("invalid argument for log_format, got: {other}"))),
            },
            Some(_) => return Err(Error::invalid("expect string for 'log_format'")),
        },
    };
    if !request.settings.is_empty() {
        changes.apply(logging);
    }
    let level = u32::try_from(logging.verbose.load(Relaxed)).unwrap_or(0);
    let settings = [
        ("log_file", Answered::StringParam(logging.file.clone())),
        ("log_info", Answered::BoolParam(logging.info.load(Relaxed))),
        ("log_warning", Answered::BoolParam(logging.warning.load(Relaxed))),
        ("log_error", Answered::BoolParam(logging.error.load(Relaxed))),
        ("log_verbose_level", Answered::Uint32Param(level)),
        ("log_format", Answered::StringParam(logging.format().to_owned())),
    ];
    let value = |choice| proto::log_settings_response::SettingValue { parameter_choice: Some(choice) };
    let settings = settings.into_iter().map(|(name, choice)| (name.to_owned(), value(choice))).collect();
    Ok(proto::LogSettingsResponse { settings })
}
