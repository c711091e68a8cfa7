//! The page at `/ui`: files that every browser may have, and the state of the server, which only those get who may ask
//! for its parts.

mod state;

use std::sync::{Arc, OnceLock};

use halimede_compute_cpu::MatrixUnits;
use halimede_serving::Error;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

use crate::{
    http::{ContentType, Reply},
    restricted::Group,
    services::Services,
};

/// A file of the page: its name behind `/ui/`, its type and its text.
type File = (&'static str, ContentType, &'static str);

/// All files of the page. They hold nothing of the server.
const FILES: [File; 10] = [
    ("", ContentType::Html, include_str!("../../ui/index.html")),
    ("style.css", ContentType::Css, include_str!("../../ui/style.css")),
    ("app.js", ContentType::Script, include_str!("../../ui/app.js")),
    ("charts.js", ContentType::Script, include_str!("../../ui/charts.js")),
    ("elements.js", ContentType::Script, include_str!("../../ui/elements.js")),
    ("machine.js", ContentType::Script, include_str!("../../ui/machine.js")),
    ("models.js", ContentType::Script, include_str!("../../ui/models.js")),
    ("rates.js", ContentType::Script, include_str!("../../ui/rates.js")),
    ("request.js", ContentType::Script, include_str!("../../ui/request.js")),
    ("tensors.js", ContentType::Script, include_str!("../../ui/tensors.js")),
];

/// What browsers may do with the files: nothing comes from elsewhere, nothing goes elsewhere, no page frames this one.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    // Another version of the server has other files under the same names.
    (CACHE_CONTROL, "no-cache"),
];

/// What the state tells of; each may be restricted.
pub(crate) const STATE_GROUPS: [Group; 4] = [Group::Ui, Group::ModelRepository, Group::Metadata, Group::Statistics];

/// What the page shows of the machine, found out when somebody first looks.
#[derive(Debug, Default)]
pub(crate) struct Ui {
    /// Whether there is a page.
    pub is_on: bool,
    /// Those that models use.
    pub matrix: MatrixUnits,
    units: OnceLock<Vec<state::Unit>>,
}

impl Ui {
    pub fn new(is_on: bool, matrix: MatrixUnits) -> Self {
        Self { is_on, matrix, units: OnceLock::new() }
    }
}

/// The file behind `/ui/`; `None` where there is none of that name.
pub(crate) fn file(name: &str) -> Option<Reply> {
    let (_, content_type, text) = FILES.into_iter().find(|(known, ..)| *known == name)?;
    let reply = Reply::ok(text.into()).of_type(content_type);
    Some(HEADERS.into_iter().fold(reply, |reply, (name, value)| reply.with(name, HeaderValue::from_static(value))))
}

/// Sends a browser from `/ui` to `/ui/`, where the page's files lie beside it.
pub(crate) fn redirect() -> Reply {
    Reply::bare(307).with(LOCATION, HeaderValue::from_static("ui/"))
}

/// The state of the server as the page reads it.
pub(crate) async fn state(services: Arc<Services>) -> Result<Vec<u8>, Error> {
    let looks = services.rooms.looks.clone();
    let look = move || {
        let units = services.ui.units.get_or_init(|| state::units(&services.ui.matrix));
        let state = state::State::new(&services.server, units, services.http_body_bytes_max)?;
        serde_json::to_vec(&state).map_err(|error| Error::internal(format!("the state cannot be written: {error}")))
    };
    looks.run(look).await
}
