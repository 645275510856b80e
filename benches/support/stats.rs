//! Medians, quantiles and settings from the environment.

/// The middle value; of an even number of them the upper one.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which the part `q` of all values lies.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * q) as usize;
    sorted
        .get(at)
        .or(sorted.last())
        .copied()
        .unwrap_or(f64::NAN)
}

/// A whole number from the environment, for shorter or longer runs.
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}: `{text}` is no whole number")),
    }
}
