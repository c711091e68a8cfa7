//! What `--backend-config` may say: a wrong value is found when the server starts, not with the first model that needs it,
//! and a setting that nobody reads is told.

use super::values::number;

/// Memory that Triton's Python backend begins with, at least.
const SHM_BYTES_MIN: i64 = 1 << 20;

/// Checks a setting of `backend`, or of all backends where its name is empty. What is said of one without an effect is why.
/// Other backends than those that are built in may have settings of their own.
pub(super) fn check(backend: &str, key: &str, text: &str) -> Result<Option<&'static str>, String> {
    let at_least = |min| at_least(backend, key, text, min);
    match (backend, key) {
        (_, "default-max-batch-size") => at_least(0).map(|()| None),
        ("python", "interpreter" | "prints") => Ok(None),
        ("python", "shm-default-byte-size") => at_least(SHM_BYTES_MIN).map(|()| Some(MEMORY)),
        ("python", "shm-growth-byte-size") => at_least(1).map(|()| Some(MEMORY)),
        ("python", "shm-region-prefix-name") => Ok(Some(MEMORY)),
        ("python", "shm_message_queue_size") => at_least(i64::MIN).map(|()| Some(UNKNOWN)),
        ("python", "thread-pool-size" | "stub-timeout-seconds") => at_least(1).map(|()| Some(UNKNOWN)),
        ("" | "python" | "onnxruntime", _) => Ok(Some(UNKNOWN)),
        _ => Ok(None),
    }
}

const MEMORY: &str = "models get the shared memory that requests need, under names that no other server uses";
const UNKNOWN: &str = "it is no setting of this server";

fn at_least(backend: &str, key: &str, text: &str, min: i64) -> Result<(), String> {
    let name = if backend.is_empty() { key.to_owned() } else { format!("{backend},{key}") };
    match number::<i64>(text) {
        Ok(value) if value >= min => Ok(()),
        Ok(_) => Err(format!("--backend-config {name} can't be smaller than {min}. Got {text}")),
        Err(error) => Err(format!("--backend-config {name}: {error}")),
    }
}
