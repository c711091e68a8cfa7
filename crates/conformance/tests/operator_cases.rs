//! The examples in the operators' files, by the definitions.

use halimede_conformance::{ReferenceRunner, run_cases};

#[test]
fn every_example_holds_by_definition() {
    let report = run_cases(&ReferenceRunner);
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", report.failed, report.passed + report.failed, failures.join("\n"));
    assert!(report.passed > 0);
}
