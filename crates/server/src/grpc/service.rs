//! The calls of both services.

use std::{
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
};

use halimede_serving::{Error, ModelMetadata, TensorMetadata};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    call::{Call, Followed, Pauses, pause},
    from_error, infer,
    proto::{
        self,
        grpc_inference_service_server::GrpcInferenceService,
        health::{
            HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
        },
    },
    stream, text_of,
};
use crate::{
    extensions::{logging, repository, shared_memory, statistics, trace},
    services::{Services, model_version},
};

/// The inference service.
#[derive(Debug)]
pub(crate) struct InferenceService {
    services: Arc<Services>,
    pauses: Pauses,
    /// Inference calls so far.
    calls: AtomicU64,
}

impl InferenceService {
    pub fn new(services: Arc<Services>) -> Self {
        Self { services, pauses: Pauses::default(), calls: AtomicU64::new(0) }
    }

    pub(super) fn with_pauses(self, pauses: Pauses) -> Self {
        Self { pauses, ..self }
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(result: Result<T, Error>) -> Answer<T> {
    result.map(Response::new).map_err(from_error)
}

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    async fn server_live(&self, _: Request<proto::ServerLiveRequest>) -> Answer<proto::ServerLiveResponse> {
        answer(Ok(proto::ServerLiveResponse { live: self.services.server.is_live() }))
    }

    async fn server_ready(&self, _: Request<proto::ServerReadyRequest>) -> Answer<proto::ServerReadyResponse> {
        answer(Ok(proto::ServerReadyResponse { ready: self.services.server.is_ready() }))
    }

    async fn model_ready(&self, request: Request<proto::ModelReadyRequest>) -> Answer<proto::ModelReadyResponse> {
        let proto::ModelReadyRequest { name, version } = request.into_inner();
        let version = model_version(&version).map_err(from_error)?;
        // Unknown is not ready: newer versions of Triton answer with NOT_FOUND.
        let ready = self.services.server.model_ready(&name, version).unwrap_or(false);
        answer(Ok(proto::ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<proto::ServerMetadataRequest>) -> Answer<proto::ServerMetadataResponse> {
        let metadata = self.services.server.metadata();
        answer(Ok(proto::ServerMetadataResponse {
            name: metadata.name,
            version: metadata.version.to_owned(),
            extensions: metadata.extensions.iter().map(|extension| extension.to_string()).collect(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<proto::ModelMetadataRequest>,
    ) -> Answer<proto::ModelMetadataResponse> {
        let proto::ModelMetadataRequest { name, version } = request.into_inner();
        let metadata = model_version(&version).and_then(|version| self.services.server.model_metadata(&name, version));
        answer(metadata.map(model_metadata))
    }

    async fn model_config(&self, request: Request<proto::ModelConfigRequest>) -> Answer<proto::ModelConfigResponse> {
        let proto::ModelConfigRequest { name, version } = request.into_inner();
        let config = model_version(&version).and_then(|version| self.services.server.model_config(&name, version));
        answer(config.map(|config| proto::ModelConfigResponse { config: Some((*config).clone()) }))
    }

    async fn model_statistics(
        &self,
        request: Request<proto::ModelStatisticsRequest>,
    ) -> Answer<proto::ModelStatisticsResponse> {
        let proto::ModelStatisticsRequest { name, version } = request.into_inner();
        answer(statistics::grpc(&self.services.server, &name, &version))
    }

    async fn model_infer(&self, request: Request<proto::ModelInferRequest>) -> Answer<proto::ModelInferResponse> {
        let mut call = Call::new("ModelInferHandler", &self.calls);
        let answer = infer::answer(&self.services, request).await;
        pause(self.pauses.infer).await;
        call.answered();
        answer.map(Response::new)
    }

    type ModelStreamInferStream = Pin<Box<dyn Stream<Item = Result<proto::ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<proto::ModelInferRequest>>,
    ) -> Answer<Self::ModelStreamInferStream> {
        let call = Call::new("ModelStreamInferHandler", &self.calls);
        Ok(Response::new(Box::pin(Followed::new(stream::answer(self.services.clone(), request), call))))
    }

    async fn repository_index(
        &self,
        request: Request<proto::RepositoryIndexRequest>,
    ) -> Answer<proto::RepositoryIndexResponse> {
        let (services, request) = (self.services.clone(), request.into_inner());
        let looks = services.rooms.looks.clone();
        answer(looks.run(move || repository::grpc_index(&services.server, &request)).await)
    }

    async fn repository_model_load(
        &self,
        request: Request<proto::RepositoryModelLoadRequest>,
    ) -> Answer<proto::RepositoryModelLoadResponse> {
        let (services, request) = (self.services.clone(), request.into_inner());
        let changes = services.rooms.changes.clone();
        let loaded = changes.run(move || repository::grpc_load(&services.server, request)).await;
        answer(loaded.map(|()| proto::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<proto::RepositoryModelUnloadRequest>,
    ) -> Answer<proto::RepositoryModelUnloadResponse> {
        let (services, request) = (self.services.clone(), request.into_inner());
        let changes = services.rooms.changes.clone();
        let unloaded = changes.run(move || repository::grpc_unload(&services.server, &request)).await;
        answer(unloaded.map(|()| proto::RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<proto::SystemSharedMemoryStatusRequest>,
    ) -> Answer<proto::SystemSharedMemoryStatusResponse> {
        answer(shared_memory::grpc_status(&self.services.regions, &request.get_ref().name))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<proto::SystemSharedMemoryRegisterRequest>,
    ) -> Answer<proto::SystemSharedMemoryRegisterResponse> {
        let proto::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request.into_inner();
        let registered = self.services.regions.register(&name, &key, offset, byte_size);
        answer(registered.map(|()| proto::SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<proto::SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<proto::SystemSharedMemoryUnregisterResponse> {
        let done = shared_memory::unregister(&self.services.regions, &request.get_ref().name);
        answer(done.map(|()| proto::SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<proto::CudaSharedMemoryStatusRequest>,
    ) -> Answer<proto::CudaSharedMemoryStatusResponse> {
        answer(shared_memory::grpc_cuda_status(&request.get_ref().name))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<proto::CudaSharedMemoryRegisterRequest>,
    ) -> Answer<proto::CudaSharedMemoryRegisterResponse> {
        answer(Err(crate::shared_memory::no_cuda(&request.get_ref().name)))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<proto::CudaSharedMemoryUnregisterRequest>,
    ) -> Answer<proto::CudaSharedMemoryUnregisterResponse> {
        answer(Ok(proto::CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(&self, request: Request<proto::TraceSettingRequest>) -> Answer<proto::TraceSettingResponse> {
        answer(trace::grpc(&self.services, request.get_ref()))
    }

    async fn log_settings(&self, request: Request<proto::LogSettingsRequest>) -> Answer<proto::LogSettingsResponse> {
        answer(logging::grpc(&self.services.logging, request.get_ref()))
    }
}

fn model_metadata(metadata: ModelMetadata) -> proto::ModelMetadataResponse {
    let tensor = |tensor: TensorMetadata| proto::model_metadata_response::TensorMetadata {
        name: tensor.name,
        datatype: tensor.datatype.to_owned(),
        shape: tensor.shape,
    };
    proto::ModelMetadataResponse {
        name: metadata.name,
        versions: metadata.versions.into_iter().map(text_of).collect(),
        platform: metadata.platform,
        inputs: metadata.inputs.into_iter().map(tensor).collect(),
        outputs: metadata.outputs.into_iter().map(tensor).collect(),
    }
}

/// The standard health service.
#[derive(Debug)]
pub(crate) struct HealthService {
    services: Arc<Services>,
}

impl HealthService {
    pub fn new(services: Arc<Services>) -> Self {
        Self { services }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    /// The same for every service that is asked about.
    async fn check(&self, _: Request<HealthCheckRequest>) -> Answer<HealthCheckResponse> {
        let status = if self.services.server.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
        answer(Ok(HealthCheckResponse { status: status.into() }))
    }
}
