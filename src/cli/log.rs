//! Messages on standard error.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogLevel;

/// Changes the most detailed level that is written.
pub(super) type SetLevel = Box<dyn Fn(LogLevel)>;

/// Starts writing events up to a level. Plain text, since the journal and files are where they end up; without time
/// stamps where the reader adds its own.
pub(super) fn start(level: LogLevel, journal: bool) -> SetLevel {
    let format = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(LevelFilter::TRACE)
        .with_target(false)
        // Complaining about a standard error that cannot be written goes to standard error, and panics there.
        .log_internal_errors(false);
    // A second start in one process keeps the first: only tests do that.
    if journal {
        let (filter, handle) = reload::Layer::new(filter(level));
        let _ = format.without_time().finish().with(filter).try_init();
        Box::new(move |level| set(&handle, level))
    } else {
        let (filter, handle) = reload::Layer::new(filter(level));
        let _ = format.finish().with(filter).try_init();
        Box::new(move |level| set(&handle, level))
    }
}

fn set<S>(handle: &reload::Handle<LevelFilter, S>, level: LogLevel) {
    // The only error is that nothing writes events any more.
    let _ = handle.reload(filter(level));
}

const fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
