//! The shared memory extensions: regions of the system, and the answers to those of CUDA.

use halimede_serving::Error;

use crate::{
    grpc::proto,
    json::{Document, Value, Writer},
    shared_memory::{RegionStatus, Regions, no_cuda, unknown_cuda},
};

/// A region, or all of them where `region` is empty.
pub(crate) fn http_status(regions: &Regions, region: &str) -> Result<Vec<u8>, Error> {
    let mut writer = Writer::default();
    writer.begin_array();
    for status in regions.status((!region.is_empty()).then_some(region))? {
        writer.begin_object();
        writer.member("name", &status.name);
        writer.member("key", &status.key);
        writer.name("offset");
        writer.unsigned(status.offset);
        writer.name("byte_size");
        writer.unsigned(status.byte_size);
        writer.end_object();
    }
    writer.end_array();
    Ok(writer.into_bytes())
}

/// Registers what the body describes.
pub(crate) fn http_register(regions: &Regions, region: &str, body: &[u8]) -> Result<(), Error> {
    if region.is_empty() {
        return Err(Error::invalid("'region name' is necessary to register system shared memory region"));
    }
    let document = Document::parse(body)?;
    let root = document.root();
    let key = root.find("key").ok_or_else(|| missing("key"))?.text()?;
    let offset = root.find("offset").map_or(Ok(0), Value::unsigned)?;
    let byte_size = root.find("byte_size").ok_or_else(|| missing("byte_size"))?.unsigned()?;
    regions.register(region, &key, offset, byte_size)
}

fn missing(field: &str) -> Error {
    Error::invalid(format!("Shared memory register request has no '{field}' field"))
}

/// Forgets a region, or all of them where `region` is empty.
pub(crate) fn unregister(regions: &Regions, region: &str) -> Result<(), Error> {
    if region.is_empty() { regions.unregister_all() } else { regions.unregister(region) }
}

/// There are no regions of CUDA memory.
pub(crate) fn http_cuda_status(region: &str) -> Result<Vec<u8>, Error> {
    if region.is_empty() { Ok(b"[]".to_vec()) } else { Err(unknown_cuda(region)) }
}

/// Refuses a region of CUDA memory, after what would be wrong with CUDA too.
pub(crate) fn http_register_cuda(region: &str, body: &[u8]) -> Result<(), Error> {
    if region.is_empty() {
        return Err(Error::invalid("'region name' is necessary to register cuda shared memory region"));
    }
    let document = Document::parse(body)?;
    document.root().find("raw_handle").ok_or_else(|| missing("raw_handle"))?;
    Err(no_cuda(region))
}

/// A region, or all of them where `name` is empty, for gRPC.
pub(crate) fn grpc_status(regions: &Regions, name: &str) -> Result<proto::SystemSharedMemoryStatusResponse, Error> {
    let statuses = regions.status((!name.is_empty()).then_some(name))?;
    let entry = |status: RegionStatus| {
        let RegionStatus { name, key, offset, byte_size } = status;
        let region =
            proto::system_shared_memory_status_response::RegionStatus { name: name.clone(), key, offset, byte_size };
        (name, region)
    };
    Ok(proto::SystemSharedMemoryStatusResponse { regions: statuses.into_iter().map(entry).collect() })
}

/// There are no regions of CUDA memory.
pub(crate) fn grpc_cuda_status(name: &str) -> Result<proto::CudaSharedMemoryStatusResponse, Error> {
    if name.is_empty() { Ok(proto::CudaSharedMemoryStatusResponse::default()) } else { Err(unknown_cuda(name)) }
}
