//! Scratch.
use halimede_conformance::*;
fn main() {
    let r = ReferenceRunner;
    let arg = std::env::args().nth(1).unwrap();
    let report = if arg == "cases" {
        run_cases(&r)
    } else {
        check(&discover(std::path::Path::new(&arg)).unwrap(), &r, &CheckOptions::default())
    };
    for f in &report.failures {
        println!("{f}");
    }
    println!("{}", report.summary());
}
