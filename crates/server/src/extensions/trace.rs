//! The trace extension: which requests are traced, read and changed while the server runs.

use halimede_serving::Error;

use crate::{
    grpc::proto,
    json::{Document, Value, Writer},
    services::Services,
    traces::{Change, Changes, Levels, Values},
};

/// Settings by name, as both protocols print them; all values are texts.
fn settings(values: &Values) -> Vec<(&str, Vec<String>)> {
    let mut all = vec![
        ("trace_level", values.level.names().into_iter().map(str::to_owned).collect()),
        ("trace_rate", vec![values.rate.to_string()]),
        ("trace_count", vec![values.count.to_string()]),
    ];
    match &values.collector {
        None => all.extend([
            ("log_frequency", vec![values.log_frequency.to_string()]),
            ("trace_file", vec![values.file.clone()]),
            ("trace_mode", vec!["triton".to_owned()]),
        ]),
        Some(collector) => {
            all.push(("trace_mode", vec!["opentelemetry".to_owned()]));
            all.extend(collector.printed.iter().map(|(name, value)| (name.as_str(), vec![value.clone()])));
        }
    }
    all
}

const FILE_IS_FIXED: &str = "trace file location can not be updated through network protocol";

/// Changes the settings that `body` names, if there is one, and prints all of them.
pub(crate) fn http(services: &Services, model: Option<&str>, body: Option<&[u8]>) -> Result<Vec<u8>, Error> {
    check_model(services, model)?;
    if let Some(body) = body {
        let document = Document::parse(body)?;
        let root = document.root();
        if root.find("trace_file").is_some() {
            return Err(Error::unsupported(FILE_IS_FIXED));
        }
        let level = match root.find("trace_level") {
            None => Change::Keep,
            Some(value) if value.is_null() => Change::Clear,
            Some(value) => {
                let names: Vec<_> = value.elements()?.map(Value::text).collect::<Result<_, Error>>()?;
                levels(names.iter().map(|name| &**name))?
            }
        };
        let change = |name| match root.find(name) {
            None => Ok(Change::Keep),
            Some(value) if value.is_null() => Ok(Change::Clear),
            Some(value) => value.text().map(|text| Change::Set(text.into_owned())),
        };
        let change = |name| change(name).map(|change: Change<String>| as_number(name, &change));
        services.tracing.change(model, &changes(level, change)?)?;
    }
    let mut writer = Writer::default();
    writer.begin_object();
    for (name, values) in settings(&services.tracing.values(model)) {
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

/// The level of several names. Names that nobody knows are ignored, as in Triton.
fn levels<'a>(names: impl Iterator<Item = &'a str>) -> Result<Change<Levels>, Error> {
    let names: Vec<&str> = names.collect();
    if names.contains(&"OFF") && names.len() > 1 {
        return Err(Error::invalid("Expect only one trace level 'OFF' is specified"));
    }
    let known = names.into_iter().filter_map(Levels::named);
    Ok(known.reduce(Levels::and).map_or(Change::Keep, Change::Set))
}

/// A number that a client spells as a text.
type Number = Result<Change<i64>, Error>;

fn as_number(name: &str, change: &Change<String>) -> Number {
    Ok(match change {
        Change::Keep => Change::Keep,
        Change::Clear => Change::Clear,
        Change::Set(text) => Change::Set(text.parse().map_err(|error: std::num::ParseIntError| {
            use std::num::IntErrorKind::{NegOverflow, PosOverflow};
            match error.kind() {
                PosOverflow | NegOverflow => out_of_range(name, text),
                _ => Error::invalid(format!("Unable to parse '{name}', got: {text}")),
            }
        })?),
    })
}

fn out_of_range(name: &str, text: &str) -> Error {
    let (least, most) = if name == "trace_count" { (-1, i64::from(i32::MAX)) } else { (0, i64::from(u32::MAX)) };
    Error::invalid(format!("Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}"))
}

/// Changes of all settings, whose numbers `change` reads.
fn changes(level: Change<Levels>, change: impl Fn(&'static str) -> Result<Number, Error>) -> Result<Changes, Error> {
    fn fit<T: TryFrom<i64>>(name: &str, change: Change<i64>) -> Result<Change<T>, Error> {
        Ok(match change {
            Change::Keep => Change::Keep,
            Change::Clear => Change::Clear,
            Change::Set(value) => Change::Set(T::try_from(value).map_err(|_| out_of_range(name, &value.to_string()))?),
        })
    }
    let rate = fit("trace_rate", change("trace_rate")??)?;
    let count = change("trace_count")??;
    if let Change::Set(value @ ..-1) = count {
        let message = format!("Unable to parse 'trace_count'. Expecting value >= -1, got:{value}");
        return Err(Error::invalid(message));
    }
    let count = fit("trace_count", count)?;
    let log_frequency = fit("log_frequency", change("log_frequency")??)?;
    Ok(Changes { level, rate, count, log_frequency })
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
            return Err(Error::unsupported(FILE_IS_FIXED));
        }
        let level = match values("trace_level") {
            None => Change::Keep,
            Some([]) => Change::Clear,
            Some(names) => levels(names.iter().map(String::as_str))?,
        };
        let change = |name: &'static str| match values(name) {
            None => Ok(Ok(Change::Keep)),
            Some([]) => Ok(Ok(Change::Clear)),
            Some([value]) => Ok(as_number(name, &Change::Set(value.clone()))),
            Some(_) => Err(Error::invalid(format!("expect only 1 value for '{name}'"))),
        };
        services.tracing.change(model, &changes(level, change)?)?;
    }
    let setting =
        |(name, value): (&str, Vec<String>)| (name.to_owned(), proto::trace_setting_response::SettingValue { value });
    let settings = settings(&services.tracing.values(model)).into_iter().map(setting).collect();
    Ok(proto::TraceSettingResponse { settings })
}
