//! The metrics recorder and its text: Prometheus exposition format, served by [`super::pages`].

use std::convert::Infallible;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds of the buckets of every histogram named `*_seconds`, in seconds.
const SECONDS_BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0,
];

/// Samples wait in memory until they are sorted into buckets; this often they are.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Makes the recorder of the whole process. Called once, before anything is counted.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS_BUCKETS)?
        .install_recorder()
}

/// Keeps the recorder's memory bounded between scrapes. Runs until it is dropped.
pub(super) async fn upkeep(handle: PrometheusHandle) -> Infallible {
    let mut ticks = tokio::time::interval(UPKEEP_EVERY);
    loop {
        ticks.tick().await;
        handle.run_upkeep();
    }
}
