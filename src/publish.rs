//! Publishes what the daemon's passes conclude, for `ipguard status`.
//!
//! In: an observation and its plan. Out: the status file, when there is something new in it. The rule of this file: it
//! wakes nobody and stops nothing - it is asked behind each pass, and a folder that takes no file is said once.

use crate::chain::chain;
use crate::decide::inventory;
use crate::decide::plan::Plan;
use crate::facts::Observed;
use crate::observe::kubeconfig::KubeconfigCache;
use crate::observe::process;
use crate::report::status::Published;
use crate::site::Site;
use crate::{pass, status_file};

/// What was published.
#[derive(Debug, Default)]
pub struct Publisher {
    last: Option<Published>,
    kubeconfigs: KubeconfigCache,
    /// It was said that nothing can be published.
    refused: bool,
}

impl Publisher {
    /// Publishes a conclusion. One that only observes writes nothing, here as elsewhere.
    pub fn publish(&mut self, site: &Site, observed: &Observed, plan: &Plan) {
        if site.config.observe {
            // A reload may have brought us here: what was published would count for as long as we run.
            if self.last.take().is_some() {
                status_file::withdraw(&site.status_dir());
            }
            return;
        }
        let now = pass::now().wall;
        let certificates = match (&observed.cluster, &observed.data, site.profile()) {
            (Some(cluster), Some(data), Some(profile)) => {
                let authority = cluster.certificates.first().and_then(|server| server.authority.as_ref().ok());
                let paths = site.kubeconfigs(profile, data);
                let kubeconfigs = self.kubeconfigs.read(paths, &site.root, authority, now);
                inventory::list(cluster, &kubeconfigs)
            }
            _ => Vec::new(),
        };
        let profile = site.profile().map(|profile| profile.name.as_str());
        let mut published = Published::new(plan, certificates, profile, &site.config, process::own(), now);
        if let Some(last) = &self.last {
            if published.says_the_same(last) {
                return;
            }
            if published.concludes_the_same(last) {
                published.last_plan.at = last.last_plan.at;
            }
        }
        match status_file::write(&site.status_dir(), &published) {
            Ok(()) => (self.last, self.refused) = (Some(published), false),
            Err(error) => {
                // The next pass tries again.
                self.last = None;
                if !std::mem::replace(&mut self.refused, true) {
                    tracing::warn!("`ipguard status` has nothing to show: {}", chain(&error));
                }
            }
        }
    }
}
