//! What OpenTelemetry's variables of the environment say beside the flags: lists `name=value,...` whose values are
//! percent-encoded. One that is malformed counts as not set, as the specification says.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};

use crate::percent;

const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const SERVICE: &str = "OTEL_SERVICE_NAME";
/// Of all signals, and of traces, which win.
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"];

/// Headers that belong to the connection and to the message.
const OURS: [HeaderName; 7] = [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, TRANSFER_ENCODING, UPGRADE];

/// What the variables say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// What the server says of itself; of two with one name the later wins.
    pub resource: Vec<(String, String)>,
    /// What goes along with each message. Values may be secrets: nobody prints them.
    pub headers: HeaderMap,
    /// Variables that are malformed, and how.
    pub wrong: Vec<(&'static str, &'static str)>,
}

impl Environment {
    /// Reads the variables; `variable` gives one, and `None` within for one that is no text.
    pub fn read(variable: impl Fn(&'static str) -> Option<Option<String>>) -> Self {
        let mut all = Self::default();
        let text = |wrong: &mut Vec<_>, name| match variable(name)? {
            Some(text) => Some(text),
            None => {
                wrong.push((name, "it is no UTF-8"));
                None
            }
        };
        match text(&mut all.wrong, RESOURCE).as_deref().map(attributes) {
            Some(Ok(attributes)) => all.resource = attributes,
            Some(Err(reason)) => all.wrong.push((RESOURCE, reason)),
            None => {}
        }
        if let Some(name) = text(&mut all.wrong, SERVICE).filter(|name| !name.is_empty()) {
            all.resource.push(("service.name".to_owned(), name));
        }
        for name in HEADERS {
            match text(&mut all.wrong, name).as_deref().map(headers) {
                Some(Ok(headers)) => headers.into_iter().for_each(|(name, value)| {
                    all.headers.insert(name, value);
                }),
                Some(Err(reason)) => all.wrong.push((name, reason)),
                None => {}
            }
        }
        all
    }
}

fn attributes(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let attribute = |member| {
        let (name, value): (&str, Vec<u8>) = member?;
        Ok((name.to_owned(), String::from_utf8(value).map_err(|_| "a value is no UTF-8")?))
    };
    members(text).map(attribute).collect()
}

fn headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, &'static str> {
    let header = |member| {
        let (name, value): (&str, Vec<u8>) = member?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a name is none of a header")?;
        if OURS.contains(&name) || name.as_str().starts_with("grpc-") {
            return Err("it has a header that is the server's to set");
        }
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| "a value is none of a header")?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    members(text).map(header).collect()
}

/// The members of a list, their values decoded.
fn members(text: &str) -> impl Iterator<Item = Result<(&str, Vec<u8>), &'static str>> {
    text.split(',').map(str::trim).filter(|member| !member.is_empty()).map(|member| {
        let (name, value) = member.split_once('=').ok_or("a part of it is not of the form name=value")?;
        let name = name.trim();
        if name.is_empty() {
            return Err("a name is empty");
        }
        match percent::decoded(value.trim()) {
            (value, true) => Ok((name, value)),
            _ => Err("a '%' is not followed by two hexadecimal digits, as in '%25' for itself"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&'static str, &str)]) -> Environment {
        Environment::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| Some((*value).to_owned()))
        })
    }

    #[test]
    fn what_the_variables_say() {
        let all = read(&[
            (RESOURCE, "deployment.environment=prod, a = b%20c%2C%c3%bc ,,empty="),
            (SERVICE, "mine"),
            (HEADERS[0], "Authorization=Bearer%20xyz,x-k=1=2"),
            (HEADERS[1], "x-k=3"),
        ]);
        let resource = [("deployment.environment", "prod"), ("a", "b c,ü"), ("empty", ""), ("service.name", "mine")];
        assert_eq!(all.resource, resource.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(all.headers.len(), 2);
        assert!(all.headers["authorization"] == "Bearer xyz" && all.headers["x-k"] == "3");
        assert_eq!(all.wrong, []);
        let printed = format!("{all:?}");
        assert!(!printed.contains("xyz") && printed.contains("authorization"), "{printed}");
        assert_eq!(read(&[(SERVICE, ""), (RESOURCE, "")]), Environment::default());
    }

    #[test]
    fn a_variable_that_is_malformed_counts_as_not_set() {
        for wrong in ["a", "=b", "good=1,a", "a=%", "a=%2", "a=%2g", "a=%ff"] {
            let all = read(&[(RESOURCE, wrong), (SERVICE, "mine")]);
            assert_eq!((all.resource.len(), all.wrong.len(), all.wrong[0].0), (1, 1, RESOURCE), "{wrong}");
        }
        for wrong in ["a", "=b", "a b=1", "ö=1", "a=%zz", "a=%0a", "Content-Type=x", "te=x", "grpc-timeout=1S"] {
            let all = read(&[(HEADERS[0], &format!("x-k=1,{wrong}")), (HEADERS[1], "x-t=1")]);
            assert_eq!((all.headers.len(), all.wrong.len(), all.wrong[0].0), (1, 1, HEADERS[0]), "{wrong}");
            assert!(all.headers.contains_key("x-t"));
        }
        let no_texts = Environment::read(|_| Some(None));
        assert_eq!(
            no_texts.wrong.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            [RESOURCE, SERVICE, HEADERS[0], HEADERS[1]]
        );
    }
}
