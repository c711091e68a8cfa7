//! What flags do beyond setting a field: values with names, and settings with keys of their own.

use super::{
    Control, Flags, backend_settings,
    values::{number, quantiles, setting, switch},
};
use crate::traces::Levels;
use halimede_serving::rate_limiter::Device;

pub(super) fn set<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

pub(super) fn not_empty(value: &str) -> Result<String, String> {
    if value.is_empty() {
        Err("Error: empty argument for --model-config-name".to_owned())
    } else {
        Ok(value.to_owned())
    }
}

pub(super) fn positive(value: &str) -> Result<usize, String> {
    match number::<usize>(value)? {
        0 => Err("Error: --http-max-input-size must be greater than 0.".to_owned()),
        size => Ok(size),
    }
}

pub(super) fn control(value: &str) -> Result<Control, String> {
    match value.to_ascii_lowercase().as_str() {
        "none" => Ok(Control::None),
        "poll" => Ok(Control::Poll),
        "explicit" => Ok(Control::Explicit),
        _ => Err("invalid argument for --model-control-mode".to_owned()),
    }
}

pub(super) fn compression(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "none" => Ok(false),
        "low" | "medium" | "high" => Ok(true),
        _ => Err("invalid argument for --grpc_infer_response_compression_level".to_owned()),
    }
}

pub(super) fn log_format(value: &str) -> Result<bool, String> {
    match value {
        "default" => Ok(false),
        "ISO8601" => Ok(true),
        _ => Err("invalid argument for --log-format".to_owned()),
    }
}

pub(super) fn real(value: &str) -> Result<(), String> {
    value.parse::<f64>().map(drop).map_err(|_| format!("Invalid option value. Got {value}"))
}

/// A device and a number.
pub(super) fn pair(value: &str) -> Result<(), String> {
    let (device, rest) = value.split_once(':').ok_or_else(|| {
        format!("Cannot parse pair option due to incorrect number of inputs. It has the form <first>:<second>. Found: {value}")
    })?;
    number::<i32>(device)?;
    real(rest)
}

/// How many traces there may be; -1 for any number.
fn trace_count(text: &str) -> Result<i32, String> {
    match number(text)? {
        count if count >= -1 => Ok(count),
        _ => Err(format!("the count of traces is 0 or more, or -1 for any number. Got {text}")),
    }
}

/// The name of a mode of tracing.
fn trace_mode(text: &str) -> Result<&'static str, String> {
    match text.to_ascii_lowercase().as_str() {
        "triton" => Ok("triton"),
        "opentelemetry" => Ok("opentelemetry"),
        other => Err(format!(
            "invalid value for trace mode option: {other}. Available options are \"triton\" and \"opentelemetry\""
        )),
    }
}

impl Flags {
    pub(super) fn add_repository(&mut self, value: &str) {
        let path = value.into();
        if !self.repositories.contains(&path) {
            self.repositories.push(path);
        }
    }

    pub(super) fn ignored(&mut self, name: &str, value: &str) {
        self.warnings.push(format!("--{name}={value} has no effect: this server does not do that yet"));
    }

    pub(super) fn unknown_setting(&mut self, name: &str, value: &str) {
        self.warnings.push(format!("--{name}={value} has no effect: there is no such setting"));
    }

    /// Triton's words: what it prints after "has been deprecated" differs from flag to flag.
    pub(super) fn deprecated(&mut self, name: &str, rest: &str) {
        self.warnings.push(format!("Warning: '--{name}' has been deprecated{rest}"));
    }

    /// A flag that is a setting of `--trace-config` now; `form` says what its value is.
    pub(super) fn deprecated_trace_setting(
        &mut self,
        name: &str,
        setting: &str,
        form: &str,
        value: &str,
    ) -> Result<(), String> {
        self.deprecated(
            name,
            &format!(" and will be removed in future releases. Please use '--trace-config {setting}={form} instead."),
        );
        self.trace_setting(&format!("{setting}={value}"))
    }

    pub(super) fn front_end(&mut self, name: &str, value: &str) -> Result<(), String> {
        if switch(value)? {
            self.refused.push(format!("--{name} is not supported yet"));
        }
        Ok(())
    }

    pub(super) fn metrics_setting(&mut self, value: &str) -> Result<(), String> {
        let (name, key, text) = setting("metrics-config", value)?;
        if !name.is_empty() {
            return Err(format!("--metrics-config option format is <setting>=<value>. Got {value}"));
        }
        let options = &mut self.metrics.options;
        match key {
            "counter_latencies" => set(&mut options.counter_latencies, switch(text)),
            "histogram_latencies" => set(&mut options.histogram_latencies, switch(text)),
            "summary_latencies" => set(&mut options.summary_latencies, switch(text)),
            "summary_quantiles" => set(&mut options.summary_quantiles, quantiles(text)),
            _ => {
                self.unknown_setting("metrics-config", value);
                Ok(())
            }
        }
    }

    pub(super) fn trace_setting(&mut self, value: &str) -> Result<(), String> {
        let form = "--trace-config option format is '<trace mode>,<setting>=<value>'";
        let (mode, rest) = match value.split_once(',').filter(|(mode, _)| !mode.contains('=')) {
            None => ("", value),
            Some(("", _)) => {
                return Err(format!(
                    "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or \
                     <setting>=<value>. Got {value}\n"
                ));
            }
            Some((mode, rest)) => (trace_mode(mode)?, rest),
        };
        let (key, text) = rest
            .split_once('=')
            .filter(|(key, text)| !key.is_empty() && !text.is_empty())
            .ok_or_else(|| format!("{form}. Got {value}\n"))?;
        let trace = &mut self.trace;
        match (mode, key) {
            ("", "level") => return self.trace_level(text),
            ("", "rate") => trace.rate = number(text)?,
            ("", "count") => trace.count = trace_count(text)?,
            ("", "mode") => trace.is_sent = trace_mode(text)? == "opentelemetry",
            ("triton", "file") => trace.file = text.to_owned(),
            ("triton", "log-frequency") => trace.log_frequency = number(text)?,
            ("opentelemetry", key) if trace.collector.set(key, text)? => {}
            _ => self.unknown_setting("trace-config", value),
        }
        Ok(())
    }

    fn trace_level(&mut self, text: &str) -> Result<(), String> {
        let text = text.to_ascii_lowercase();
        let name = match text.as_str() {
            "false" | "off" => "OFF",
            "true" | "on" | "min" | "max" | "timestamps" => "TIMESTAMPS",
            "tensors" => "TENSORS",
            _ => return Err(format!("invalid value for trace level option: {text}")),
        };
        self.trace.is_off |= name == "OFF";
        self.trace.level = self.trace.level.and(Levels::named(name).unwrap_or_default());
        Ok(())
    }

    pub(super) fn cache_setting(&mut self, value: &str) -> Result<(), String> {
        let Some((cache, rest)) = value.split_once(',').filter(|(cache, _)| !cache.is_empty()) else {
            return Err(format!(
                "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {value}\n"
            ));
        };
        match rest.split_once('=') {
            Some((setting, text)) if !setting.is_empty() && !text.is_empty() => {
                let settings = self.caches.entry(cache.to_owned()).or_default();
                settings.insert(setting.to_owned(), text.to_owned());
                Ok(())
            }
            _ => Err(format!("--cache-config option format is '<cache name>,<setting>=<value>'. Got {value}\n")),
        }
    }

    pub(super) fn rate_limit(&mut self, value: &str) -> Result<(), String> {
        match value.to_ascii_lowercase().as_str() {
            "off" => self.has_rate_limit = false,
            "execution_count" => self.has_rate_limit = true,
            _ => return Err("invalid argument for --rate-limit".to_owned()),
        }
        Ok(())
    }

    pub(super) fn rate_limit_resource(&mut self, value: &str) -> Result<(), String> {
        let parts: Vec<&str> = value.split(':').collect();
        let (name, count, device) = match parts[..] {
            [name, count] => (name, number::<i32>(count)?, Device::Each),
            [name, count, device] => {
                let count = number::<i32>(count)?;
                // In Triton -1 says each device, too.
                let device = match number::<i32>(device)? {
                    -1 => Device::Each,
                    device => Device::Number(device),
                };
                (name, count, device)
            }
            _ => {
                return Err(format!(
                    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                     '<resource_name>:<count>'. Got {value}"
                ));
            }
        };
        if name.is_empty() {
            return Err(format!("--rate-limit-resource needs the name of a resource. Got {value}"));
        }
        if let Device::Number(device) = device
            && device < 0
        {
            return Err(format!(
                "--rate-limit-resource {name} must have a device of 0 or more, or -1 for each. Got {value}"
            ));
        }
        let count = u64::try_from(count)
            .map_err(|_| format!("--rate-limit-resource {name} must have a count of 0 or more. Got {value}"))?;
        self.rate_limit_resources.add(name, count, device);
        Ok(())
    }

    pub(super) fn backend_setting(&mut self, value: &str) -> Result<(), String> {
        let (backend, key, text) = setting("backend-config", value)?;
        if let Some(why) = backend_settings::check(backend, key, text)? {
            self.warnings.push(format!("--backend-config={value} has no effect: {why}"));
        }
        self.backend_settings.entry(backend.to_owned()).or_default().insert(key.to_owned(), text.to_owned());
        Ok(())
    }
}
