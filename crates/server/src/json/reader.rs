//! Text to nodes. What is accepted beyond the standard: `NaN`, `Inf` and `Infinity`, as RapidJSON does.

use halimede_serving::Error;

use super::Value;

/// A value, or the head of an array or object whose content follows up to `end`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    /// A whole number that fits 64 bits with a sign.
    Int(i64),
    /// A whole number beyond [`i64::MAX`].
    UInt(u64),
    Double(f64),
    /// A string that stands in the text as it is.
    Plain {
        start: u32,
        len: u32,
    },
    /// A string with escapes, decoded.
    Decoded {
        start: u32,
        len: u32,
    },
    Array {
        end: u32,
    },
    /// Names and values take turns.
    Object {
        end: u32,
    },
}

/// A text that was read.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    pub(super) text: &'a [u8],
    pub(super) decoded: Vec<u8>,
    pub(super) nodes: Vec<Node>,
}

impl<'a> Document<'a> {
    /// Reads all of `text`.
    ///
    /// # Errors
    /// `failed to parse the request JSON buffer: … at N`, an internal error as Triton has it.
    pub fn parse(text: &'a [u8]) -> Result<Self, Error> {
        if text.len() >= u32::MAX as usize {
            return Err(Error::invalid(format!("{} bytes of JSON are too many, 4 GiB is the limit", text.len())));
        }
        // Numbers come to two bytes or more with their comma; a guess that seldom has to grow.
        let document = Self { text, decoded: Vec::new(), nodes: Vec::with_capacity(text.len() / 8 + 8) };
        let mut parser = Parser { document, position: 0 };
        match parser.document() {
            Ok(()) => Ok(parser.document),
            Err(message) => Err(Error::internal(format!(
                "failed to parse the request JSON buffer: {message} at {}",
                parser.position
            ))),
        }
    }

    /// The outermost value.
    pub fn root(&self) -> Value<'_> {
        Value::new(self, 0)
    }
}

struct Parser<'a> {
    document: Document<'a>,
    /// Where reading goes on; after an error, what is reported.
    position: usize,
}

type Parsed = Result<(), &'static str>;

/// The end of the text reads as a zero byte.
const END: u8 = 0;

/// Decimal digits that surely fit 64 bits.
const SAFE_DIGITS: usize = 19;

/// Powers of ten that a double represents exactly.
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

impl Parser<'_> {
    fn peek(&self) -> u8 {
        self.document.text.get(self.position).copied().unwrap_or(END)
    }

    fn consume(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.position += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.position += 1;
        }
    }

    fn document(&mut self) -> Parsed {
        self.skip_space();
        if self.position == self.document.text.len() {
            return Err("The document is empty.");
        }
        // The nodes of the arrays and objects around the current position.
        let mut open: Vec<u32> = Vec::new();
        'value: loop {
            if self.value(&mut open)? {
                continue 'value;
            }
            // A value is complete: so may be those around it.
            while let Some(&around) = open.last() {
                self.skip_space();
                let is_object = matches!(self.document.nodes[around as usize], Node::Object { .. });
                match self.peek() {
                    b',' => {
                        self.position += 1;
                        self.skip_space();
                        if is_object {
                            self.name()?;
                        }
                        continue 'value;
                    }
                    b'}' if is_object => {}
                    b']' if !is_object => {}
                    _ if is_object => return Err("Missing a comma or } after an object member."),
                    _ => return Err("Missing a comma or ] after an array element."),
                }
                self.position += 1;
                open.pop();
                self.close(around);
            }
            break;
        }
        self.skip_space();
        if self.position != self.document.text.len() {
            return Err("The document root must not be followed by other values.");
        }
        Ok(())
    }

    fn close(&mut self, node: u32) {
        let end = self.document.nodes.len() as u32;
        let head = &mut self.document.nodes[node as usize];
        *head = if matches!(head, Node::Object { .. }) { Node::Object { end } } else { Node::Array { end } };
    }

    /// Reads a value; true if it opened an array or object whose first value comes next.
    fn value(&mut self, open: &mut Vec<u32>) -> Result<bool, &'static str> {
        let index = self.document.nodes.len() as u32;
        match self.peek() {
            b'{' => {
                self.position += 1;
                self.document.nodes.push(Node::Object { end: index + 1 });
                self.skip_space();
                if !self.consume(b'}') {
                    self.name()?;
                    open.push(index);
                    return Ok(true);
                }
            }
            b'[' => {
                self.position += 1;
                self.document.nodes.push(Node::Array { end: index + 1 });
                self.skip_space();
                if !self.consume(b']') {
                    open.push(index);
                    return Ok(true);
                }
            }
            b'"' => self.string()?,
            b't' => self.word("true", Node::Bool(true))?,
            b'f' => self.word("false", Node::Bool(false))?,
            b'n' => self.word("null", Node::Null)?,
            _ => {
                let number = self.number()?;
                self.document.nodes.push(number);
            }
        }
        Ok(false)
    }

    /// A member's name and the colon behind it.
    fn name(&mut self) -> Parsed {
        if self.peek() != b'"' {
            return Err("Missing a name for object member.");
        }
        self.string()?;
        self.skip_space();
        if !self.consume(b':') {
            return Err("Missing a colon after a name of object member.");
        }
        self.skip_space();
        Ok(())
    }

    fn word(&mut self, word: &str, node: Node) -> Parsed {
        for byte in word.bytes() {
            if !self.consume(byte) {
                return Err("Invalid value.");
            }
        }
        self.document.nodes.push(node);
        Ok(())
    }

    fn string(&mut self) -> Parsed {
        self.position += 1;
        let start = self.position;
        loop {
            match self.peek() {
                b'"' => {
                    let len = (self.position - start) as u32;
                    self.position += 1;
                    self.document.nodes.push(Node::Plain { start: start as u32, len });
                    return Ok(());
                }
                b'\\' => return self.escaped_string(start),
                0..0x20 => return Err(self.string_error()),
                _ => self.position += 1,
            }
        }
    }

    fn string_error(&self) -> &'static str {
        if self.peek() == END { "Missing a closing quotation mark in string." } else { "Invalid encoding in string." }
    }

    /// The rest of a string whose first escape is at the position.
    fn escaped_string(&mut self, start: usize) -> Parsed {
        let first = self.document.decoded.len();
        self.document.decoded.extend_from_slice(&self.document.text[start..self.position]);
        loop {
            match self.peek() {
                b'"' => {
                    self.position += 1;
                    let len = (self.document.decoded.len() - first) as u32;
                    self.document.nodes.push(Node::Decoded { start: first as u32, len });
                    return Ok(());
                }
                b'\\' => self.escape()?,
                0..0x20 => return Err(self.string_error()),
                byte => {
                    self.document.decoded.push(byte);
                    self.position += 1;
                }
            }
        }
    }

    fn escape(&mut self) -> Parsed {
        let start = self.position;
        self.position += 1;
        let byte = match self.peek() {
            b'u' => {
                self.position += 1;
                let decoded = self.unicode();
                return decoded.inspect_err(|_| self.position = start);
            }
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            byte @ (b'"' | b'\\' | b'/') => byte,
            _ => {
                self.position = start;
                return Err("Invalid escape character in string.");
            }
        };
        self.position += 1;
        self.document.decoded.push(byte);
        Ok(())
    }

    fn unicode(&mut self) -> Parsed {
        const SURROGATES: &str = "The surrogate pair in string is invalid.";
        let mut code = self.hex()?;
        if (0xd800..0xe000).contains(&code) {
            if code >= 0xdc00 || !self.consume(b'\\') || !self.consume(b'u') {
                return Err(SURROGATES);
            }
            let low = self.hex()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(SURROGATES);
            }
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        let character = char::from_u32(code).ok_or(SURROGATES)?;
        self.document.decoded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    fn hex(&mut self) -> Result<u32, &'static str> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = char::from(self.peek()).to_digit(16);
            code = code * 16 + digit.ok_or("Incorrect hex digit after \\u escape in string.")?;
            self.position += 1;
        }
        Ok(code)
    }

    fn digits(&mut self) -> usize {
        let start = self.position;
        while self.peek().is_ascii_digit() {
            self.position += 1;
        }
        self.position - start
    }

    fn number(&mut self) -> Result<Node, &'static str> {
        let start = self.position;
        let negative = self.consume(b'-');
        let first_digit = self.position;
        if !self.consume(b'0') && self.digits() == 0 {
            return self.not_finite(negative);
        }
        let whole_digits = self.position - first_digit;
        let mut is_whole = true;
        let mut fraction_digits = 0;
        if self.consume(b'.') {
            is_whole = false;
            fraction_digits = self.digits();
            if fraction_digits == 0 {
                return Err("Miss fraction part in number.");
            }
        }
        let mantissa_end = self.position;
        let mut exponent: i32 = 0;
        if matches!(self.peek(), b'e' | b'E') {
            is_whole = false;
            self.position += 1;
            let is_negative = self.consume(b'-');
            if !is_negative {
                self.consume(b'+');
            }
            let exponent_start = self.position;
            if self.digits() == 0 {
                return Err("Miss exponent in number.");
            }
            let digits = &self.document.text[exponent_start..self.position];
            let magnitude = digits.iter().fold(0i32, |all, digit| (all * 10 + i32::from(digit - b'0')).min(99_999));
            exponent = if is_negative { -magnitude } else { magnitude };
        }

        let text = &self.document.text[start..self.position];
        if whole_digits + fraction_digits <= SAFE_DIGITS {
            let mantissa = &self.document.text[first_digit..mantissa_end];
            let digits = mantissa.iter().filter(|byte| **byte != b'.');
            let value = digits.fold(0u64, |all, digit| all * 10 + u64::from(digit - b'0'));
            if is_whole {
                return Ok(whole(value, negative));
            }
            // Exact as long as the digits and the power of ten are doubles themselves.
            let power = exponent - fraction_digits as i32;
            if value < 1 << 53 && power.unsigned_abs() < EXACT_POWERS.len() as u32 {
                let scale = EXACT_POWERS[power.unsigned_abs() as usize];
                let magnitude = if power < 0 { value as f64 / scale } else { value as f64 * scale };
                return Ok(Node::Double(if negative { -magnitude } else { magnitude }));
            }
        }
        // The text is ASCII: digits, signs, a point, an exponent.
        let text = std::str::from_utf8(text).unwrap_or_default();
        if is_whole {
            if let Ok(value) = text.parse::<u64>() {
                return Ok(whole(value, false));
            }
            if let Ok(value) = text.parse::<i64>() {
                return Ok(Node::Int(value));
            }
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Node::Double(value)),
            _ => {
                self.position = start;
                Err("Number too big to be stored in double.")
            }
        }
    }

    fn not_finite(&mut self, negative: bool) -> Result<Node, &'static str> {
        let invalid = Err("Invalid value.");
        let value = if self.consume(b'N') {
            if !self.consume(b'a') || !self.consume(b'N') {
                return invalid;
            }
            f64::NAN
        } else if self.consume(b'I') {
            if !self.consume(b'n') || !self.consume(b'f') {
                return invalid;
            }
            if self.peek() == b'i' && !"inity".bytes().all(|byte| self.consume(byte)) {
                return invalid;
            }
            f64::INFINITY
        } else {
            return invalid;
        };
        Ok(Node::Double(if negative { -value } else { value }))
    }
}

fn whole(magnitude: u64, negative: bool) -> Node {
    match (i64::try_from(magnitude), negative) {
        (Ok(value), false) => Node::Int(value),
        (Ok(value), true) => Node::Int(-value),
        (Err(_), false) => Node::UInt(magnitude),
        (Err(_), true) if magnitude == 1 << 63 => Node::Int(i64::MIN),
        (Err(_), true) => Node::Double(-(magnitude as f64)),
    }
}
