//! The `halimede` command.

fn main() {}
