//! Spellings of paths.
