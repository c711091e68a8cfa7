//! What the fuzz targets share; what they run lies in `halimede_server::fuzzing`.

use halimede_server::fuzzing::Fuzzing;
use std::sync::OnceLock;

/// Gives `bytes` to the target `name`.
pub fn run(name: &str, bytes: &[u8]) {
    // libFuzzer calls a function without state; making the server anew each time would be all it does.
    static FUZZING: OnceLock<Fuzzing> = OnceLock::new();
    FUZZING.get_or_init(|| Fuzzing::new().expect("the fuzz target needs a folder for temporary files")).run(name, bytes);
}
