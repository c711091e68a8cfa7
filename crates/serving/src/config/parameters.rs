//! The `parameters` of a configuration that Triton's ONNX Runtime backend understands.

use std::{collections::BTreeSet, fmt::Display, str::FromStr};

use halimede_compute::Precision;

use super::proto::ModelConfig;
use crate::Error;

/// Parameters of ONNX models, read. The others are only checked; the log tells that they are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnnxParameters {
    /// Threads inside an operator; the engine's choice where there is none.
    pub intra_op_thread_count: Option<usize>,
    /// How exactly to compute, a parameter of our own; the server's choice where there is none.
    pub precision: Option<Precision>,
    /// Names of the nodes that compute exactly in any precision, a parameter of our own.
    pub exact_nodes: BTreeSet<String>,
    /// A folder inside of the model's with inputs by which a precision is judged, a parameter of our own.
    pub calibration: Option<String>,
    /// Whether to tune it, a parameter of our own; the server's choice where there is none.
    pub tune: Option<Tune>,
    /// Whether matrix units multiply for it, a parameter of our own; those that the server may use where there is none.
    pub matrix: Option<bool>,
}

/// Whether a model is tuned while it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tune {
    /// It is not.
    #[default]
    Off,
    /// In moments without requests.
    Background,
}

/// A name that says nothing about tuning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no way to tune: it is off or background")]
pub struct UnknownTune(String);

impl FromStr for Tune {
    type Err = UnknownTune;

    fn from_str(name: &str) -> Result<Tune, UnknownTune> {
        match name {
            "off" => Ok(Tune::Off),
            "background" => Ok(Tune::Background),
            _ => Err(UnknownTune(name.to_owned())),
        }
    }
}

impl OnnxParameters {
    /// Reads and checks the parameters of `config`. Unknown parameters are for somebody else.
    ///
    /// # Errors
    /// A value that cannot be read, in the words of Triton's backend.
    pub fn read(config: &ModelConfig) -> Result<Self, Error> {
        let execution_mode = integer(config, "execution_mode")?;
        if !(0..=1).contains(&execution_mode) {
            // Two blanks after "for", as Triton has them.
            invalid!(
                "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got \
                 {execution_mode} ."
            );
        }
        let threads = |name| integer(config, name).map(|count| usize::try_from(count).ok().filter(|count| *count > 0));
        let exact_nodes = text(config, "exact_nodes").unwrap_or_default().split(',').map(str::trim);
        let read = Self {
            intra_op_thread_count: threads("intra_op_thread_count")?,
            precision: named(config, "precision")?,
            exact_nodes: exact_nodes.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            calibration: text(config, "calibration").map(str::to_owned),
            tune: named(config, "tune")?,
            matrix: boolean(config, "matrix")?,
        };
        threads("inter_op_thread_count")?;
        for name in ["enable_mem_arena", "enable_mem_pattern"] {
            boolean(config, name)?;
        }
        Ok(read)
    }
}

fn text<'a>(config: &'a ModelConfig, name: &str) -> Option<&'a str> {
    config.parameters.get(name).map(|parameter| parameter.string_value.as_str())
}

/// One of some names.
fn named<T: FromStr<Err: Display>>(config: &ModelConfig, name: &str) -> Result<Option<T>, Error> {
    match text(config, name).map(str::parse) {
        Some(Err(error)) => invalid!("parameter '{name}' of model '{}': {error}", config.name),
        Some(Ok(value)) => Ok(Some(value)),
        None => Ok(None),
    }
}

/// 0 where the parameter is missing.
fn integer(config: &ModelConfig, name: &str) -> Result<i32, Error> {
    let Some(text) = text(config, name) else {
        return Ok(0);
    };
    match text.trim().parse() {
        Ok(value) => Ok(value),
        Err(_) => invalid!("failed to convert '{text}' to integral number"),
    }
}

fn boolean(config: &ModelConfig, name: &str) -> Result<Option<bool>, Error> {
    let Some(text) = text(config, name) else { return Ok(None) };
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(Some(true)),
        "false" | "off" | "0" => Ok(Some(false)),
        _ => invalid!("failed to convert '{text}' to boolean"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::ModelParameter;
    use super::*;

    fn config(parameters: &[(&str, &str)]) -> ModelConfig {
        let entry =
            |(name, value): &(&str, &str)| ((*name).to_owned(), ModelParameter { string_value: (*value).to_owned() });
        ModelConfig { parameters: parameters.iter().map(entry).collect(), ..Default::default() }
    }

    #[test]
    fn values_are_read() {
        assert_eq!(OnnxParameters::read(&config(&[("other", "x")])).unwrap(), OnnxParameters::default());
        let given = [
            ("intra_op_thread_count", "4"),
            ("precision", "balanced"),
            ("exact_nodes", "first, second"),
            ("calibration", "samples"),
            ("tune", "background"),
            ("matrix", "off"),
            ("inter_op_thread_count", "0"),
            ("execution_mode", "1"),
            ("enable_mem_arena", "False"),
        ];
        let expected = OnnxParameters {
            intra_op_thread_count: Some(4),
            precision: Some(Precision::Balanced),
            exact_nodes: ["first", "second"].map(str::to_owned).into(),
            calibration: Some("samples".to_owned()),
            tune: Some(Tune::Background),
            matrix: Some(false),
        };
        assert_eq!(OnnxParameters::read(&config(&given)).unwrap(), expected);
    }

    #[test]
    fn wrong_values_are_errors() {
        for (name, value, expected) in [
            (
                "precision",
                "some",
                "parameter 'precision' of model '': 'some' is no precision: it is exact, balanced or fast",
            ),
            ("matrix", "no", "failed to convert 'no' to boolean"),
            ("tune", "on", "parameter 'tune' of model '': 'on' is no way to tune: it is off or background"),
            ("intra_op_thread_count", "many", "failed to convert 'many' to integral number"),
            ("enable_mem_pattern", "maybe", "failed to convert 'maybe' to boolean"),
            (
                "execution_mode",
                "2",
                "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
            ),
        ] {
            assert_eq!(OnnxParameters::read(&config(&[(name, value)])).unwrap_err().message, expected);
        }
    }
}
