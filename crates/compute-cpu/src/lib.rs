//! The CPU unit: kernels, micro-kernels and the thread pool.
