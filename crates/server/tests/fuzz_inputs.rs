//! The bodies of the fuzz targets on the inputs that are kept: seeds, finds, and what once failed. Needs neither
//! a nightly compiler nor libFuzzer.

use std::{fs, path::PathBuf};

use halimede_server::fuzzing::Fuzzing;

/// The files of a folder of `fuzz/`, in order.
fn inputs(kind: &str, target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind).join(target);
    let entries = fs::read_dir(&folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    let name = |path: &PathBuf| path.strip_prefix(&folder).expect("it lies there").display().to_string();
    paths.iter().map(|path| (name(path), fs::read(path).expect("the file can be read"))).collect()
}

/// Seeds that are there to be refused: the others have to reach the end of what they test.
const REFUSED: [&str; 8] = [
    "config/unknown",
    "grpc/method6",
    "grpc/method8",
    "grpc/negative",
    "http/load",
    "http/register",
    "http/trace",
    "shared_memory/body",
];

#[test]
fn seeds_are_taken_or_refused_as_they_should() {
    let fuzzing = Fuzzing::new().unwrap();
    let mut wrong = Vec::new();
    for target in Fuzzing::TARGETS {
        let seeds = inputs("seeds", target);
        assert!(seeds.len() >= 4, "{target}: {} seeds", seeds.len());
        for (name, bytes) in seeds {
            let name = format!("{target}/{name}");
            if fuzzing.run(target, &bytes) == REFUSED.contains(&name.as_str()) {
                wrong.push(name);
            }
        }
    }
    assert!(wrong.is_empty(), "taken instead of refused, or the other way round: {wrong:?}");
}

/// What fuzzing found worth keeping, and what once failed.
#[test]
fn finds_are_survived() {
    let fuzzing = Fuzzing::new().unwrap();
    let mut count = 0;
    for target in Fuzzing::TARGETS {
        for (_, bytes) in inputs("finds", target).into_iter().chain(inputs("regressions", target)) {
            fuzzing.run(target, &bytes);
            count += 1;
        }
    }
    assert!(count > 200, "{count} inputs");
}
