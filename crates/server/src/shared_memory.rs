//! Regions of shared memory that clients registered, for tensors of both protocols.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, PoisonError, RwLock},
};

use halimede_platform::shared_memory::{SharedMemoryError, SharedRegion};
use halimede_serving::{Code, Error};
use halimede_tensor::Buffer;

use crate::event_loops::{BYTES_MAX, aside};

/// Keys that Triton's Python backend uses for itself.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region";

/// The registered regions by name.
#[derive(Debug)]
pub(crate) struct Regions {
    is_allowed: bool,
    regions: RwLock<BTreeMap<String, Arc<SharedRegion>>>,
}

/// What clients are told about a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionStatus {
    pub name: String,
    pub key: String,
    pub offset: u64,
    pub byte_size: u64,
}

/// A part of a region that an output goes to.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    region: Arc<SharedRegion>,
    offset: usize,
    len: usize,
}

impl Regions {
    pub fn new(is_allowed: bool) -> Self {
        Self { is_allowed, regions: RwLock::default() }
    }

    fn check_allowed(&self) -> Result<(), Error> {
        if self.is_allowed {
            return Ok(());
        }
        Err(Error::unsupported(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable it.",
        ))
    }

    /// Maps `len` bytes from `offset` of the object `key` and calls them `name`.
    pub fn register(&self, name: &str, key: &str, offset: u64, len: u64) -> Result<(), Error> {
        self.check_allowed()?;
        // The second are those of this server's Python models, where requests of others lie.
        for prefix in [RESERVED_PREFIX, &halimede_python_backend::segment_key_prefix()] {
            if key.trim_start_matches('/').starts_with(prefix) {
                return Err(Error::invalid(format!(
                    "cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved \
                     prefix '{prefix}'"
                )));
            }
        }
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.contains_key(name) {
            let message = format!("shared memory region '{name}' already in manager");
            return Err(Error { code: Code::AlreadyExists, message, retry_after: None });
        }
        let region = SharedRegion::open(key, offset, len).map_err(|error| match error {
            SharedMemoryError::Open { cause, .. } => {
                // Triton's words; of an object that is there, also why.
                let why = if cause.kind() == io::ErrorKind::NotFound { String::new() } else { format!(" ({cause})") };
                Error::internal(format!("Unable to open shared memory region: '{key}'{why}"))
            }
            SharedMemoryError::TooSmall { .. } => {
                Error::invalid(format!("failed to register shared memory region '{name}': invalid args"))
            }
            other => Error::invalid(format!("failed to register shared memory region '{name}': {other}")),
        })?;
        regions.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// Forgets a region; requests that use it keep it until they end. One that is not there is no error.
    pub fn unregister(&self, name: &str) -> Result<(), Error> {
        self.check_allowed()?;
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }

    /// Forgets all regions.
    pub fn unregister_all(&self) -> Result<(), Error> {
        self.check_allowed()?;
        self.regions.write().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// One region, or all of them by name.
    pub fn status(&self, name: Option<&str>) -> Result<Vec<RegionStatus>, Error> {
        self.check_allowed()?;
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let status = |name: &str, region: &SharedRegion| RegionStatus {
            name: name.to_owned(),
            key: region.key().to_owned(),
            offset: region.offset(),
            byte_size: region.len() as u64,
        };
        let Some(name) = name else {
            return Ok(regions.iter().map(|(name, region)| status(name, region)).collect());
        };
        match regions.get(name) {
            Some(region) => Ok(vec![status(name, region)]),
            None => Err(Error::not_found(format!("Unable to find system shared memory region: '{name}'"))),
        }
    }

    /// The part of a region that a request speaks of.
    pub fn place(&self, name: &str, offset: u64, len: u64) -> Result<Place, Error> {
        self.check_allowed()?;
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = regions.get(name) else {
            return Err(Error::not_found(format!("Unable to find shared memory region: '{name}'")));
        };
        let (offset, len) = range(offset, len, region.len())
            .map_err(|what| Error::invalid(format!("Invalid {what} for shared memory region: '{name}'")))?;
        Ok(Place { region: region.clone(), offset, len })
    }
}

/// The part of `size` bytes that a client speaks of; an error names what lies outside.
fn range(offset: u64, len: u64, size: usize) -> Result<(usize, usize), &'static str> {
    let from = usize::try_from(offset).ok().filter(|from| *from < size.max(1)).ok_or("offset")?;
    let len = usize::try_from(len).ok().filter(|len| *len <= size - from).ok_or("offset + byte size")?;
    Ok((from, len))
}

impl Place {
    /// A copy of the bytes: the client may write there while the model runs, and models read their inputs
    /// more than once.
    pub fn read(&self) -> Result<Buffer, Error> {
        let failed = |error: SharedMemoryError| Error::invalid(error.to_string());
        aside(self.len > BYTES_MAX, || {
            Buffer::filled(self.len, |target| self.region.read(self.offset, target).map_err(failed))
        })
    }

    /// Writes the output `name`.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > self.len {
            return Err(Error::internal(format!(
                "shared memory size specified with the request for output '{name}' ({} bytes) should be at least {} \
                 bytes to hold the results",
                self.len,
                bytes.len()
            )));
        }
        let write = || self.region.write(self.offset, bytes);
        aside(bytes.len() > BYTES_MAX, write).map_err(|error| Error::internal(error.to_string()))
    }
}

/// What Triton says where CUDA does not take the handle, which no handle can be here.
pub(crate) fn no_cuda(name: &str) -> Error {
    Error::invalid(format!(
        "failed to register shared memory region: invalid args: '{name}' is CUDA memory, and this server uses no GPU"
    ))
}

/// What Triton says about a region of CUDA memory that is not there.
pub(crate) fn unknown_cuda(name: &str) -> Error {
    Error::not_found(format!("Unable to find cuda shared memory region: '{name}'"))
}

#[cfg(test)]
mod tests {
    use halimede_platform::shared_memory::OwnedSharedMemory;

    use super::*;

    #[test]
    fn ranges_stay_inside() {
        for (offset, len, size, expected) in [
            (0, 8, 8, Ok((0, 8))),
            (7, 1, 8, Ok((7, 1))),
            (7, 2, 8, Err("offset + byte size")),
            (8, 0, 8, Err("offset")),
            (0, 0, 0, Ok((0, 0))),
            (0, 1, 0, Err("offset + byte size")),
            (1, u64::MAX, 8, Err("offset + byte size")),
            (u64::MAX, 2, 8, Err("offset")),
        ] {
            assert_eq!(range(offset, len, size), expected, "{len} from {offset} of {size}");
        }
    }

    #[test]
    fn places_stay_inside_their_region() {
        let key = format!("/hal-place-{}", std::process::id());
        let object = OwnedSharedMemory::create(&key, 64).unwrap();
        let regions = Regions::new(true);
        regions.register("r", &key, 16, 32).unwrap();
        object.region().write(16, &[7; 4]).unwrap();
        assert_eq!(*regions.place("r", 0, 4).unwrap().read().unwrap(), [7; 4]);
        for (offset, len, expected) in [
            (32, 0, "Invalid offset for shared memory region: 'r'"),
            (0, 33, "Invalid offset + byte size for shared memory region: 'r'"),
            (16, u64::MAX, "Invalid offset + byte size for shared memory region: 'r'"),
            (u64::MAX, 1, "Invalid offset for shared memory region: 'r'"),
        ] {
            assert_eq!(regions.place("r", offset, len).unwrap_err().message, expected);
        }
        let place = regions.place("r", 28, 4).unwrap();
        assert!(place.write("o", &[0; 5]).unwrap_err().message.contains("(4 bytes) should be at least 5 bytes"));
        assert!(regions.register("r", &key, 0, 1).unwrap_err().message.contains("already in manager"));
        assert!(regions.register("s", &key, 0, 65).unwrap_err().message.ends_with("'s': invalid args"));
        let own = format!("/hm{:x}-1-1", std::process::id());
        for key in ["/triton_python_backend_shm_region_1", "triton_python_backend_shm_region_1", &own, &own[1..]] {
            assert!(regions.register("t", key, 0, 1).unwrap_err().message.contains("reserved prefix"), "{key}");
        }
        regions.unregister("r").unwrap();
        assert_eq!(regions.status(Some("r")).unwrap_err().code, Code::NotFound);
        assert_eq!(Regions::new(false).status(None).unwrap_err().code, Code::Unsupported);
    }
}
