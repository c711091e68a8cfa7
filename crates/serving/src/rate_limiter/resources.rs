//! How much there is of what instances need to run, and how much of it is in use.

use std::{collections::BTreeMap, fmt};

use crate::{config::proto::ModelRateLimiter, error::Error};

/// Where a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// One for all devices.
    Global,
    /// Of each device by itself.
    Each,
    /// Of one device.
    Number(i32),
}

/// What the command line says there is; resources that it does not name are then not there. Empty: it says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Available(BTreeMap<Device, BTreeMap<String, u64>>);

impl Available {
    /// `count` of a resource on `device`. Of several counts the least holds.
    pub fn add(&mut self, name: &str, count: u64, device: Device) {
        let known = self.0.entry(device).or_default().entry(name.to_owned()).or_insert(count);
        *known = count.min(*known);
    }

    /// How much there is of a resource where an instance needs it. A global one is found on any device.
    fn count(&self, device: Device, name: &str) -> u64 {
        let fits = |there: &Device| device == Device::Global || *there == device || *there == Device::Each;
        let counts = self.0.iter().filter(|(there, _)| fits(there)).filter_map(|(_, counts)| counts.get(name));
        counts.copied().max().unwrap_or(0)
    }
}

/// What an instance needs, by place and name.
#[derive(Debug, Clone, Default)]
pub(super) struct Needs(BTreeMap<(Device, String), u64>);

impl Needs {
    /// The needs of an instance on `device`.
    pub fn new(config: &ModelRateLimiter, device: i32) -> Self {
        let place = |is_global| if is_global { Device::Global } else { Device::Number(device) };
        let needs = config.resources.iter();
        Self(needs.map(|need| ((place(need.global), need.name.clone()), u64::from(need.count))).collect())
    }
}

/// The resources of the server.
#[derive(Debug, Default)]
pub(super) struct Resources {
    available: Available,
    /// How much there is.
    max: BTreeMap<(Device, String), u64>,
    /// How much of it is in use.
    used: BTreeMap<(Device, String), u64>,
}

impl Resources {
    pub fn new(available: Available) -> Self {
        Self { available, ..Self::default() }
    }

    /// Checks that each of the instances can run at all.
    pub fn check<'a>(&self, needs: impl Iterator<Item = &'a Needs>) -> Result<(), Error> {
        let most = most(needs);
        for ((device, name), needed) in most.iter().filter(|_| !self.available.0.is_empty()) {
            let count = self.available.count(*device, name);
            if count < *needed {
                return Err(Error::invalid(format!(
                    "Resource count for \"{name}\" is limited to {count} which will prevent scheduling of one or more \
                     model instances, the minimum required count is {needed}"
                )));
            }
        }
        let is_global = |name: &String| most.contains_key(&(Device::Global, name.clone()));
        match most.keys().find(|(device, name)| *device != Device::Global && is_global(name)) {
            Some((_, name)) => Err(Error::invalid(format!(
                "Resource \"{name}\" is present as both global and device-specific resource in the model configuration."
            ))),
            None => Ok(()),
        }
    }

    /// Works out how much there is for instances that were checked.
    pub fn measure<'a>(&mut self, needs: impl Iterator<Item = &'a Needs>) {
        self.max = most(needs);
        if !self.available.0.is_empty() {
            for ((device, name), count) in &mut self.max {
                *count = self.available.count(*device, name);
            }
        }
    }

    /// Takes what an instance needs, if there is enough of all.
    pub fn take(&mut self, needs: &Needs) -> bool {
        let Self { max, used, .. } = self;
        let is_enough = |(place, needed): (&(Device, String), &u64)| {
            used.get(place).copied().unwrap_or(0) + needed <= max.get(place).copied().unwrap_or(0)
        };
        if !needs.0.iter().all(is_enough) {
            return false;
        }
        needs.0.iter().for_each(|(place, needed)| *used.entry(place.clone()).or_default() += needed);
        true
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, needs: &Needs) {
        for (place, needed) in &needs.0 {
            if let Some(used) = self.used.get_mut(place) {
                *used -= needed;
            }
        }
    }
}

impl fmt::Display for Resources {
    /// How much there is, as Triton's log has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for ((device, name), count) in &self.max {
            if last.replace(device) != Some(device) {
                match device {
                    Device::Global | Device::Each => writeln!(f, "\tDevice: GLOBAL")?,
                    Device::Number(number) => writeln!(f, "\tDevice: {number}")?,
                }
            }
            writeln!(f, "\t\tResource: {name}\t Count: {count}")?;
        }
        Ok(())
    }
}

/// The most that any instance needs of each resource.
fn most<'a>(needs: impl Iterator<Item = &'a Needs>) -> BTreeMap<(Device, String), u64> {
    let mut most = BTreeMap::new();
    for (place, needed) in needs.flat_map(|needs| &needs.0) {
        let known = most.entry(place.clone()).or_insert(*needed);
        *known = (*known).max(*needed);
    }
    most
}
