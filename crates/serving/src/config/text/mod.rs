//! Protobuf's text format, as `config.pbtxt` is written: reading and printing.
//!
//! The reader accepts what protobuf's own reader accepts (a colon is optional before a message and
//! before a list of messages, lists may be written in brackets or repeated, `#` comments, adjacent
//! strings join, a field that is not repeated may be given once) and says where it stopped and what
//! is valid there. The work is driven by the descriptor, so the schema is written down once, in
//! `model_config.proto`.

mod lexer;
mod parser;
mod printer;

pub(super) use parser::parse_message;
pub(super) use printer::print_message;

/// What stands in a text for bytes that are not UTF-8: no character has this number, so no text has it of its own.
pub(crate) const NOT_UTF8: char = '\u{ffff}';

/// A text that is not a message: what is wrong and at which byte.
#[derive(Debug)]
pub(super) struct TextError {
    pub offset: usize,
    pub message: String,
}

impl TextError {
    fn new(offset: usize, message: impl Into<String>) -> Self {
        Self { offset, message: message.into() }
    }
}

/// Line and column of a byte offset, both from 1; columns count characters.
pub(super) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// A piece of the user's text for an error message, never longer than a line of a terminal.
fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let short: String = text.chars().take(CHARS_MAX).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_not_bytes() {
        let text = "a\n é b\n";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, text.find('b').unwrap()), (2, 4));
        assert_eq!(line_and_column(text, 4), (2, 2), "inside a character counts as its start");
        assert_eq!(line_and_column(text, 1000), (3, 1));
    }

    #[test]
    fn excerpts_are_short() {
        assert_eq!(excerpt("abc"), "abc");
        assert_eq!(excerpt(&"é".repeat(100)).chars().count(), 63);
    }
}
