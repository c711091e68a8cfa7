//! HTTP, gRPC, metrics and the command line.

#![forbid(unsafe_code)]
