//! Pages of other sites. A browser lets any page send a request with plain text to any server that it reaches, those of
//! this machine included; the page just cannot read the answer. To load a model, which may bring code, no answer has to be
//! read: what changes the server is refused to such pages.
//!
//! Browsers say where a request comes from (Fetch Metadata Request Headers, W3C, 2; RFC 6454, 7), and no page can make them say
//! otherwise. Programs that are no browsers say nothing.

use hyper::header::{HOST, HeaderMap, ORIGIN};

/// The text for a request that a page of another site sent.
pub(super) const FOREIGN: &str = "a page of another site may not change this server: its Origin is not the Host that was asked. \
                                  A proxy in front of the server has to pass the Host on, or name it as X-Forwarded-Host";

/// Whether a page of another site sent a request with these headers.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
        Some(b"same-origin" | b"none") => return false,
        Some(_) => return true,
        // Browsers send it where connections are encrypted or stay on the machine.
        None => {}
    }
    let Some(origin) = headers.get(ORIGIN) else { return false };
    // Of an origin that is none, such as that of a file, no host is known.
    let Some((scheme, origin)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else { return true };
    // Browsers leave out the port that a scheme has by itself.
    let usual = if scheme == "https" { ":443" } else { ":80" };
    // Every proxy adds the host that it was asked for behind those before.
    let hosts = headers.get_all(HOST).into_iter().chain(headers.get_all("x-forwarded-host"));
    let mut hosts = hosts.filter_map(|hosts| hosts.to_str().ok()).flat_map(|hosts| hosts.split(','));
    !hosts.any(|host| host.trim().strip_suffix(usual).unwrap_or(host.trim()).eq_ignore_ascii_case(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &str) -> HeaderMap {
        let line = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap())
        };
        lines.split('|').filter(|line| !line.is_empty()).map(line).collect()
    }

    #[test]
    fn pages_of_other_sites_are_told_from_all_else() {
        for own in [
            "",
            "host: a:8000",
            "host: a:8000|origin: http://a:8000",
            "host: A:8000|origin: http://a:8000",
            "host: a:8000|origin: http://b|sec-fetch-site: same-origin",
            "host: a:8000|sec-fetch-site: none",
            "host: inner:8000|origin: https://b|x-forwarded-host: b",
            "host: a:80|origin: http://a",
            "host: a:443|origin: https://a",
            "host: inner|origin: https://b|x-forwarded-host: b, proxy",
            "x-anything: http://b|host: a",
        ] {
            assert!(!is_foreign(&headers(own)), "{own}");
        }
        for foreign in [
            "host: a:8000|origin: http://b",
            "host: a:8000|origin: http://a:8001",
            "host: a:8000|origin: http://a",
            "host: a:8000|origin: null",
            "origin: http://a",
            "host: a:8000|origin: http://a:8000|sec-fetch-site: cross-site",
            "host: a:8000|sec-fetch-site: same-site",
            "host: a:8000|sec-fetch-site: something-new",
            "host: a|origin: http://b|x-forwarded-host: c",
            "host: a:443|origin: http://a",
        ] {
            assert!(is_foreign(&headers(foreign)), "{foreign}");
        }
    }
}
