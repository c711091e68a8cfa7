//! HTTP, gRPC, metrics and the command line.
//!
//! A request's way: `listen` accepts a connection, `http` or `grpc` decodes a request and gives it to
//! [`halimede_serving::Server`], whose answer they encode. What both protocols have of an extension lies
//! together in `extensions`.

#![forbid(unsafe_code)]

mod answer;
mod cache;
pub mod cli;
mod cloud;
mod commands;
mod event_loops;
mod extensions;
mod flags;
pub mod fuzzing;
mod grpc;
mod http;
mod idle;
mod json;
mod listen;
mod logging;
mod memory;
mod metrics;
mod percent;
mod restricted;
mod rooms;
mod services;
mod shared_memory;
mod source;
mod summary;
mod table;
mod tls;
mod traces;
mod tuning;
mod ui;
pub mod units;
mod wakes;
