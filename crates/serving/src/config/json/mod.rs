//! The JSON form of a configuration: read from the override of a load request, written for
//! `GET /v2/models/{model}/config`.

mod keys;
mod reader;
mod writer;

pub(super) use reader::read_message;
pub(super) use writer::write_message;
