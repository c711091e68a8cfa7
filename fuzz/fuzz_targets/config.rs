#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| halimede_fuzz::run("config", bytes));
