//! What a listing of S3 or Azure Storage holds beside models, left out before anybody reads it.
//!
//! The client of these storages gives up a whole listing for one name that is no path, such as `models//x`, which programs
//! make of a slash too many. Below a model such a name is the model's fault, and only the model suffers from it
//! ([`tree`](crate::tree)). Directly in the repository it is nobody's, as any other object there.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use quick_xml::{Reader, escape::resolve_xml_entity, events::Event};

use crate::tree::check_name;

/// The mark of the order of bytes, in UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Which names are left out of listings.
#[derive(Debug, Clone)]
pub(crate) struct Listings {
    /// The repository as it was given, for the log.
    given: Arc<str>,
    /// What all its names begin with.
    prefix: Arc<str>,
    /// Whether the log has said so.
    told: Arc<AtomicBool>,
}

impl Listings {
    /// Listings of a repository in folder `prefix` of its bucket.
    pub fn new(given: &str, prefix: &str) -> Self {
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { given: given.into(), prefix: prefix.into(), told: Arc::default() }
    }

    /// Whether an address asks for a listing.
    pub fn is_one(query: &str) -> bool {
        query.split('&').any(|part| part == "list-type=2" || part == "comp=list")
    }

    /// Whether an answer to the request for a listing is one, and not the page of a proxy, or an error under another status: that
    /// must not be taken for a repository without models.
    pub fn holds_one(answer: &[u8]) -> bool {
        let mut reader = Reader::from_reader(answer.strip_prefix(MARK).unwrap_or(answer));
        loop {
            match reader.read_event() {
                Ok(Event::Start(tag) | Event::Empty(tag)) => {
                    return matches!(tag.local_name().as_ref(), b"ListBucketResult" | b"EnumerationResults");
                }
                Ok(Event::Eof) | Err(_) => return false,
                Ok(_) => {}
            }
        }
    }

    /// A listing without what is left out. What cannot be read stays as it is: who reads it then says what is wrong.
    pub fn clean(&self, listing: Vec<u8>) -> Vec<u8> {
        let Some(found) = self.impossible(&listing) else { return listing };
        let mut kept = Vec::with_capacity(listing.len());
        let mut from = 0;
        for Range { start, end } in found {
            kept.extend_from_slice(&listing[from..start]);
            from = end;
        }
        kept.extend_from_slice(&listing[from..]);
        kept
    }

    /// Where the objects and folders lie whose names begin with none that a model can have.
    fn impossible(&self, listing: &[u8]) -> Option<Vec<Range<usize>>> {
        // Azure's begin with a mark that the reader passes over without counting it.
        let mark = if listing.starts_with(MARK) { MARK.len() } else { 0 };
        let mut reader = Reader::from_reader(&listing[mark..]);
        let position = |reader: &Reader<&[u8]>| Some(mark + usize::try_from(reader.buffer_position()).ok()?);
        let mut found = Vec::new();
        // Where the current object or folder begins, and its name so far.
        let mut entry: Option<(usize, String)> = None;
        let mut is_name = false;
        loop {
            let start = position(&reader)?;
            match reader.read_event().ok()? {
                Event::Start(tag) => match (tag.local_name().as_ref(), &entry) {
                    (b"Contents" | b"CommonPrefixes" | b"Blob" | b"BlobPrefix", None) => {
                        entry = Some((start, String::new()));
                    }
                    (b"Key" | b"Prefix" | b"Name", Some(_)) => is_name = true,
                    _ => {}
                },
                Event::Text(text) if is_name => entry.as_mut()?.1.push_str(&text.decode().ok()?),
                Event::GeneralRef(reference) if is_name => {
                    let name = &mut entry.as_mut()?.1;
                    match reference.resolve_char_ref().ok()? {
                        Some(char) => name.push(char),
                        None => name.push_str(resolve_xml_entity(&reference.decode().ok()?)?),
                    }
                }
                Event::End(tag) => match tag.local_name().as_ref() {
                    b"Key" | b"Prefix" | b"Name" => is_name = false,
                    b"Contents" | b"CommonPrefixes" | b"Blob" | b"BlobPrefix" => {
                        let (start, name) = entry.take()?;
                        if self.is_impossible(&name) {
                            found.push(start..position(&reader)?);
                        }
                    }
                    _ => {}
                },
                Event::Eof => return Some(found),
                _ => {}
            }
        }
    }

    fn is_impossible(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(&*self.prefix).filter(|name| !name.is_empty()) else { return false };
        let first = name.split('/').next().unwrap_or_default();
        let Err(why) = check_name(first) else { return false };
        if !self.told.swap(true, Relaxed) {
            tracing::warn!(
                "{}: object '{}{}' {why}: it belongs to no model, and is left out, as all such ones are",
                self.given,
                self.prefix.escape_debug(),
                name.escape_debug()
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cleaned(prefix: &str, listing: &str) -> String {
        String::from_utf8(Listings::new("s3://b", prefix).clean(listing.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn names_that_begin_with_none_are_left_out() {
        let entry = |name: &str| format!("<Contents><Size>7</Size><Key>{name}</Key></Contents>");
        let folder = |name: &str| format!("<CommonPrefixes>\n<Prefix>{name}</Prefix></CommonPrefixes>");
        let listing =
            |entries: &str| format!("<?xml version=\"1.0\"?><R><Prefix>m/</Prefix>{entries}<KeyCount>9</KeyCount></R>");
        let good = [entry("m/a/1/x"), entry("m/a//x"), folder("m/a&amp;b/"), entry("m/"), entry("elsewhere//x")];
        let bad =
            [entry("m//x"), folder("m//"), entry("m/../x"), folder("m/./"), entry("m/&#x1;/x"), entry("m/a&#10;b")];
        let mixed: String = good.iter().zip(&bad).flat_map(|(good, bad)| [bad.as_str(), good]).collect();
        assert_eq!(cleaned("m", &listing(&(mixed + &bad[5]))), listing(&good.concat()));

        let whole = [entry("/x"), entry("a/x")];
        assert_eq!(cleaned("", &listing(&whole.concat())), listing(&whole[1]));
    }

    #[test]
    fn azure_has_other_words() {
        let blob = "<Blob><Name>m//x</Name><Properties><Etag>1</Etag></Properties></Blob>";
        let folder = "<BlobPrefix><Name>m//</Name></BlobPrefix>";
        let kept = "<Blob><Name>m/a/1/x</Name></Blob>";
        let listing = |blobs: &str| format!("\u{feff}<E ContainerName=\"c\"><Blobs>{blobs}</Blobs><NextMarker /></E>");
        assert_eq!(cleaned("m", &listing(&format!("{blob}{kept}{folder}"))), listing(kept));
    }

    #[test]
    fn what_is_no_listing_stays() {
        for text in
            ["", "no <Contents>", "<R><Contents><Key>m//x</Key></R>", "<R><Contents><Key>m//&x;</Key></Contents></R>"]
        {
            assert_eq!(cleaned("m", text), text);
        }
    }

    #[test]
    fn a_page_or_an_error_is_no_listing() {
        for listing in ["<?xml version='1.0'?>\n<ListBucketResult xmlns='a'/>", "\u{feff}<EnumerationResults><Blobs/>"]
        {
            assert!(Listings::holds_one(listing.as_bytes()), "{listing}");
        }
        for other in
            ["", "ok", "<html>ListBucketResult</html>", "<Error><Code>SlowDown</Code></Error>", "{}", "<", "<!-- x -->"]
        {
            assert!(!Listings::holds_one(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn listings_are_known_by_what_is_asked() {
        assert!(Listings::is_one("list-type=2&prefix=m%2F") && Listings::is_one("restype=container&comp=list"));
        assert!(!Listings::is_one("comp=blocklist") && !Listings::is_one(""));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in "(<|>|/|Contents|Key|Name|Blob|m//|&amp;|&#1;|&|x| |\"|\\[CDATA\\[|!--)*") {
            let listings = Listings::new("s3://b", "m");
            let once = listings.clean(bytes.clone().into_bytes());
            prop_assert!(once.len() <= bytes.len());
            prop_assert_eq!(listings.clean(once.clone()), once);
        }
    }
}
