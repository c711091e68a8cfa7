//! The trace extension. Requests are not traced yet: the settings can be read and changed, but levels other
//! than `OFF` are refused.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use halimede_serving::Error;

use crate::{
    flags::TraceFlags,
    grpc::proto,
    json::{Document, Value, Writer},
    services::Services,
};

/// Settings for all models, and those of single models that differ.
#[derive(Debug)]
pub(crate) struct Tracing {
    file: String,
    global: RwLock<Settings>,
    models: RwLock<BTreeMap<String, Overrides>>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    rate: u32,
    count: i32,
    log_frequency: u32,
}

/// What a model sets for itself.
#[derive(Debug, Clone, Copy, Default)]
struct Overrides {
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

/// A change of one setting.
#[derive(Debug, Clone, Copy)]
enum Change<T> {
    Keep,
    Clear,
    Set(T),
}

impl<T> Change<T> {
    fn apply(self, setting: &mut Option<T>) {
        match self {
            Change::Keep => {}
            Change::Clear => *setting = None,
            Change::Set(value) => *setting = Some(value),
        }
    }
}

/// Changes of all settings.
#[derive(Debug)]
struct Changes {
    rate: Change<u32>,
    count: Change<i32>,
    log_frequency: Change<u32>,
}

impl Tracing {
    pub fn new(flags: &TraceFlags) -> Self {
        let TraceFlags { rate, count, log_frequency, ref file } = *flags;
        let global = Settings { rate, count, log_frequency };
        Self { file: file.clone(), global: RwLock::new(global), models: RwLock::default() }
    }

    /// Settings by name, as both protocols print them; all values are texts.
    fn settings(&self, model: Option<&str>) -> [(&'static str, Vec<String>); 6] {
        let mut settings = *self.global.read().unwrap_or_else(PoisonError::into_inner);
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = model.and_then(|model| models.get(model)) {
            settings.rate = own.rate.unwrap_or(settings.rate);
            settings.count = own.count.unwrap_or(settings.count);
            settings.log_frequency = own.log_frequency.unwrap_or(settings.log_frequency);
        }
        [
            ("trace_level", vec!["OFF".to_owned()]),
            ("trace_rate", vec![settings.rate.to_string()]),
            ("trace_count", vec![settings.count.to_string()]),
            ("log_frequency", vec![settings.log_frequency.to_string()]),
            ("trace_file", vec![self.file.clone()]),
            ("trace_mode", vec!["triton".to_owned()]),
        ]
    }

    fn change(&self, model: Option<&str>, changes: Changes) {
        let Changes { rate, count, log_frequency } = changes;
        if let Some(model) = model {
            let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
            let own = models.entry(model.to_owned()).or_default();
            rate.apply(&mut own.rate);
            count.apply(&mut own.count);
            log_frequency.apply(&mut own.log_frequency);
            return;
        }
        // What is cleared for all models gets Triton's default back.
        let mut global = self.global.write().unwrap_or_else(PoisonError::into_inner);
        let mut all =
            Overrides { rate: Some(global.rate), count: Some(global.count), log_frequency: Some(global.log_frequency) };
        rate.apply(&mut all.rate);
        count.apply(&mut all.count);
        log_frequency.apply(&mut all.log_frequency);
        *global = Settings {
            rate: all.rate.unwrap_or(1000),
            count: all.count.unwrap_or(-1),
            log_frequency: all.log_frequency.unwrap_or(0),
        };
    }
}

/// Changes the settings that `body` names, if there is one, and prints all of them.
pub(crate) fn http(services: &Services, model: Option<&str>, body: Option<&[u8]>) -> Result<Vec<u8>, Error> {
    check_model(services, model)?;
    if let Some(body) = body {
        let document = Document::parse(body)?;
        let root = document.root();
        if root.find("trace_file").is_some() {
            return Err(Error::unsupported("trace file location can not be updated through network protocol"));
        }
        if let Some(levels) = root.find("trace_level").filter(|value| !value.is_null()) {
            let levels: Result<Vec<_>, Error> = levels.elements()?.map(Value::text).collect();
            check_levels(levels?.iter().map(|level| &**level))?;
        }
        let change = |name| match root.find(name) {
            None => Ok(Change::Keep),
            Some(value) if value.is_null() => Ok(Change::Clear),
            Some(value) => value.text().map(|text| Change::Set(text.into_owned())),
        };
        let changes = Changes {
            rate: number("trace_rate", change("trace_rate")?)?,
            count: number("trace_count", change("trace_count")?)?,
            log_frequency: number("log_frequency", change("log_frequency")?)?,
        };
        services.tracing.change(model, changes);
    }
    let mut writer = Writer::default();
    writer.begin_object();
    for (name, values) in services.tracing.settings(model) {
        writer.name(name);
        match name {
            "trace_level" => {
                writer.begin_array();
                values.iter().for_each(|value| writer.text(value));
                writer.end_array();
            }
            _ => values.iter().for_each(|value| writer.text(value)),
        }
    }
    writer.end_object();
    Ok(writer.into_bytes())
}

fn check_model(services: &Services, model: Option<&str>) -> Result<(), Error> {
    match model {
        Some(model) if !services.server.model_ready(model, None).unwrap_or(false) => {
            Err(Error::invalid(format!("Request for unknown model : {model}")))
        }
        _ => Ok(()),
    }
}

fn check_levels<'a>(levels: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let levels: Vec<&str> = levels.collect();
    if levels.contains(&"OFF") && levels.len() > 1 {
        return Err(Error::invalid("Expect only one trace level 'OFF' is specified"));
    }
    match levels.iter().find(|level| **level != "OFF") {
        Some(level) => Err(Error::unsupported(format!("trace level '{level}' is not supported yet"))),
        None => Ok(()),
    }
}

fn number<T: TryFrom<i64>>(name: &str, change: Change<String>) -> Result<Change<T>, Error> {
    Ok(match change {
        Change::Keep => Change::Keep,
        Change::Clear => Change::Clear,
        Change::Set(text) => {
            let value: i64 =
                text.parse().map_err(|_| Error::invalid(format!("Unable to parse '{name}', got: {text}")))?;
            let wrong = || Error::invalid(format!("Unable to parse '{name}', value is out of range, got: {text}"));
            if name == "trace_count" && value < -1 {
                let message = format!("Unable to parse 'trace_count'. Expecting value >= -1, got:{text}");
                return Err(Error::invalid(message));
            }
            Change::Set(T::try_from(value).map_err(|_| wrong())?)
        }
    })
}

/// Changes the settings that the request names and answers with all of them, for gRPC.
pub(crate) fn grpc(
    services: &Services,
    request: &proto::TraceSettingRequest,
) -> Result<proto::TraceSettingResponse, Error> {
    let model = Some(request.model_name.as_str()).filter(|model| !model.is_empty());
    check_model(services, model)?;
    if !request.settings.is_empty() {
        let values = |name: &str| request.settings.get(name).map(|setting| setting.value.as_slice());
        if values("trace_file").is_some() {
            return Err(Error::unsupported("trace file location can not be updated through network protocol"));
        }
        check_levels(values("trace_level").unwrap_or_default().iter().map(String::as_str))?;
        let change = |name: &str| match values(name) {
            None => Ok(Change::Keep),
            Some([]) => Ok(Change::Clear),
            Some([value]) => Ok(Change::Set(value.clone())),
            Some(_) => Err(Error::invalid(format!("expect only 1 value for '{name}'"))),
        };
        let changes = Changes {
            rate: number("trace_rate", change("trace_rate")?)?,
            count: number("trace_count", change("trace_count")?)?,
            log_frequency: number("log_frequency", change("log_frequency")?)?,
        };
        services.tracing.change(model, changes);
    }
    let setting =
        |(name, value): (&str, Vec<String>)| (name.to_owned(), proto::trace_setting_response::SettingValue { value });
    let settings = services.tracing.settings(model).into_iter().map(setting).collect();
    Ok(proto::TraceSettingResponse { settings })
}
