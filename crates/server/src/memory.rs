//! How much memory a server may take, and what tells how much there is.

use std::{str::FromStr, sync::Arc};

use halimede_platform::memory;
use halimede_serving::admission::{MemoryLimit, MemoryReading, MemorySensor};

/// The value of `--memory-limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Whatever machine and container have.
    Auto,
    /// So many bytes of this process, and no more than there are.
    Bytes(u64),
    /// None.
    Off,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is none of auto, off and a number of bytes such as 8589934592, 8192M or 8G");
        match text {
            "auto" => return Ok(Limit::Auto),
            "off" => return Ok(Limit::Off),
            _ => {}
        }
        let units = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
        let found = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(*unit)?, *bytes)));
        let (digits, unit) = found.unwrap_or((text, 1));
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = digits.parse::<u64>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(unit));
        bytes.filter(|bytes| *bytes > 0).map(Limit::Bytes).ok_or_else(wrong)
    }
}

impl Limit {
    /// The limit of a server on this machine.
    pub fn of_server(self) -> Option<MemoryLimit> {
        let bytes = match self {
            Limit::Off => return None,
            Limit::Auto => None,
            Limit::Bytes(bytes) => Some(bytes),
        };
        Some(MemoryLimit { bytes, sensor: Arc::new(System) })
    }
}

/// What the operating system says.
struct System;

impl MemorySensor for System {
    fn read(&self) -> MemoryReading {
        MemoryReading { private: memory::process().private, left: memory::machine().left() }
    }

    fn release(&self) {
        memory::release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        for (text, limit) in [
            ("auto", Limit::Auto),
            ("off", Limit::Off),
            ("1", Limit::Bytes(1)),
            ("3K", Limit::Bytes(3 << 10)),
            ("512M", Limit::Bytes(512 << 20)),
            ("8G", Limit::Bytes(8 << 30)),
        ] {
            assert_eq!(text.parse(), Ok(limit), "{text}");
        }
        for text in ["", "G", "0", "0G", "-1", "+1", "1.5G", "8g", "8GB", "99999999999999999999", "99999999999G"] {
            let error = text.parse::<Limit>().unwrap_err();
            assert!(error.starts_with(&format!("'{text}' is none of auto, off and a number of bytes")), "{error}");
        }
    }

    #[test]
    fn the_system_says_how_much_there_is() {
        let limit = Limit::Auto.of_server().unwrap();
        let reading = limit.sensor.read();
        assert!(reading.private.unwrap() > 0 && reading.left.unwrap() > 0, "{reading:?}");
        assert!(Limit::Off.of_server().is_none());
    }
}
