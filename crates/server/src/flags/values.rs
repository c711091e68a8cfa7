//! Values of flags: numbers, switches and pairs, with the texts that tritonserver has for wrong ones.

use std::{str::FromStr, time::Duration};

use super::Port;

/// `true`, `on` and `1`; `false`, `off` and `0`, in any case.
pub(super) fn switch(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(format!("invalid value for bool option: {value}")),
    }
}

/// A whole number in the range of its type.
pub(super) fn number<T: FromStr>(value: &str) -> Result<T, String> {
    if value.parse::<i128>().is_err() {
        return Err(format!("Invalid option value. Got {value}"));
    }
    value.parse().map_err(|_| format!("Provided option value is out of bound. Got {value}"))
}

/// A port; one out of range is kept, since nobody may want to open it.
pub(super) fn port(value: &str) -> Result<Port, String> {
    let port = number::<i32>(value)?;
    Ok(u16::try_from(port).map_or(Port::OutOfRange(port), Port::Number))
}

pub(super) fn seconds(value: &str) -> Result<Duration, String> {
    number::<u32>(value).map(|seconds| Duration::from_secs(u64::from(seconds)))
}

pub(super) fn milliseconds(value: &str) -> Result<Duration, String> {
    number::<u32>(value).map(|milliseconds| Duration::from_millis(u64::from(milliseconds)))
}

/// A level from 0, or a switch for 0 and 1.
pub(super) fn level(value: &str) -> Result<i32, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(1),
        "false" => Ok(0),
        _ => number(value),
    }
}

/// A regular expression for names of headers, which have no case.
pub(super) fn pattern(value: &str) -> Result<Option<regex::Regex>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let pattern = regex::RegexBuilder::new(value).case_insensitive(true).build();
    pattern.map(Some).map_err(|error| format!("invalid regular expression '{value}': {error}"))
}

/// `[name,]setting=value`; the name is empty where there is none.
pub(super) fn setting<'a>(flag: &str, value: &'a str) -> Result<(&'a str, &'a str, &'a str), String> {
    let wrong = || format!("--{flag} option format is '<name>,<setting>=<value>' or '<setting>=<value>'. Got {value}");
    let (name, rest) = match value.find(',').filter(|comma| value.find('=').is_none_or(|equals| *comma < equals)) {
        Some(0) => return Err(wrong()),
        Some(comma) => (&value[..comma], &value[comma + 1..]),
        None => ("", value),
    };
    let (setting, value) = rest.split_once('=').ok_or_else(wrong)?;
    if setting.is_empty() || value.is_empty() {
        return Err(wrong());
    }
    Ok((name, setting, value))
}

/// `0.5:0.05,0.9:0.01`: quantiles and the errors allowed.
pub(super) fn quantiles(value: &str) -> Result<Vec<(f64, f64)>, String> {
    let pair = |pair: &str| {
        let (quantile, error) = pair.split_once(':')?;
        let (quantile, error) = (quantile.trim().parse::<f64>().ok()?, error.trim().parse::<f64>().ok()?);
        ((0.0..=1.0).contains(&quantile) && (0.0..=1.0).contains(&error)).then_some((quantile, error))
    };
    let wrong = || format!("summary_quantiles are pairs '<quantile>:<error>' with commas between. Got {value}");
    value.split(',').map(|text| pair(text).ok_or_else(wrong)).collect()
}
