use hyper::{
    Method,
    header::{HeaderMap, HeaderValue},
};

use super::{
    headers::{Encoding, INFERENCE_HEADER_LENGTH, accepted_encoding, content_encoding, inference_header_length},
    route::{Action, Call, Control, Route},
};

fn model(name: &'static str, version: &'static str, call: Call) -> Option<Route<'static>> {
    Some(Route::Model { name, version, call })
}

#[test]
fn routes_match_whole_paths() {
    for (path, expected) in [
        ("/v2", Some(Route::ServerMetadata)),
        ("/v2/", None),
        ("/v2/health/live", Some(Route::Live)),
        ("/v2/health/live/", None),
        ("/v2/models", None),
        ("/v2/models/", None),
        ("/v2/models/stats", Some(Route::AllStatistics)),
        ("/v2/models/m", model("m", "", Call::Metadata)),
        ("/v2/models/m/", None),
        ("/v2/models/m/infer", model("m", "", Call::Infer)),
        ("/v2/models/m/versions/12", model("m", "12", Call::Metadata)),
        ("/v2/models/m/versions/12/infer", model("m", "12", Call::Infer)),
        ("/v2/models/m/versions/", None),
        ("/v2/models/m/versions/x", None),
        ("/v2/models/m/versions/-1", None),
        ("/v2/models/m/versions//infer", None),
        ("/v2/models/versions/versions/2/ready", model("versions", "2", Call::Ready)),
        ("/v2/models/m/trace/setting", model("m", "", Call::Trace)),
        ("/v2/models/m/versions/1/trace/setting", None),
        ("/v2/models/m/infer/x", None),
        ("/v2/repository/index", Some(Route::Index)),
        ("/v2/repository/r/index", Some(Route::Index)),
        ("/v2/repository/models/m/load", Some(Route::Control { repository: "", model: "m", control: Control::Load })),
        (
            "/v2/repository/r/models/m/unload",
            Some(Route::Control { repository: "r", model: "m", control: Control::Unload }),
        ),
        ("/v2/repository/models//load", None),
        ("/v2/systemsharedmemory/status", Some(Route::SystemSharedMemory { region: "", action: Action::Status })),
        (
            "/v2/systemsharedmemory/region/r/register",
            Some(Route::SystemSharedMemory { region: "r", action: Action::Register }),
        ),
        ("/v2/systemsharedmemory/region//register", None),
        ("/v2/cudasharedmemory/unregister", Some(Route::CudaSharedMemory { region: "", action: Action::Unregister })),
        ("/metrics", None),
        ("/ui", Some(Route::Page { file: None })),
        ("/ui/", Some(Route::Page { file: Some("") })),
        ("/ui/app.js", Some(Route::Page { file: Some("app.js") })),
        ("/ui/state", Some(Route::PageState)),
        ("/uix", None),
    ] {
        assert_eq!(Route::parse(path), expected, "{path}");
    }
}

#[test]
fn methods() {
    for (path, get, post) in [
        ("/v2", true, false),
        ("/v2/models/m/infer", false, true),
        ("/v2/logging", true, true),
        ("/v2/models/m/trace/setting", true, true),
        ("/v2/repository/index", false, true),
        ("/v2/systemsharedmemory/status", true, false),
        ("/v2/systemsharedmemory/unregister", false, true),
    ] {
        let route = Route::parse(path).unwrap();
        assert_eq!((route.allows(&Method::GET), route.allows(&Method::POST)), (get, post), "{path}");
        assert!(!route.allows(&Method::HEAD) && !route.allows(&Method::PUT));
    }
}

fn headers(name: impl hyper::header::IntoHeaderName, value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_static(value));
    headers
}

#[test]
fn encodings() {
    for (accepted, expected) in [
        ("gzip", Encoding::Gzip),
        ("deflate, gzip", Encoding::Deflate),
        ("gzip;q=0.5, deflate;q=0.8", Encoding::Deflate),
        ("gzip;q=x, deflate;q=0.1", Encoding::Deflate),
        ("identity;q=0.9, gzip;q=0.5", Encoding::Identity),
        ("br, *", Encoding::Identity),
        ("gzip;q=0", Encoding::Identity),
    ] {
        assert_eq!(accepted_encoding(&headers("accept-encoding", accepted)), expected, "{accepted}");
    }
    assert_eq!(content_encoding(&HeaderMap::new()).unwrap(), Encoding::Identity);
    assert_eq!(content_encoding(&headers("content-encoding", "gzip")).unwrap(), Encoding::Gzip);
    assert!(content_encoding(&headers("content-encoding", "br")).is_err());
}

#[test]
fn length_of_the_inference_header() {
    let length = |value, body| inference_header_length(&headers(INFERENCE_HEADER_LENGTH, value), body);
    assert_eq!(inference_header_length(&HeaderMap::new(), 7).unwrap(), 7);
    assert_eq!((length("5", 7).unwrap(), length(" 07x", 7).unwrap(), length("abc", 7).unwrap()), (5, 7, 0));
    let error = length("-5", 282).unwrap_err().message;
    assert_eq!(error, "inference header size should be in range (0, 282), got: -5");
    assert!(length("8", 7).is_err());
}
