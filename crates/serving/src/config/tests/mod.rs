//! Tests of the whole way of a configuration.
