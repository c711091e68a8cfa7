//! gRPC messages.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tonic::Request;

use crate::{
    grpc::{InferenceService, codec, proto, proto::grpc_inference_service_server::GrpcInferenceService},
    services::Services,
};

/// Calls the method that the first of `bytes` names with the message in the others.
pub(super) async fn run(services: &Arc<Services>, bytes: &[u8]) -> bool {
    let Some((method, message)) = bytes.split_first() else { return false };
    if codec::check(message).is_err() {
        return false;
    }
    let message = Bytes::copy_from_slice(message);
    let service = InferenceService::new(services.clone());
    macro_rules! call {
        ($method:ident, $message:ty) => {
            match <$message>::decode(message) {
                Ok(message) => service.$method(Request::new(message)).await.is_ok(),
                Err(_) => false,
            }
        };
    }
    match method {
        b'0' => call!(model_infer, proto::ModelInferRequest),
        b'1' => call!(system_shared_memory_status, proto::SystemSharedMemoryStatusRequest),
        b'2' => call!(model_config, proto::ModelConfigRequest),
        b'3' => call!(model_metadata, proto::ModelMetadataRequest),
        b'4' => call!(model_statistics, proto::ModelStatisticsRequest),
        b'5' => call!(repository_index, proto::RepositoryIndexRequest),
        b'6' => call!(repository_model_load, proto::RepositoryModelLoadRequest),
        b'7' => call!(trace_setting, proto::TraceSettingRequest),
        b'8' => call!(cuda_shared_memory_register, proto::CudaSharedMemoryRegisterRequest),
        _ => false,
    }
}
