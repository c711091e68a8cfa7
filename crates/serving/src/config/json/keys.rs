//! Names of fields without quotes, which protobuf's reader of JSON takes.

use std::borrow::Cow;

/// The text with quotes around every name in front of a colon.
pub(super) fn with_quotes(text: &str) -> Cow<'_, str> {
    let mut quoted = String::new();
    let mut done = 0;
    let mut rest = text.char_indices().peekable();
    while let Some((start, char)) = rest.next() {
        match char {
            '"' => {
                while let Some((_, inside)) = rest.next() {
                    match inside {
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                while rest.next_if(|(_, char)| char.is_ascii_alphanumeric() || *char == '_').is_some() {}
                let end = rest.peek().map_or(text.len(), |(end, _)| *end);
                if text[end..].trim_start().starts_with(':') {
                    quoted.push_str(&text[done..start]);
                    quoted.extend(["\"", &text[start..end], "\""]);
                    done = end;
                }
            }
            _ => {}
        }
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    quoted.push_str(&text[done..]);
    Cow::Owned(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_get_quotes() {
        for (text, expected) in [
            (
                r#"{ direct: {"a" : true, b_1 :null}, "c: d": "\" e: f" }"#,
                r#"{ "direct": {"a" : true, "b_1" :null}, "c: d": "\" e: f" }"#,
            ),
            (r#"[1e3, "ä: ö", null]"#, r#"[1e3, "ä: ö", null]"#),
            ("a", "a"),
            ("é:", "é:"),
        ] {
            assert_eq!(with_quotes(text), expected);
        }
    }
}
