//! The kubeconfigs of a node, read when they changed.
//!
//! In: paths. Out: [`KubeconfigFacts`], in the same order. The rule of this file: a file
//! that did not change costs one look at it, for this is done in every pass. One that names other files is read each time:
//! these change by themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::read;
use crate::facts::certificate::Authority;
use crate::facts::kubeconfig::KubeconfigFacts;
use crate::facts::time::Timestamp;
use crate::observe::private_key::Identity;

/// What was read before.
#[derive(Debug, Default)]
pub struct KubeconfigCache {
    entries: BTreeMap<PathBuf, Known>,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    authority: Option<Authority>,
    facts: KubeconfigFacts,
}

impl KubeconfigCache {
    /// All of them. `authority` is the cluster's CA, if it can be read.
    pub fn read(
        &mut self,
        paths: Vec<PathBuf>,
        root: &Path,
        authority: Option<&Authority>,
        now: Timestamp,
    ) -> Vec<KubeconfigFacts> {
        self.entries.retain(|path, _| paths.contains(path));
        paths.into_iter().map(|path| self.one(path, root, authority, now)).collect()
    }

    fn one(&mut self, path: PathBuf, root: &Path, authority: Option<&Authority>, now: Timestamp) -> KubeconfigFacts {
        let identity = std::fs::symlink_metadata(&path).ok().map(|metadata| Identity::of(&metadata));
        if let Some(known) = self.entries.get(&path)
            && Some(known.identity) == identity
            && known.authority.as_ref() == authority
        {
            return known.facts.clone();
        }
        self.entries.remove(&path);
        let facts = read(&path, root, authority, now);
        // The identity is from before the read, so that what is written meanwhile is another.
        if let Some(identity) = identity.filter(|identity| identity.has_aged())
            && !facts.content.as_ref().is_ok_and(|content| content.names_files)
        {
            self.entries.insert(path, Known { identity, authority: authority.cloned(), facts: facts.clone() });
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::facts::ReadError;

    #[test]
    fn what_did_not_change_is_not_opened() {
        let path = std::env::temp_dir().join(format!("ipguard-kubeconfig-kept-{}", std::process::id()));
        std::fs::write(&path, "a: [").expect("the temporary folder is writable");
        let mut cache = KubeconfigCache::default();
        let look = |cache: &mut KubeconfigCache| {
            cache.read(vec![path.clone()], Path::new("/"), None, Timestamp::default()).remove(0)
        };
        look(&mut cache);
        assert!(cache.entries.is_empty(), "within the grain of its time stamps it may change unseen");
        std::thread::sleep(Duration::from_millis(3100));
        look(&mut cache);
        // Seen by what no read would give.
        let kept = KubeconfigFacts { path: "/kept".into(), content: Err(ReadError::malformed(&path, "kept")) };
        cache.entries.get_mut(&path).expect("it is old enough").facts = kept.clone();
        assert_eq!(look(&mut cache), kept);
        std::fs::write(&path, "a: b").expect("it is ours");
        assert_ne!(look(&mut cache), kept);
        std::fs::remove_file(&path).expect("it is ours");
        look(&mut cache);
        assert!(cache.entries.is_empty());
    }
}
