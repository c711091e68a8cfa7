//! Requests, the model repository, configurations, schedulers, instances and statistics.

#![forbid(unsafe_code)]
