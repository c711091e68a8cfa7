//! The `halimede` command.

#![forbid(unsafe_code)]

fn main() {}
