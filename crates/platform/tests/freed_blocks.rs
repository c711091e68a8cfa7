//! A process of its own: what is set here holds for all of its allocations.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "a test; its helpers fail with it")]

use std::hint::black_box;

/// Pages that were new to this process so far: the eighth number behind the program's name.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(7).unwrap().parse().unwrap()
}

#[test]
fn freed_blocks_are_there_again_with_their_pages() {
    const BLOCK: usize = 1 << 20;
    const ROUNDS: u64 = 50;
    halimede_platform::memory::keep_freed_blocks(4 << 20, 8 << 20, 2);
    let round = || drop(black_box([(); 4].map(|()| vec![black_box(1u8); BLOCK])));
    round();
    let before = faults();
    (0..ROUNDS).for_each(|_| round());
    let pages = ROUNDS * 4 * BLOCK as u64 / 4096;
    let new = faults() - before;
    assert!(new < pages / 20, "{new} of {pages} pages were new");
}
