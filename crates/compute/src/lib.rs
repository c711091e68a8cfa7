//! Compute units, plans and arenas: how a graph becomes steps that run.

#![forbid(unsafe_code)]
