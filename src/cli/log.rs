//! Messages on standard error.

use tracing::Level;

use crate::config::LogLevel;

/// Starts writing events up to a level. Plain text, since the journal and files are where they end up; without time
/// stamps where the reader adds its own.
pub(super) fn start(level: LogLevel, journal: bool) {
    let level = match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let format = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        // Complaining about a standard error that cannot be written goes to standard error, and panics there.
        .log_internal_errors(false);
    // A second start in one process keeps the first: only tests do that.
    let _ = if journal { format.without_time().try_init() } else { format.try_init() };
}
