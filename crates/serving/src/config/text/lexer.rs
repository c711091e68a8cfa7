//! Splits the text format into tokens.

use super::TextError;

/// One token; borrowed from the text except for strings, whose escapes are resolved.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'a> {
    Identifier(&'a str),
    /// Decimal, `0x` hexadecimal or `0` octal, without sign. `None` over 64 bits.
    Integer {
        value: Option<u64>,
        is_decimal: bool,
    },
    Float(f64),
    String(Vec<u8>),
    /// Any other single character.
    Symbol(char),
    End,
}

/// A cursor over the text that yields one token at a time.
pub(super) struct Lexer<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, offset: 0 }
    }

    /// What stands between `start` and the end of the token that was read last.
    pub(super) fn source(&self, start: usize) -> &'a str {
        &self.text[start..self.offset]
    }

    /// The next token and the offset of its first byte.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'a>), TextError> {
        self.skip_blank();
        let start = self.offset;
        let rest = &self.text[start..];
        let Some(first) = rest.chars().next() else {
            return Ok((start, Token::End));
        };
        let second_is_digit = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
        let token = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.offset += length;
                Token::Identifier(&rest[..length])
            }
            '0'..='9' => self.number(rest)?,
            '.' if second_is_digit => self.number(rest)?,
            '"' | '\'' => Token::String(self.string(first)?),
            _ => {
                self.offset += first.len_utf8();
                Token::Symbol(first)
            }
        };
        Ok((start, token))
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = &self.text[self.offset..];
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{b}', '\u{c}']);
            self.offset += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.offset += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn number(&mut self, rest: &'a str) -> Result<Token<'a>, TextError> {
        let (token, length) = self.number_token(rest)?;
        self.offset += length;
        if rest[length..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            return Err(TextError::new(self.offset, "a number and a name need a space between them"));
        }
        Ok(token)
    }

    /// The number at the start of `rest` and its length.
    fn number_token(&self, rest: &'a str) -> Result<(Token<'a>, usize), TextError> {
        if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let length = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            if length == 0 {
                return Err(TextError::new(self.offset, "\"0x\" must be followed by hexadecimal digits"));
            }
            let value = u64::from_str_radix(&hex[..length], 16).ok();
            return Ok((Token::Integer { value, is_decimal: false }, 2 + length));
        }

        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let mut length = digits(rest);
        let mut is_float = false;
        if rest[length..].starts_with('.') {
            is_float = true;
            length += 1 + digits(&rest[length + 1..]);
        }
        if rest[length..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[length + 1..].starts_with(['+', '-']));
            let exponent = digits(&rest[length + 1 + sign..]);
            if exponent == 0 {
                return Err(TextError::new(self.offset, "\"e\" must be followed by the digits of an exponent"));
            }
            is_float = true;
            length += 1 + sign + exponent;
        }
        let number = &rest[..length];
        // A trailing f marks a float: 1f, 0.5f.
        if rest[length..].starts_with(['f', 'F']) {
            is_float = true;
            length += 1;
        }
        if rest[length..].starts_with('.') {
            return Err(TextError::new(self.offset + length, "a number has at most one decimal point"));
        }
        if is_float {
            // Digits, one point and an exponent always parse; too large a value becomes infinity.
            return Ok((Token::Float(number.parse().unwrap_or(f64::NAN)), length));
        }
        if number.len() == 1 || !number.starts_with('0') {
            return Ok((Token::Integer { value: number.parse().ok(), is_decimal: true }, length));
        }
        if number.contains(['8', '9']) {
            return Err(TextError::new(self.offset, "numbers starting with 0 must be octal"));
        }
        Ok((Token::Integer { value: u64::from_str_radix(number, 8).ok(), is_decimal: false }, length))
    }

    fn string(&mut self, quote: char) -> Result<Vec<u8>, TextError> {
        let start = self.offset;
        let bytes = self.text.as_bytes();
        let mut value = Vec::new();
        self.offset += 1;
        loop {
            let Some(&byte) = bytes.get(self.offset) else {
                return Err(TextError::new(start, format!("the string is not closed with {quote}")));
            };
            self.offset += 1;
            match byte {
                b'\n' => return Err(TextError::new(start, "a string ends on the line where it starts; write \\n")),
                b'\\' => self.escape(&mut value)?,
                _ if byte == quote as u8 => return Ok(value),
                _ => value.push(byte),
            }
        }
    }

    /// Resolves the escape after a backslash.
    fn escape(&mut self, value: &mut Vec<u8>) -> Result<(), TextError> {
        let start = self.offset - 1;
        let bad = || TextError::new(start, "invalid escape sequence in the string");
        let kind = *self.text.as_bytes().get(self.offset).ok_or_else(bad)?;
        self.offset += 1;
        let simple = match kind {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'\\' | b'\'' | b'"' | b'?' => kind,
            b'0'..=b'7' => {
                self.offset -= 1;
                let code = self.digits(8, 1, 3).ok_or_else(bad)?;
                u8::try_from(code).map_err(|_| bad())?
            }
            b'x' | b'X' => self.digits(16, 1, 2).and_then(|code| u8::try_from(code).ok()).ok_or_else(bad)?,
            b'u' | b'U' => {
                let count = if kind == b'u' { 4 } else { 8 };
                let code = self.digits(16, count, count).ok_or_else(bad)?;
                let character = match code {
                    0xd800..=0xdbff => self.low_surrogate().map(|low| 0x10000 + ((code - 0xd800) << 10) + low),
                    other => Some(other),
                };
                let character = character.and_then(char::from_u32).ok_or_else(bad)?;
                value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(bad()),
        };
        value.push(simple);
        Ok(())
    }

    /// The low 10 bits of the `\uDC00` to `\uDFFF` at the cursor.
    fn low_surrogate(&mut self) -> Option<u32> {
        if !self.text[self.offset..].starts_with("\\u") {
            return None;
        }
        self.offset += 2;
        self.digits(16, 4, 4).and_then(|low| low.checked_sub(0xdc00)).filter(|low| *low < 0x400)
    }

    /// The value of `min` to `max` digits at the cursor.
    fn digits(&mut self, radix: u32, min: usize, max: usize) -> Option<u32> {
        let rest = self.text.as_bytes()[self.offset..].iter();
        let count = rest.take(max).take_while(|byte| char::from(**byte).is_digit(radix)).count();
        if count < min {
            return None;
        }
        let digits = &self.text[self.offset..self.offset + count];
        self.offset += count;
        u32::from_str_radix(digits, radix).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Result<Vec<Token<'_>>, TextError> {
        let mut lexer = Lexer::new(text);
        let mut tokens = Vec::new();
        loop {
            match lexer.next()?.1 {
                Token::End => return Ok(tokens),
                token => tokens.push(token),
            }
        }
    }

    #[test]
    fn tokens_of_each_kind() {
        let string = |bytes: &[u8]| Token::String(bytes.to_vec());
        let integer = |value, is_decimal| Token::Integer { value, is_decimal };
        let cases = [
            ("", vec![]),
            (" \t\r\n\u{b}\u{c}# comment\n# another", vec![]),
            ("name:", vec![Token::Identifier("name"), Token::Symbol(':')]),
            ("0 7", vec![integer(Some(0), true), integer(Some(7), true)]),
            ("010 0x1F", vec![integer(Some(8), false), integer(Some(31), false)]),
            ("18446744073709551615", vec![integer(Some(u64::MAX), true)]),
            ("18446744073709551616", vec![integer(None, true)]),
            ("0.5 .5 5. 1e3 1E-3 2f 0.5F", [0.5, 0.5, 5.0, 1e3, 1e-3, 2.0, 0.5].map(Token::Float).to_vec()),
            ("1e999", vec![Token::Float(f64::INFINITY)]),
            ("'a\"b' \"a'b\"", vec![string(b"a\"b"), string(b"a'b")]),
            (r#""\a\b\f\n\r\t\v\\\'\"\?""#, vec![string(b"\x07\x08\x0c\n\r\t\x0b\\'\"?")]),
            (r#""\1\101\x4a\X4A\u00e9\U0001F600""#, vec![string("\u{1}AJJé😀".as_bytes())]),
            (r#""\ud83d\ude00""#, vec![string("😀".as_bytes())]),
            ("é-", vec![Token::Symbol('é'), Token::Symbol('-')]),
        ];
        for (text, expected) in cases {
            assert_eq!(tokens(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        for (text, offset, message) in [
            (" \"abc", 1, "the string is not closed with \""),
            ("'abc\\", 4, "invalid escape sequence in the string"),
            (r"'\q'", 1, "invalid escape sequence in the string"),
            (r"'\400'", 1, "invalid escape sequence in the string"),
            (r"'\uD800'", 1, "invalid escape sequence in the string"),
            (r"'\u12'", 1, "invalid escape sequence in the string"),
            (r"'\ud83dx'", 1, "invalid escape sequence in the string"),
            (r"'\ud83d\u0041'", 1, "invalid escape sequence in the string"),
            ("'two\nlines'", 0, "a string ends on the line where it starts; write \\n"),
            ("4name", 1, "a number and a name need a space between them"),
            ("0x1g", 3, "a number and a name need a space between them"),
            ("0x", 0, "\"0x\" must be followed by hexadecimal digits"),
            ("1e", 0, "\"e\" must be followed by the digits of an exponent"),
            ("089", 0, "numbers starting with 0 must be octal"),
            ("1.2.3", 3, "a number has at most one decimal point"),
        ] {
            let error = tokens(text).unwrap_err();
            assert_eq!((error.offset, error.message.as_str()), (offset, message), "{text}");
        }
    }
}
