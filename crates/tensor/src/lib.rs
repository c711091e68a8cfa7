//! Datatypes, shapes, buffers and tensor values.
