//! Weights that are packed once for many starts.

use super::served::Served;
use halimede_compute::{
    CompileError, CompileOptions, ComputeUnit, Model, ModelOptions,
    packed::{Key, Packer, Store},
};
use halimede_graph::{Graph, onnx::import::Files};
use std::{
    error::Error,
    sync::{Arc, Weak},
};

/// Weights of less are packed as fast as a file is found.
const LEAST_BYTES: usize = 1 << 20;

/// Where the packed weights of a model are kept.
pub(super) struct Place {
    pub model: String,
    pub store: Arc<Store>,
    /// Of the model's graph after the passes.
    pub fingerprint: u128,
    pub unit: Arc<dyn ComputeUnit>,
}

impl Place {
    fn key(&self, options: &CompileOptions) -> Key {
        Key::new(self.fingerprint, &self.unit.layouts(options), options)
    }

    /// What the model's weights were packed to before; a file that is of no use is told and removed.
    fn find(&self, options: &CompileOptions) -> Option<Packer> {
        let key = self.key(options);
        self.store.find(key).unwrap_or_else(|error| {
            tracing::warn!("the weights of model '{}' are packed anew: {error}", self.model);
            self.store.remove(key);
            None
        })
    }

    /// Compiles the model. Says too whether its weights were found.
    pub fn compile(&self, graph: Graph, options: &ModelOptions) -> Result<(Model, bool), CompileError> {
        let unit = self.unit.as_ref();
        let Some(packer) = self.find(&options.compile) else {
            return Ok((Model::compile(graph, unit, options)?, false));
        };
        let model = Model::compile_packed(graph, unit, options, &packer)?;
        let is_found = packer.finish().is_ok();
        if !is_found {
            let key = self.key(&options.compile);
            tracing::warn!("the weights of model '{}' are packed anew: file {key} holds others", self.model);
            self.store.remove(key);
        }
        Ok((model, is_found))
    }

    /// Lets a model that is served read its weights from a file, which is written where there is none.
    pub fn settle(&self, served: &Weak<Served>, files: &Files, options: &CompileOptions) {
        let Some(model) = served.upgrade().map(|served| served.model()) else { return };
        // Without its weights in the file that it was read from, nothing can be packed again.
        if model.footprint().packed.total() < LEAST_BYTES || !files.are_unchanged() {
            return;
        }
        match (self.mapped(&model, files, options), served.upgrade()) {
            (Ok(model), Some(served)) => served.replace(model),
            (Ok(_), None) => {}
            (Err(error), _) => tracing::warn!("the packed weights of model '{}' are not kept: {error}", self.model),
        }
    }

    fn mapped(&self, model: &Model, files: &Files, options: &CompileOptions) -> Result<Model, Box<dyn Error>> {
        let (unit, key) = (self.unit.as_ref(), self.key(options));
        let packer = match self.find(options) {
            Some(packer) => packer,
            None => {
                let writer = self.store.writer(key)?;
                drop(model.repacked(unit, options, &writer)?);
                writer.finish()?;
                files.release();
                if !files.are_unchanged() {
                    self.store.remove(key);
                    return Err("the model's file has changed since it was loaded".into());
                }
                self.store.find(key)?.ok_or("the file was removed")?
            }
        };
        let mapped = model.repacked(unit, options, &packer)?;
        packer.finish()?;
        Ok(mapped)
    }
}
