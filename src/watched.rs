//! The files that wake the daemon.
//!
//! In: a [`Site`]. Out: folders and the names in them that matter, as they are at this moment: a refresh moves the data
//! folder, and an argument file may move a certificate.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::observe::enabled;
use crate::observe::watch::Names;
use crate::profiles::{Profile, beneath};
use crate::site::Site;
use crate::{takeover, takeover_file};

/// What to watch.
pub fn wanted(site: &Site, profile: &Profile) -> Vec<(PathBuf, Names)> {
    let mut wanted: Vec<(PathBuf, Names)> = Vec::new();
    let mut single: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
    let mut want = |path: &Path| {
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            single.entry(folder.to_owned()).or_default().push(name.to_owned());
        }
    };
    if let Ok(data) = site.data(profile) {
        site.files_that_matter(profile, &data).iter().for_each(|path| want(path));
        site.kubeconfigs(profile, &data).iter().for_each(|path| want(path));
        wanted.push((data.join(&profile.files.arguments), Names::All));
        wanted.push((data.join(&profile.files.locks), Names::All));
    }
    // Somebody orders a takeover, and somebody enables the guard again that was taken over from.
    wanted.push((site.state_dir(), Names::Only(vec![takeover_file::NAME.into()])));
    let guards = takeover::guards(site).into_iter().map(|guard| guard.unit.into()).collect();
    wanted.push((enabled::folder(&site.root), Names::Only(guards)));
    // A refresh moves the link to another revision.
    if let (Some(parent), Some(name)) = (profile.data.parent(), profile.data.file_name())
        && let Ok(parent) = beneath(&site.root, parent)
    {
        want(&parent.join(name));
    }
    wanted.extend(single.into_iter().map(|(folder, names)| (folder, Names::Only(names))));
    wanted
}
