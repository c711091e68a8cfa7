//! The statistics extension.

use halimede_serving::{
    Error, Server,
    statistics::{Duration, ModelStatistics},
};

use crate::{json::Writer, services::model_version};

/// Statistics of a version, of a model (empty version) or of all models (empty name).
pub(crate) fn http(server: &Server, model: &str, version: &str) -> Result<Vec<u8>, Error> {
    let all = server.statistics(model, model_version(version)?)?;
    let mut writer = Writer::with_capacity(1024);
    writer.begin_object();
    writer.name("model_stats");
    writer.begin_array();
    all.iter().for_each(|statistics| write(&mut writer, statistics));
    writer.end_array();
    writer.end_object();
    Ok(writer.into_bytes())
}

fn write(writer: &mut Writer, statistics: &ModelStatistics) {
    let number = |writer: &mut Writer, name, value| {
        writer.name(name);
        writer.unsigned(value);
    };
    writer.begin_object();
    writer.member("name", &statistics.name);
    writer.member("version", &statistics.version.to_string());
    number(writer, "last_inference", statistics.last_inference_ms);
    number(writer, "inference_count", statistics.inference_count);
    number(writer, "execution_count", statistics.execution_count);

    let all = &statistics.inference;
    writer.name("inference_stats");
    durations(
        writer,
        [
            ("success", all.success),
            ("fail", all.fail),
            ("queue", all.queue),
            ("compute_input", all.compute_input),
            ("compute_infer", all.compute_infer),
            ("compute_output", all.compute_output),
            ("cache_hit", all.cache_hit),
            ("cache_miss", all.cache_miss),
        ],
    );

    writer.name("response_stats");
    writer.begin_object();
    for (index, response) in &statistics.responses {
        writer.name(index);
        durations(
            writer,
            [
                ("compute_infer", response.compute_infer),
                ("compute_output", response.compute_output),
                ("success", response.success),
                ("fail", response.fail),
                ("empty_response", response.empty_response),
                ("cancel", response.cancel),
            ],
        );
    }
    writer.end_object();

    writer.name("batch_stats");
    writer.begin_array();
    for batch in &statistics.batches {
        writer.begin_object();
        number(writer, "batch_size", batch.batch_size);
        for (name, value) in [
            ("compute_input", batch.compute_input),
            ("compute_infer", batch.compute_infer),
            ("compute_output", batch.compute_output),
        ] {
            writer.name(name);
            duration(writer, value);
        }
        writer.end_object();
    }
    writer.end_array();

    writer.name("memory_usage");
    writer.begin_array();
    for usage in &statistics.memory {
        writer.begin_object();
        writer.member("type", &usage.kind);
        writer.name("id");
        writer.signed(usage.id);
        number(writer, "byte_size", usage.byte_size);
        writer.end_object();
    }
    writer.end_array();
    writer.end_object();
}

fn durations<const N: usize>(writer: &mut Writer, all: [(&str, Duration); N]) {
    writer.begin_object();
    for (name, value) in all {
        writer.name(name);
        duration(writer, value);
    }
    writer.end_object();
}

fn duration(writer: &mut Writer, value: Duration) {
    writer.begin_object();
    writer.name("count");
    writer.unsigned(value.count);
    writer.name("ns");
    writer.unsigned(value.ns);
    writer.end_object();
}
