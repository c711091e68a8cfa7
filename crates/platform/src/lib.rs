//! The operating system behind one API: shared memory, mapping, signals, threads, chip and memory facts.
