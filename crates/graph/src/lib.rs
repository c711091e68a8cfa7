//! The graph: intermediate representation, ONNX import, operator definitions, passes and the reference interpreter.

#![forbid(unsafe_code)]
