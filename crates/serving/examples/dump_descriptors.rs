//! Compiles the `.proto` files given as arguments, with the compiler that the builds use, and writes
//! one serialized `FileDescriptorSet` to standard output. `tests/test_protos.py` compares it with the
//! descriptors that other projects publish.
//!
//! ```text
//! cargo run -p halimede-serving --example dump_descriptors -- crates/serving/proto/model_config.proto
//! ```

#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    io::{self, Write},
    path::{Path, PathBuf},
};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        return Err("give the .proto files as arguments".into());
    }
    // Files import each other by name alone, whatever crate they lie in.
    let directories: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    let set = protox::compile(&files, directories)?;
    io::stdout().write_all(&set.encode_to_vec())?;
    Ok(())
}
