//! The HTTP protocol.
//!
//! Hyper's connection hands each request to [`handle`], which finds the route by comparing strings and
//! answers. Nothing lies between: what a request costs is what is written here.

mod body;
pub(crate) mod connection;
mod generate;
mod headers;
mod infer;
mod metadata;
mod origin;
mod reply;
mod route;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use halimede_serving::Error;
use hyper::{Method, Request, Response, body::Incoming, header::EXPECT, http::request::Parts};

use self::{
    body::{Arriving, Refusal},
    route::{Action, Call, Control, Route},
};
pub(crate) use self::{
    body::{Body, share},
    reply::{ContentType, Reply},
};
use crate::{
    extensions::{logging, repository, shared_memory, statistics, trace},
    listen::Stop,
    services::{Services, model_version},
    tls::Stream,
    ui,
};

/// Serves the requests of one connection until it ends; after [`Stop`], to the end of the current one.
pub(crate) async fn serve_connection(stream: Stream, services: Arc<Services>, stop: Stop) {
    connection::serve(stream, stop, |request| handle(services.clone(), request)).await;
}

/// Answers one request, once its body has come: a client that does not read before it has sent everything would find a broken
/// connection instead of an error. One that asks first whether it should send is told at once.
async fn handle(services: Arc<Services>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let mut body = Arriving::new(body);
    let response = hear(services, &parts, &mut body).await;
    match body.finish(parts.headers.contains_key(EXPECT)).await {
        true => response,
        false => reply::closing(response),
    }
}

/// Answers one request, of whose body a part may be left.
async fn hear(services: Arc<Services>, parts: &Parts, body: &mut Arriving) -> Response<Body> {
    let path = parts.uri.path();
    let Some(route) = Route::parse(path).filter(|route| services.ui.is_on || !route.is_page()) else {
        return Reply::failed(404, "Not Found").into_response();
    };
    let meant = route.model().and_then(|name| repository::meant(name, || services.server.model_states()));
    let route = meant.as_deref().map_or(route, |name| route.of_model(name));
    let restrictions = &services.http_restrictions;
    if let Some(header) = route.groups().iter().find_map(|&group| restrictions.missing(group, &parts.headers)) {
        let text = format!("This API is restricted, expecting header '{header}'");
        return Reply::failed(403, &text).into_response();
    }
    if !route.allows(&parts.method) {
        return Reply::failed(405, "Method Not Allowed").of_type(route.content_type()).into_response();
    }
    if route.is_change(&parts.method) && origin::is_foreign(&parts.headers) {
        return Reply::failed(403, origin::FOREIGN).into_response();
    }
    tracing::debug!("HTTP request: {} {path}", parts.method);
    match route {
        Route::Model { name, version, call: Call::Infer } => infer::handle(&services, parts, body, name, version).await,
        _ => {
            let input_bytes_max = services.http_input_bytes_max;
            let body = match body.read(body::Kind::Json, input_bytes_max).await {
                Ok(body) => body,
                Err(refusal) => return refused(refusal),
            };
            if let Some((name, version, mode)) = route.generates() {
                return generate::respond(&services, &parts.headers, body, name, version, mode).await;
            }
            let content_type = route.content_type();
            match answer(services.clone(), route, parts, body).await {
                Ok(reply) if matches!(route, Route::Page { .. }) => reply.into_response(),
                Ok(reply) => reply.of_type(content_type).into_response(),
                Err(error) => Reply::error(&error).of_type(content_type).into_response(),
            }
        }
    }
}

/// Answers a request whose body is there already: what [`handle`] does without a connection.
pub(crate) async fn respond(services: &Arc<Services>, parts: &Parts, body: Bytes) -> Response<Body> {
    let Some(route) = Route::parse(parts.uri.path()).filter(|route| route.allows(&parts.method)) else {
        return Reply::failed(404, "Not Found").into_response();
    };
    if let Route::Model { name, version, call: Call::Infer } = route {
        return infer::respond(services, &parts.headers, body, name, version).await;
    }
    if let Some((name, version, mode)) = route.generates() {
        return generate::respond(services, &parts.headers, body, name, version, mode).await;
    }
    match answer(services.clone(), route, parts, body).await {
        Ok(reply) => reply.into_response(),
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// The answer to a body that was not read to its end.
fn refused(refusal: Refusal) -> Response<Body> {
    let reply = match refusal {
        Refusal::TooLarge(error) | Refusal::TooManyChunks(error) => Reply::error(&error),
        Refusal::Broken => Reply::failed(400, "the connection ended before the request did"),
    };
    reply.of_type(ContentType::Json).into_response()
}

/// Answers anything but inference.
async fn answer(services: Arc<Services>, route: Route<'_>, parts: &Parts, body: Bytes) -> Result<Reply, Error> {
    let is_post = parts.method == Method::POST;
    let server = &services.server;
    match route {
        Route::Live => Ok(health(server.is_live())),
        Route::Ready => Ok(health(server.is_ready())),
        Route::ServerMetadata => Ok(Reply::ok(metadata::server(&server.metadata()))),
        Route::AllStatistics => statistics::http(server, "", "").map(Reply::ok),
        Route::Logging => logging::http(&services.logging, is_post.then_some(&body)).map(Reply::ok),
        Route::Trace => trace::http(&services, None, is_post.then_some(&body)).map(Reply::ok),
        Route::Model { name, version, call } => match call {
            Call::Metadata => {
                let found = server.model_metadata(name, model_version(version)?)?;
                Ok(Reply::ok(metadata::model(&found)))
            }
            Call::Ready => {
                // Unknown is not ready: newer versions of Triton answer 404.
                let is_ready = model_version(version).and_then(|version| server.model_ready(name, version));
                match is_ready {
                    Ok(true) => Ok(Reply::empty()),
                    _ => Ok(Reply::failed(400, "Model version not ready")),
                }
            }
            Call::Config => {
                let config = server.model_config(name, model_version(version)?)?;
                Ok(Reply::ok(halimede_serving::config::to_json(&config).into_bytes()))
            }
            Call::Statistics => statistics::http(server, name, version).map(Reply::ok),
            Call::Trace => trace::http(&services, Some(name), is_post.then_some(&body)).map(Reply::ok),
            Call::Infer | Call::Generate | Call::GenerateStream => Err(Error::internal("inference has its own way")),
        },
        Route::Page { file: None } => Ok(ui::redirect()),
        Route::Page { file: Some(name) } => Ok(ui::file(name).unwrap_or_else(|| Reply::failed(404, "Not Found"))),
        Route::PageState => ui::state(services).await.map(Reply::ok),
        Route::Index => {
            let looks = services.rooms.looks.clone();
            looks.run(move || repository::http_index(&services.server, &body)).await.map(Reply::ok)
        }
        Route::Control { repository, model, control } => {
            if !repository.is_empty() {
                return Err(Error::unsupported("'repository_name' specification is not supported"));
            }
            let model = model.to_owned();
            let changes = services.rooms.changes.clone();
            let change = move || match control {
                Control::Load => repository::http_load(&services.server, &model, &body),
                Control::Unload => repository::http_unload(&services.server, &model, &body),
            };
            changes.run(change).await?;
            Ok(Reply::empty())
        }
        Route::SystemSharedMemory { region, action } => match action {
            Action::Status => shared_memory::http_status(&services.regions, region).map(Reply::ok),
            Action::Register => shared_memory::http_register(&services.regions, region, &body).map(|()| Reply::empty()),
            Action::Unregister => shared_memory::unregister(&services.regions, region).map(|()| Reply::empty()),
        },
        Route::CudaSharedMemory { region, action } => match action {
            Action::Status => shared_memory::http_cuda_status(region).map(Reply::ok),
            Action::Register => shared_memory::http_register_cuda(region, &body).map(|()| Reply::empty()),
            Action::Unregister => Ok(Reply::empty()),
        },
    }
}

fn health(is_good: bool) -> Reply {
    if is_good { Reply::empty() } else { Reply::bare(400) }
}
