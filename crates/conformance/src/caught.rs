//! Panics as failures of one case instead of the end of the run.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Where the last panic of this thread happened; `None` while panics are not being caught here.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The result, or what a panic said and where; it prints nothing then.
///
/// # Errors
/// The work panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = PLACE.with_borrow_mut(|place| {
                if let Some(place) = place {
                    *place = info.location().map_or_else(String::new, |at| format!(" at {at}"));
                }
                place.is_some()
            });
            if !ours {
                usual(info);
            }
        }));
    });
    PLACE.set(Some(String::new()));
    // What the work was changing is dropped with it.
    let result = catch_unwind(AssertUnwindSafe(work));
    let place = PLACE.take().unwrap_or_default();
    result.map_err(|payload| format!("panicked{place}: {} (a bug of the engine: please report it)", text(&*payload)))
}

fn text(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "without a message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_text_with_their_place() {
        let reason = caught(|| panic!("no {}", 7)).unwrap_err();
        assert!(reason.contains("caught.rs") && reason.contains("no 7"), "{reason}");
        assert_eq!(caught(|| 3), Ok(3));
    }
}
