//! The statistics extension.

use halimede_serving::{
    Error, Server,
    statistics::{Duration, ModelStatistics},
};

use crate::{grpc::proto, json::Writer, services::model_version};

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

/// Statistics for gRPC, as [`http`].
pub(crate) fn grpc(server: &Server, model: &str, version: &str) -> Result<proto::ModelStatisticsResponse, Error> {
    let all = server.statistics(model, model_version(version)?)?;
    Ok(proto::ModelStatisticsResponse { model_stats: all.into_iter().map(message).collect() })
}

fn message(statistics: ModelStatistics) -> proto::ModelStatistics {
    let duration = |value: Duration| Some(proto::StatisticDuration { count: value.count, ns: value.ns });
    let all = statistics.inference;
    proto::ModelStatistics {
        name: statistics.name,
        version: statistics.version.to_string(),
        last_inference: statistics.last_inference_ms,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: Some(proto::InferStatistics {
            success: duration(all.success),
            fail: duration(all.fail),
            queue: duration(all.queue),
            compute_input: duration(all.compute_input),
            compute_infer: duration(all.compute_infer),
            compute_output: duration(all.compute_output),
            cache_hit: duration(all.cache_hit),
            cache_miss: duration(all.cache_miss),
        }),
        batch_stats: statistics
            .batches
            .into_iter()
            .map(|batch| proto::InferBatchStatistics {
                batch_size: batch.batch_size,
                compute_input: duration(batch.compute_input),
                compute_infer: duration(batch.compute_infer),
                compute_output: duration(batch.compute_output),
            })
            .collect(),
        memory_usage: statistics
            .memory
            .into_iter()
            .map(|usage| proto::MemoryUsage { r#type: usage.kind, id: usage.id, byte_size: usage.byte_size })
            .collect(),
        response_stats: statistics
            .responses
            .into_iter()
            .map(|(index, response)| {
                let response = proto::InferResponseStatistics {
                    compute_infer: duration(response.compute_infer),
                    compute_output: duration(response.compute_output),
                    success: duration(response.success),
                    fail: duration(response.fail),
                    empty_response: duration(response.empty_response),
                    cancel: duration(response.cancel),
                };
                (index, response)
            })
            .collect(),
    }
}
