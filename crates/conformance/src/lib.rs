//! Runs operator cases and ONNX backend test directories on any compute unit.

#![forbid(unsafe_code)]
