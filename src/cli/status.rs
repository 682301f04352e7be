//! `status`: what the daemon last saw, decided and did. It reads one file that everybody may read, and nothing else.

use std::os::fd::AsFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::unistd::Pid;

use crate::cli::arguments::{Format, Global, Status as Arguments};
use crate::cli::setup;
use crate::cli::{CliError, Status, output};
use crate::observe::process;
use crate::report::status::{self, Published};
use crate::status_file::{self, StatusError};
use crate::{pass, sys};

/// Prints the status; with `--watch` whenever it changes. The status is [`Status::Failed`] where no daemon stands behind
/// what is printed.
///
/// # Errors
/// Nothing is published, or it makes no sense; standard output cannot be written.
pub fn run(global: &Global, arguments: &Arguments, colour: bool) -> Result<Status, CliError> {
    let folder = status_file::folder(&setup::root(&global.root)?);
    let how = How { format: arguments.format, watch: arguments.watch, colour };
    if arguments.watch {
        return watch(&folder, how);
    }
    let published = status_file::read(&folder)?;
    let running = print(&published, how)?;
    Ok(if running { Status::Done } else { Status::Failed })
}

#[derive(Clone, Copy)]
struct How {
    format: Format,
    watch: bool,
    colour: bool,
}

/// Prints it, and says on standard error that it is stale where it is.
fn print(published: &Published, how: How) -> Result<bool, CliError> {
    let running = process::is_running(&published.publisher);
    let now = pass::now().wall;
    output::data(&match how.format {
        Format::Json => status::document(published, running, now, how.watch),
        Format::Text => status::text(published, running, now, how.colour) + if how.watch { "\n" } else { "" },
    })?;
    if !running {
        output::complain(&CliError::Stale { since: published.published.0, pid: published.publisher.pid });
    }
    Ok(running)
}

/// Prints it whenever it changes, the end of its daemon included, until a signal ends this process.
fn watch(folder: &Path, how: How) -> Result<Status, CliError> {
    let system = |source: Errno| CliError::Watching { path: folder.to_owned(), source };
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(system)?;
    let above = folder.parent().unwrap_or(folder);
    let mut last: Option<(Published, bool)> = None;
    let (mut said, mut waiting) = (None, None);
    loop {
        // Watched before it is read, so that no change is missed. The folder comes and goes with its daemon; the one above
        // is watched only while there is none, for much else happens in /run.
        let arrivals = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_DELETE_SELF;
        match inotify.add_watch(folder, arrivals) {
            Ok(_) => _ = waiting.take().map(|above| inotify.rm_watch(above)),
            Err(Errno::ENOENT) => {
                let made = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
                waiting = Some(inotify.add_watch(above, made).map_err(system)?);
                // It may have come in between.
                if folder.exists() {
                    continue;
                }
            }
            Err(error) => return Err(system(error)),
        }
        let mut daemon = None;
        match status_file::read(folder) {
            Ok(published) => {
                // Before it is asked whether it runs: an end in between is not missed.
                daemon = i32::try_from(published.publisher.pid)
                    .ok()
                    .and_then(|pid| sys::pidfd_open(Pid::from_raw(pid)).ok());
                let running = process::is_running(&published.publisher);
                if last.as_ref() != Some(&(published.clone(), running)) {
                    print(&published, how)?;
                }
                daemon = daemon.filter(|_| running);
                last = Some((published, running));
                said = None;
            }
            Err(error) => {
                let text = error.to_string();
                if said.as_ref() != Some(&text) {
                    output::complain(&CliError::Status(error));
                }
                (last, said) = (None, Some(text));
            }
        }
        let mut fds = vec![PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        fds.extend(daemon.as_ref().map(|daemon| PollFd::new(daemon.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(system(error)),
        }
        while matches!(inotify.read_events(), Ok(events) if !events.is_empty()) {}
    }
}

impl From<StatusError> for CliError {
    fn from(error: StatusError) -> Self {
        Self::Status(error)
    }
}
