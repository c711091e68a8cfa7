//! The files in which Amazon's command line keeps profiles: `~/.aws/config` and `~/.aws/credentials`.

use std::collections::BTreeMap;

/// The settings of a profile.
pub(crate) type Settings = BTreeMap<String, String>;

/// The settings of one profile in the text of both files; those of `credentials` win.
pub(crate) fn settings(config: &str, credentials: &str, profile: &str) -> Option<Settings> {
    let in_config = section(config, &[&format!("profile {profile}"), profile]);
    let in_credentials = section(credentials, &[profile]);
    if in_config.is_none() && in_credentials.is_none() {
        return None;
    }
    let mut settings = in_config.unwrap_or_default();
    settings.extend(in_credentials.unwrap_or_default());
    Some(settings)
}

/// The settings of the first section with one of the names. Nested settings, which are indented, are none of ours.
fn section(text: &str, names: &[&str]) -> Option<Settings> {
    let mut found: Option<Settings> = None;
    let mut is_ours = false;
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split_once(']')).map(|(name, _)| name.trim()) {
            is_ours = names.contains(&name);
            if is_ours {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (is_ours, line.split_once('=')) {
            let value = value.split(" #").next().unwrap_or_default().trim();
            found.get_or_insert_default().insert(key.trim().to_lowercase(), value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1 # near\n\n# [profile x]\n[profile work]\nregion=us-east-2\ns3 =\n  max_queue_size = 5\n";
    const CREDENTIALS: &str =
        "[default]\naws_access_key_id = ID\naws_secret_access_key = a=b\n[work]\nAWS_ACCESS_KEY_ID=W\n";

    #[test]
    fn profiles_of_both_files() {
        let default = settings(CONFIG, CREDENTIALS, "default").unwrap();
        assert_eq!(
            (&*default["region"], &*default["aws_access_key_id"], &*default["aws_secret_access_key"]),
            ("eu-west-1", "ID", "a=b")
        );
        let work = settings(CONFIG, CREDENTIALS, "work").unwrap();
        assert_eq!(
            (&*work["region"], &*work["aws_access_key_id"], work.get("max_queue_size")),
            ("us-east-2", "W", None)
        );
        assert_eq!(settings(CONFIG, CREDENTIALS, "x"), None);
        assert_eq!(settings("", "", "default"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(config in "[\\[\\]a-z =#;\n]{0,80}", credentials in any::<String>()) {
            let _ = settings(&config, &credentials, "a");
        }
    }
}
