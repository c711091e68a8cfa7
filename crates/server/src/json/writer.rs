//! Prints JSON into bytes, numbers as RapidJSON prints them.

use std::io::Write as _;

/// Prints values one after the other; commas come by themselves.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    out: Vec<u8>,
}

/// The largest magnitude up to which whole doubles are printed as integers are.
const WHOLE_MAX: f64 = 1e15;

impl Writer {
    pub fn with_capacity(bytes: usize) -> Self {
        Self { out: Vec::with_capacity(bytes) }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Puts a comma in front of a value or name that follows another one.
    fn separate(&mut self) {
        if !matches!(self.out.last(), None | Some(b'{' | b'[' | b':')) {
            self.out.push(b',');
        }
    }

    pub fn begin_object(&mut self) {
        self.separate();
        self.out.push(b'{');
    }

    pub fn end_object(&mut self) {
        self.out.push(b'}');
    }

    pub fn begin_array(&mut self) {
        self.separate();
        self.out.push(b'[');
    }

    pub fn end_array(&mut self) {
        self.out.push(b']');
    }

    /// The name of a member, whose value comes next.
    pub fn name(&mut self, name: &str) {
        self.string(name.as_bytes());
        self.out.push(b':');
    }

    pub fn boolean(&mut self, value: bool) {
        self.separate();
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub fn unsigned(&mut self, value: u64) {
        self.separate();
        self.digits(value);
    }

    pub fn signed(&mut self, value: i64) {
        self.separate();
        if value < 0 {
            self.out.push(b'-');
        }
        self.digits(value.unsigned_abs());
    }

    fn digits(&mut self, mut value: u64) {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.out.extend_from_slice(&digits[first..]);
    }

    /// Prints with the fewest digits that read back as the same double, and always with a point or an
    /// exponent.
    pub fn double(&mut self, value: f64) {
        self.separate();
        if value.is_nan() {
            self.out.extend_from_slice(b"NaN");
            return;
        }
        if value.is_sign_negative() {
            self.out.push(b'-');
        }
        let magnitude = value.abs();
        if magnitude.is_infinite() {
            self.out.extend_from_slice(b"Infinity");
        } else if magnitude < WHOLE_MAX && magnitude.trunc() == magnitude {
            self.digits(magnitude as u64);
            self.out.extend_from_slice(b".0");
        } else {
            self.decimal(magnitude);
        }
    }

    fn decimal(&mut self, magnitude: f64) {
        let mut text = [0u8; 32];
        let mut rest = &mut text[..];
        // `d.ddde±x` has at most 24 characters.
        let _ = write!(rest, "{magnitude:e}");
        let len = 32 - rest.len();
        let text = &text[..len];
        let split = text.iter().position(|byte| *byte == b'e').unwrap_or(len);
        let mut digits = [0u8; 20];
        let mut count = 0;
        for digit in text[..split].iter().filter(|byte| **byte != b'.') {
            digits[count] = *digit;
            count += 1;
        }
        let digits = &digits[..count];
        let exponent: i32 = std::str::from_utf8(&text[split..]).map_or(0, |e| e[1..].parse().unwrap_or(0));

        // Where the point stands, counted from the first digit.
        let point = exponent + 1;
        if (1..=21).contains(&point) {
            let point = point as usize;
            let whole = point.min(count);
            self.out.extend_from_slice(&digits[..whole]);
            self.out.extend(std::iter::repeat_n(b'0', point - whole));
            self.out.push(b'.');
            self.out.extend_from_slice(if whole < count { &digits[whole..] } else { b"0" });
        } else if (-5..=0).contains(&point) {
            self.out.extend_from_slice(b"0.");
            self.out.extend(std::iter::repeat_n(b'0', point.unsigned_abs() as usize));
            self.out.extend_from_slice(digits);
        } else {
            self.out.push(digits[0]);
            if count > 1 {
                self.out.push(b'.');
                self.out.extend_from_slice(&digits[1..]);
            }
            self.out.push(b'e');
            if exponent < 0 {
                self.out.push(b'-');
            }
            self.digits(u64::from(exponent.unsigned_abs()));
        }
    }

    /// Prints bytes as a string: quotes, backslashes and control characters are escaped, all else stays.
    pub fn string(&mut self, bytes: &[u8]) {
        self.separate();
        self.out.push(b'"');
        let mut plain = 0;
        for (index, byte) in bytes.iter().enumerate() {
            let short = match byte {
                b'"' | b'\\' => *byte,
                0x08 => b'b',
                0x0c => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0..0x20 => 0,
                _ => continue,
            };
            self.out.extend_from_slice(&bytes[plain..index]);
            plain = index + 1;
            if short == 0 {
                // Writing to a vector does not fail.
                let _ = write!(self.out, "\\u{byte:04X}");
            } else {
                self.out.extend_from_slice(&[b'\\', short]);
            }
        }
        self.out.extend_from_slice(&bytes[plain..]);
        self.out.push(b'"');
    }

    pub fn text(&mut self, text: &str) {
        self.string(text.as_bytes());
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, json: &[u8]) {
        self.separate();
        self.out.extend_from_slice(json);
    }

    /// A name with a text.
    pub fn member(&mut self, name: &str, value: &str) {
        self.name(name);
        self.text(value);
    }
}
