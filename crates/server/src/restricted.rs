//! Groups of calls that only those may use who send a header with a value.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// What a protocol calls things, and what of a header it can transport.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protocol {
    /// The flag.
    pub flag: &'static str,
    /// Stands before the header's name.
    pub prefix: &'static str,
    /// What a group is called.
    pub kind: &'static str,
    /// Whether headers are metadata of gRPC, which allows less.
    pub is_grpc: bool,
}

pub(crate) const HTTP: Protocol = Protocol { flag: "http-restricted-api", prefix: "", kind: "api", is_grpc: false };
pub(crate) const GRPC: Protocol =
    Protocol { flag: "grpc-restricted-protocol", prefix: "triton-grpc-protocol-", kind: "protocol", is_grpc: true };

impl Protocol {
    /// The key of a group, if a client can send it.
    fn key(self, header: &str, value: &str) -> Result<Key, String> {
        let Self { flag, prefix, is_grpc, .. } = self;
        let header = format!("{prefix}{header}");
        let never = |what: &str| Err(format!("--{flag}: no client can send the header '{header}' {what}\n"));
        let is_of_grpc = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if HeaderName::from_bytes(header.as_bytes()).is_err() || (is_grpc && !header.bytes().all(is_of_grpc)) {
            return never("since its name has characters that names of headers do not have");
        }
        if is_grpc && header.to_ascii_lowercase().ends_with("-bin") {
            return never("with this value, since gRPC encodes the values of names that end with '-bin'");
        }
        // The value is a secret: it is not printed.
        if HeaderValue::from_bytes(value.as_bytes()).is_err()
            || (is_grpc && !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
        {
            return never("with this value, which has characters that values of headers do not have");
        }
        if value.trim_matches([' ', '\t']) != value {
            return never("with this value, since blanks around values are removed on the way");
        }
        Ok(Key { header, value: value.to_owned() })
    }
}

/// What can be restricted, as the flags name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
    /// What the page at `/ui` shows; a group of our own.
    Ui,
}

/// All groups with their names.
const GROUPS: [(&str, Group); 10] = [
    ("health", Group::Health),
    ("metadata", Group::Metadata),
    ("inference", Group::Inference),
    ("shared-memory", Group::SharedMemory),
    ("model-config", Group::ModelConfig),
    ("model-repository", Group::ModelRepository),
    ("statistics", Group::Statistics),
    ("trace", Group::Trace),
    ("logging", Group::Logging),
    ("ui", Group::Ui),
];

/// What a request must have.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    header: String,
    value: String,
}

/// The value is a secret.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("header", &self.header).finish_non_exhaustive()
    }
}

/// The keys of one protocol's groups; a group without one is open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restrictions {
    keys: [Option<Key>; GROUPS.len()],
}

impl Restrictions {
    /// Takes what a flag says: `<group>[,<group>...]:<header>=<value>`.
    pub fn add(&mut self, protocol: Protocol, text: &str) -> Result<(), String> {
        let Protocol { flag, kind, .. } = protocol;
        let parts = text.split_once(':').and_then(|(groups, rest)| Some((groups, rest.split_once('=')?)));
        let (groups, header, value) = match parts {
            Some((groups, (header, value))) if ![groups, header, value].contains(&"") => (groups, header, value),
            _ => return Err(format!("--{flag} option format is '<config name>:<setting>=<value>'. Got {text}\n")),
        };
        for name in groups.split(',') {
            let is_known = |group: Group| !protocol.is_grpc || group != Group::Ui;
            let found = GROUPS.iter().find(|(known, group)| *known == name && is_known(*group));
            let &(_, group) = found.ok_or_else(|| format!("unknown restricted {kind} '{name}' "))?;
            let key = &mut self.keys[group as usize];
            if key.is_some() {
                return Err(format!("restricted {kind} '{name}' can not be specified in multiple config groups"));
            }
            *key = Some(protocol.key(header, value)?);
        }
        Ok(())
    }

    /// The header that `group` asks for, where `headers` do not have it with the right value.
    pub fn missing(&self, group: Group, headers: &HeaderMap) -> Option<&str> {
        let key = self.keys[group as usize].as_ref()?;
        let given = headers.get(&key.header).map(|value| value.as_bytes());
        match given {
            Some(given) if is_same(given, key.value.as_bytes()) => None,
            _ => Some(&key.header),
        }
    }
}

/// Compares every byte, so that the time it takes does not tell how many are right.
fn is_same(given: &[u8], expected: &[u8]) -> bool {
    given.len() == expected.len() && given.iter().zip(expected).fold(0, |found, (a, b)| found | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restrictions(texts: &[&str]) -> Result<Restrictions, String> {
        let mut all = Restrictions::default();
        texts.iter().try_for_each(|text| all.add(HTTP, text))?;
        Ok(all)
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_group_is_open_to_those_with_its_key() {
        let all = restrictions(&["inference,metadata:Infer-Key=a=b", "model-repository:admin=x"]).unwrap();
        for (group, sent, missing) in [
            (Group::Inference, &[][..], Some("Infer-Key")),
            (Group::Inference, &[("infer-key", "a=c")], Some("Infer-Key")),
            (Group::Inference, &[("infer-key", "a=b ")], Some("Infer-Key")),
            (Group::Metadata, &[("admin", "x")], Some("Infer-Key")),
            (Group::Metadata, &[("infer-key", "a=b")], None),
            (Group::ModelRepository, &[("infer-key", "a=b")], Some("admin")),
            (Group::ModelRepository, &[("admin", "x")], None),
            (Group::Statistics, &[], None),
        ] {
            assert_eq!(all.missing(group, &headers(sent)), missing, "{group:?} {sent:?}");
        }
    }

    #[test]
    fn every_group_has_its_name_and_place() {
        for (place, (name, group)) in GROUPS.into_iter().enumerate() {
            assert_eq!(group as usize, place);
            let all = restrictions(&[&format!("{name}:k=v")]).unwrap();
            assert_eq!(all.missing(group, &HeaderMap::new()), Some("k"));
        }
    }

    #[test]
    fn wrong_texts() {
        let wrong = |texts: &[&str]| restrictions(texts).unwrap_err();
        assert_eq!(wrong(&["model-reposit,health:k=v"]), "unknown restricted api 'model-reposit' ");
        assert_eq!(
            wrong(&["model-repository,health:k1=v1", "metadata,health:k2=v2"]),
            "restricted api 'health' can not be specified in multiple config groups"
        );
        let of_grpc = Restrictions::default().add(GRPC, "health,ui:k=v").unwrap_err();
        assert_eq!(of_grpc, "unknown restricted protocol 'ui' ", "the page speaks HTTP");
        for text in ["health", "health:k", "health:=v", "health:k=", ":k=v", "health=k:v"] {
            let expected = "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got ";
            assert!(wrong(&[text]).starts_with(expected), "{text}");
        }
    }

    #[test]
    fn what_no_client_can_send_is_refused() {
        let add = |protocol, text: &str| Restrictions::default().add(protocol, text);
        for (protocol, key, reason) in [
            (HTTP, "my key=v", "its name has characters"),
            (HTTP, "schlüssel=v", "its name has characters"),
            (HTTP, "key= sesame", "blanks around values"),
            (HTTP, "key=sesame\t", "blanks around values"),
            (HTTP, "key=sesame\nsesame", "characters that values of headers do not have"),
            (HTTP, "key=sesame\u{7f}", "characters that values of headers do not have"),
            (GRPC, "key!=v", "its name has characters"),
            (GRPC, "key-bin=v", "end with '-bin'"),
            (GRPC, "key=sesamö", "characters that values of headers do not have"),
        ] {
            let error = add(protocol, &format!("health:{key}")).unwrap_err();
            assert!(error.contains(reason) && error.contains(protocol.flag), "{key}: {error}");
            assert!(!error.contains("sesam"), "the value is a secret: {error}");
        }
        for (protocol, key) in
            [(HTTP, "key!=v"), (HTTP, "a-bin=v w"), (HTTP, "Key=a=b"), (HTTP, "key=passwört"), (GRPC, "a.b_c=v w")]
        {
            assert_eq!(add(protocol, &format!("health:{key}")), Ok(()), "{key}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let all = restrictions(&["health:header=secret"]).unwrap();
        assert!(!format!("{all:?}").contains("secret"));
    }
}
