//! What started this process as a service, where that wants to know how far it is.
//!
//! systemd does, for units of `Type=notify`: it names a socket in `$NOTIFY_SOCKET` (sd_notify(3)). launchd has nothing of
//! the kind.

use crate::Error;

/// How far a service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'t> {
    /// It does its work from now on; the text says so to people.
    Ready(&'t str),
    /// It ends.
    Stopping,
}

/// Tells the service manager; does nothing where there is none.
///
/// # Errors
/// A service manager is named and cannot be told.
pub fn tell(progress: Progress<'_>) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    {
        use sd_notify::NotifyState;
        let states = match progress {
            Progress::Ready(text) => vec![NotifyState::Ready, NotifyState::Status(text)],
            Progress::Stopping => vec![NotifyState::Stopping],
        };
        sd_notify::notify(&states).map_err(|error| Error::new("tell", "the service manager at $NOTIFY_SOCKET", error))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = progress;
        Ok(())
    }
}
