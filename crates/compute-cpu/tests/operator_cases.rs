//! The examples in the ONNX operators' files, on this unit's kernels.

use halimede_compute::ModelOptions;
use halimede_compute_cpu::{CpuOptions, CpuUnit};
use halimede_conformance::{UnitRunner, run_cases};

#[test]
fn every_example_holds_on_the_cpu() {
    for (threads, passes) in [(1, true), (2, true), (2, false)] {
        let unit = CpuUnit::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() });
        let mut options = ModelOptions::default();
        if !passes {
            options.passes = None;
        }
        let report = run_cases(&UnitRunner::new(&unit, options));
        let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        let count = report.passed + report.failed;
        assert!(failures.is_empty(), "{} of {count}, {threads} threads:\n{}", report.failed, failures.join("\n"));
        assert!(report.on_kernels > 0, "no example ran on kernels");
    }
}
